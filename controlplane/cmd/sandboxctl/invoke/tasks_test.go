package invoke

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestTasks: what is asked behind many newer tasks is found, a limit is kept,
// and a list without an end is given up.
func TestTasks(t *testing.T) {
	const total = 250
	var requests int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		q := r.URL.Query()
		size, _ := strconv.Atoi(q.Get("pageSize"))
		from, _ := strconv.Atoi(q.Get("pageToken"))
		if size < 1 || size > 100 {
			t.Errorf("page of %d", size)
		}
		var all []string
		for i := range total {
			state := Completed
			if i == total-1 {
				state = InputRequired
			}
			if s := q.Get("status"); s == "" || s == state {
				all = append(all, fmt.Sprintf(`{"id":"T%d","status":{"state":%q},"other":%d}`, i, state, i))
			}
		}
		next := ""
		if from+size < len(all) {
			next = strconv.Itoa(from + size)
		}
		if strings.HasPrefix(r.URL.Path, "/endless") {
			from, next = 0, "1"
		}
		fmt.Fprintf(w, `{"tasks":[%s],"nextPageToken":%q}`, strings.Join(all[from:min(from+size, len(all))], ","), next)
	}))
	defer srv.Close()
	c := &Client{HTTP: srv.Client(), Base: srv.URL, Limits: DefaultLimits()}
	for _, tt := range []struct {
		state       string
		limit, want int
		more        bool
		last        string
		requests    int
	}{
		{"", 0, 250, false, "T249", 3},
		{"", 100, 100, true, "T99", 1},
		{"", 101, 101, true, "T100", 2},
		{"", 250, 250, false, "T249", 3},
		{"", 1000, 250, false, "T249", 3},
		{InputRequired, 0, 1, false, "T249", 1},
	} {
		requests = 0
		list, err := c.Tasks(t.Context(), tt.state, tt.limit)
		if err != nil {
			t.Fatal(err)
		}
		last := list.Tasks[len(list.Tasks)-1]
		if len(list.Tasks) != tt.want || len(list.Raw) != tt.want || list.More != tt.more || last.ID != tt.last || requests != tt.requests {
			t.Errorf("%q, %d: %d tasks to %s, more %v, %d requests", tt.state, tt.limit, len(list.Tasks), last.ID, list.More, requests)
		}
		if !strings.Contains(string(list.Raw[0]), `"other"`) {
			t.Errorf("%s is not as it came", list.Raw[0])
		}
	}
	c.Base += "/endless"
	if _, err := c.Tasks(t.Context(), InputRequired, 0); err == nil || !strings.Contains(err.Error(), "no end") {
		t.Errorf("a list without an end: %v", err)
	}
}
