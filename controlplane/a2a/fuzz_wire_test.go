package a2a_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// fuzzTask stores a task of a fuzzing handler's caller that has ended, with
// five events.
func fuzzTask(f *testing.F, db *sqlite.DB, id string) {
	f.Helper()
	ctx := f.Context()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	_, err := db.Create(ctx, task.New{
		ID: id, ContextID: "c", InstanceID: idA, Owner: "fuzz", At: time.Now(),
		Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart("hi")}},
		Run:     task.Run{RunID: "run-" + id, Runner: "echo", Spec: []byte("spec"), Artifacts: [2]string{"stdout", "stderr"}},
	})
	must(err)
	move := func(s task.State) {
		rec, err := db.Task(ctx, task.System(), id, task.View{Inline: -1})
		must(err)
		_, err = db.Move(ctx, id, task.Transition{Version: rec.Version, Status: task.Status{State: s, Timestamp: task.Stamp(time.Now())}})
		must(err)
	}
	move(task.Working)
	var p task.Progress
	for _, data := range []string{"one", "two"} {
		c := task.Chunk{ArtifactID: "stdout", Offset: p.Received[0], Data: []byte(data)}
		p.AfterSeq++
		p.Received[0] += uint64(len(data))
		must(db.Output(ctx, id, []task.Chunk{c}, p))
	}
	move(task.Completed)
}

// FuzzLastEventID resumes the stream of a task that has ended: from an id that
// it has, exactly the events behind it come, each once and in order; anything
// else is refused by the header's name, and is no stream.
func FuzzLastEventID(f *testing.F) {
	h, db := fuzzHandler(f)
	fuzzTask(f, db, "t")
	rec, err := db.Task(f.Context(), task.System(), "t", task.View{Inline: -1})
	if err != nil {
		f.Fatal(err)
	}
	for _, id := range []string{"0", "1", "3", "5", "6", "007", "+1", "-1", "1e0", "", " ", "18446744073709551615", "9223372036854775808", "0x1", "1_0"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, last string) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/agents/"+idA+"/tasks/t:subscribe", http.NoBody)
		for k, v := range good {
			req.Header.Set(k, v)
		}
		req.Header.Set("Last-Event-ID", last)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		n, err := strconv.ParseUint(last, 10, 64)
		if last == "" || err != nil || n > rec.LastSeq {
			if w.Code != http.StatusBadRequest || w.Header().Get("Content-Type") == "text/event-stream" ||
				last != "" && !strings.Contains(w.Body.String(), "Last-Event-ID") {
				t.Fatalf("%q: %d %s", last, w.Code, w.Body)
			}
			return
		}
		ids := eventIDs(t, w)
		if w.Code != http.StatusOK || len(ids) == 0 || ids[0] != n {
			t.Fatalf("%q: %d, events %v", last, w.Code, ids)
		}
		for i, id := range ids {
			if id != n+uint64(i) {
				t.Fatalf("%q: events %v", last, ids)
			}
		}
		if ids[len(ids)-1] != rec.LastSeq {
			t.Fatalf("%q: events %v, the last one is %d", last, ids, rec.LastSeq)
		}
	})
}

// eventIDs are the ids of a stream's events. Each has one line of JSON.
func eventIDs(t *testing.T, w *httptest.ResponseRecorder) (ids []uint64) {
	t.Helper()
	lines := bufio.NewScanner(w.Body)
	lines.Buffer(nil, 1<<20)
	data := 0
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n)
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if data++; !json.Valid([]byte(text)) {
				t.Fatalf("event %q", text)
			}
		}
	}
	if data != len(ids) || lines.Err() != nil {
		t.Fatalf("%d events have %d ids: %v", data, len(ids), lines.Err())
	}
	return ids
}

// FuzzListQuery lists tasks by any query: what is refused is refused by a
// field, and a page is one of the whole list, in its order, with a token that
// goes on behind it.
func FuzzListQuery(f *testing.F) {
	h, db := fuzzHandler(f)
	for _, id := range []string{"a", "b", "c"} {
		fuzzTask(f, db, id)
	}
	for _, q := range []string{
		"", "pageSize=1", "pageSize=0", "page_size=2&pageSize=101", "pageToken=x", "status=TASK_STATE_COMPLETED&contextId=c", "status=done",
		"historyLength=-1", "historyLength=%221%22", "includeArtifacts=true&pageSize=2", "includeArtifacts=7", "statusTimestampAfter=2026-01-01T00:00:00Z",
		"statusTimestampAfter=yesterday", "pageToken=MTcgYQ", "pageSize=1&pageToken=OTk5OTk5OTk5OTk5OTkgYg", "%zz", "a;b",
	} {
		f.Add(q)
	}
	type page struct {
		Tasks         []struct{ ID, ContextID string }
		NextPageToken string
		PageSize      int
		TotalSize     int
	}
	get := func(t *testing.T, query string) *httptest.ResponseRecorder {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/agents/"+idA+"/tasks", http.NoBody)
		req.URL.RawQuery = query
		for k, v := range good {
			req.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	read := func(t *testing.T, w *httptest.ResponseRecorder) (p page) {
		t.Helper()
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || bytes.Contains(w.Body.Bytes(), []byte(":null")) {
			t.Fatalf("%v: %s", err, w.Body)
		}
		return p
	}
	f.Fuzz(func(t *testing.T, query string) {
		w := get(t, query)
		if w.Code == http.StatusBadRequest {
			if !strings.Contains(w.Body.String(), `"fieldViolations":[{"`) && !strings.Contains(w.Body.String(), "VERSION_NOT_SUPPORTED") {
				t.Fatalf("%q is refused without a field: %s", query, w.Body)
			}
			return
		}
		if w.Code != http.StatusOK {
			t.Fatalf("%q: %d %s", query, w.Code, w.Body)
		}
		p := read(t, w)
		if len(p.Tasks) > p.PageSize || p.PageSize < 1 || p.PageSize > 100 || p.TotalSize > 3 || p.Tasks == nil {
			t.Fatalf("%q: %+v", query, p)
		}
		// They were made in the order of their ids, and the newest comes first.
		for i := 1; i < len(p.Tasks); i++ {
			if p.Tasks[i].ID >= p.Tasks[i-1].ID {
				t.Fatalf("%q: out of order: %+v", query, p)
			}
		}
		if p.NextPageToken == "" {
			return
		}
		next := read(t, get(t, "pageToken="+p.NextPageToken))
		if len(p.Tasks) == 0 || len(next.Tasks) == 0 || next.Tasks[0].ID >= p.Tasks[len(p.Tasks)-1].ID {
			t.Fatalf("%q: %+v goes on with %+v", query, p, next)
		}
	})
}

// FuzzRPC: an answer is of JSON-RPC 2.0, for the very request or for none,
// with either a result or an error of the request.
func FuzzRPC(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":"a\u0062","method":"GetTask","params":{"id":"t"}}`, `{"jsonrpc":"2.0","id":-1.50e1,"method":"ListTasks"}`,
		`{"jsonrpc":"2.0","id":null,"method":"GetTask"}`, `{"jsonrpc":"1.0","id":1}`, `[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]`,
		`{"jsonrpc":"2.0","id":{},"method":"GetTask","params":[]}`, `{"jsonrpc":"2.0","id":9,"method":"CancelTask","params":{"id":"t"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"ListTaskPushNotificationConfigs","params":{"taskId":"t","pageToken":"x"}}`,
	} {
		f.Add([]byte(seed))
	}
	h, db := fuzzHandler(f)
	fuzzTask(f, db, "t")
	f.Fuzz(func(t *testing.T, body []byte) {
		w := serve(t, h, "/agents/"+idA, body)
		var got struct {
			JSONRPC string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
			Result  json.RawMessage `json:"result"`
			Error   *struct {
				Code    int
				Message string
				Data    []map[string]any
			} `json:"error"`
		}
		if w.Header().Get("Content-Type") == "text/event-stream" {
			return // FuzzLastEventID
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.JSONRPC != "2.0" || (got.Result == nil) == (got.Error == nil) {
			t.Fatalf("%q is answered %d %s: %v", body, w.Code, w.Body, err)
		}
		if e := got.Error; e != nil && (e.Code > -32001 || e.Code < -32768 || e.Message == "" || len(e.Data) == 0 || e.Data[0]["reason"] == "") {
			t.Fatalf("%q: error %s", body, w.Body)
		}
		var sent map[string]json.RawMessage
		known := json.Unmarshal(body, &sent) == nil
		if id := string(got.ID); id != "null" && (!known || !sameJSON(got.ID, sent["id"])) {
			t.Fatalf("%q is answered for %s", body, id)
		}
		if got.Result != nil && string(got.ID) == "null" {
			t.Fatalf("%q has a result for nobody: %s", body, w.Body)
		}
	})
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && x == y
}

// FuzzVirtualHost: an instance is read out of a host only where it stands,
// directly below the domain.
func FuzzVirtualHost(f *testing.F) {
	f.Add(idA+".agents.example.com", "agents.example.com")
	f.Add(strings.ToUpper(idA)+".Agents.example.com.:8080", "agents.example.com:80")
	f.Add("x."+idA+".d", "d")
	f.Add(idA+".d", "")
	f.Add("[::1]:80", "::1")
	f.Fuzz(func(t *testing.T, host, domain string) {
		id, ok := a2a.VirtualHost(host, domain)
		if !ok {
			if id != "" {
				t.Fatalf("%q below %q is none, and %q", host, domain, id)
			}
			return
		}
		label, rest, _ := strings.Cut(strings.ToLower(host), ".")
		if id.String() != label || len(label) != 36 || rest == "" || domain == "" {
			t.Fatalf("%q below %q is %q", host, domain, id)
		}
		if again, ok := a2a.VirtualHost(id.String()+"."+domain, domain); !ok || again != id {
			t.Fatalf("%q below %q is %q", id, domain, again)
		}
	})
}
