package a2a_test

import (
	"net/url"
	"strings"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// TestListFilters asks for the same by both bindings.
func TestListFilters(t *testing.T) {
	r := newRig(t, nil)
	inContext := func(text, context string) string {
		body := strings.Replace(message(text), `"role"`, `"contextId":"`+context+`","role"`, 1)
		a := r.do(post, "/agents/"+idA+"/message:send", body, good)
		id, _ := a.path("task", "id").(string)
		if id == "" {
			t.Fatalf("send: %d %s", a.status, a.body)
		}
		return id
	}
	first := inContext("x", "c1")
	failed := inContext("sh:exit 1", "c 2")
	last := inContext("x", "c1")
	at, _ := r.do(get, "/agents/"+idA+"/tasks/"+failed, "", good).path("status", "timestamp").(string)
	ids := func(list any) string {
		tasks, ok := list.([]any)
		if !ok {
			t.Errorf("tasks is %v", list)
		}
		var all []string
		for _, tk := range tasks {
			id, _ := dig(tk, "id").(string)
			all = append(all, map[string]string{first: "first", failed: "failed", last: "last"}[id])
		}
		return strings.Join(all, " ")
	}
	for _, c := range []struct {
		name, value, params, want string
	}{
		{"", "", `{}`, "last failed first"},
		{"contextId", "c1", `{"contextId":"c1"}`, "last first"},
		{"context_id", "c 2", `{"context_id":"c 2"}`, "failed"},
		{"contextId", "C1", `{"contextId":"C1"}`, ""},
		{"status", "TASK_STATE_FAILED", `{"status":"TASK_STATE_FAILED"}`, "failed"},
		{"status", "TASK_STATE_AUTH_REQUIRED", `{"status":"TASK_STATE_AUTH_REQUIRED"}`, ""},
		{"statusTimestampAfter", at, `{"statusTimestampAfter":"` + at + `"}`, "last failed"}, // at or after
		{"status_timestamp_after", "2999-01-01T00:00:00+01:00", `{"status_timestamp_after":"2999-01-01T00:00:00+01:00"}`, ""},
		{"pageSize", "100", `{"pageSize":100}`, "last failed first"},
		{"pageSize", "1", `{"pageSize":"1"}`, "last"},
	} {
		path := "/agents/" + idA + "/tasks"
		if c.name != "" {
			path += "?" + c.name + "=" + url.QueryEscape(c.value)
		}
		rest, rpc := r.do(get, path, "", good), r.rpc("ListTasks", c.params, good)
		if got, same := ids(rest.path("tasks")), ids(rpc.path("result", "tasks")); got != c.want || same != c.want {
			t.Errorf("%s=%s lists %q and %q, want %q", c.name, c.value, got, same, c.want)
		}
	}
	if a := r.do(get, "/agents/"+idA+"/tasks?contextId=c1&status=TASK_STATE_COMPLETED&pageSize=1", "", good); a.path("totalSize") != 2.0 ||
		a.path("pageSize") != 1.0 || a.path("nextPageToken") == "" {
		t.Errorf("a page of a filtered list: %s", a.body)
	}
}

// TestListWhileTasksChange goes through the pages while others are made and
// end: what was there and does not change comes exactly once, in order.
func TestListWhileTasksChange(t *testing.T) {
	r := newRig(t, func(_ *a2a.Config, e *engine.Config) { e.MaxUnfinished = 100 })
	var want []string
	for range 9 {
		id, _ := r.send("old").path("task", "id").(string)
		want = append([]string{id}, want...) // newest first
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if a := r.send("new"); a.status != 200 {
					t.Errorf("send: %d %s", a.status, a.body)
					return
				}
			}
		}
	})
	seen := map[string]int{}
	var got []string
	token, pages := "", 0
	for ; pages == 0 || token != ""; pages++ {
		a := r.do(get, "/agents/"+idA+"/tasks?historyLength=1&pageSize=2&pageToken="+token, "", good)
		list, _ := a.path("tasks").([]any)
		for _, tk := range list {
			id, _ := dig(tk, "id").(string)
			if seen[id]++; seen[id] > 1 {
				t.Errorf("%s comes twice", id)
			}
			if dig(tk, "history", 0, "parts", 0, "text") == "old" {
				got = append(got, id)
			}
		}
		token, _ = a.path("nextPageToken").(string)
	}
	close(stop)
	wg.Wait()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%d pages brought %v, want %v", pages, got, want)
	}
}
