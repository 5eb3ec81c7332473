package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// The extensions, as clients spell them.
const (
	extRuntime = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	extAdapter = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
)

type object = map[string]any

// The parts of the API's nouns that are looked at.
type (
	instance struct {
		ID, Name, State, Reason string
		Restarts                int
		Fault, Health           *fault
		Guest                   *struct{}
	}
	operation struct {
		ID, Kind, State string
		Instance        string `json:"instance_id"`
		Name            string `json:"instance_name"`
		Fault           *fault
		EndedAt         *time.Time `json:"ended_at"`
	}
	fault struct{ Code, Blame, Cause, Remediation, Console string }
	event struct {
		Seq       uint64
		At        time.Time
		Type      string
		Instance  string `json:"instance_id"`
		Name      string `json:"instance_name"`
		State     string
		Operation string `json:"operation_id"`
		Reason    string
		Message   string
	}
)

func (f *fault) String() string {
	if f == nil {
		return "no fault"
	}
	return fmt.Sprintf("%s (%s): %s; %s", f.Code, f.Blame, f.Cause, f.Remediation)
}

// answer is what a request got; err is one of the connection.
type answer struct {
	status int
	body   []byte
	err    error
}

func (a answer) String() string { return fmt.Sprintf("status %d, %v: %.600s", a.status, a.err, a.body) }

// problem is the fault of a refusal.
func (a answer) problem() fault {
	var f fault
	_ = json.Unmarshal(a.body, &f) // no JSON is no code
	return f
}

var serial atomic.Int64

// unique makes a key or an id that was never used.
func unique() string { return fmt.Sprintf("%x-%d", time.Now().UnixNano(), serial.Add(1)) }

// ask makes one request of the management API. key is its Idempotency-Key;
// none, if empty.
func (w *world) ask(method, path string, body any, key string) answer {
	return w.askWithin(w.wake(), method, path, body, key)
}

func (w *world) askWithin(ctx context.Context, method, path string, body any, key string) answer {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return answer{err: err}
		}
	}
	h := http.Header{}
	if key != "" {
		h.Set("Idempotency-Key", `"`+key+`"`)
	}
	return w.send(ctx, method, "/api/v1"+path, content, h)
}

// client keeps no connection: the server at its other end dies often.
func client() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }

func (w *world) send(ctx context.Context, method, path string, body []byte, h http.Header) (a answer) {
	req, err := http.NewRequestWithContext(ctx, method, w.d.URL+path, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header = h
	req.Header.Set("Authorization", "Bearer "+w.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client().Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return a
}

// read is a request for JSON that must be answered.
func (w *world) read(path string, into any) {
	w.Helper()
	a := w.ask(http.MethodGet, path, nil, "")
	if a.err != nil || a.status != http.StatusOK {
		w.Fatalf("GET %s: %s", path, a)
	}
	w.check(json.Unmarshal(a.body, into))
}

// pages reads a list to its end.
func pages[T any](w *world, path string) (all []T) {
	w.Helper()
	for cursor := ""; ; {
		var page struct {
			Items []T
			Next  string `json:"next_cursor"`
		}
		w.read(path+"limit=500"+cursor, &page)
		all = append(all, page.Items...)
		if page.Next == "" || len(page.Items) == 0 {
			return all
		}
		cursor = "&cursor=" + page.Next
	}
}

func (w *world) instances() []instance { w.Helper(); return pages[instance](w, "/instances?") }
func (w *world) operations() []operation {
	w.Helper()
	return pages[operation](w, "/operations?")
}
func (w *world) events() []event { w.Helper(); return pages[event](w, "/events?") }

// find returns an instance by its name.
func (w *world) find(name string) (i instance, ok bool) {
	w.Helper()
	a := w.ask(http.MethodGet, "/instances/"+name, nil, "")
	switch {
	case a.status == http.StatusNotFound:
		return i, false
	case a.err != nil || a.status != http.StatusOK:
		w.Fatalf("instance %q: %s", name, a)
	}
	w.check(json.Unmarshal(a.body, &i))
	return i, true
}

// ended waits for the end of the operation that a request began.
func (w *world) ended(a answer) operation {
	w.Helper()
	if a.err != nil || a.status != http.StatusAccepted {
		w.Fatalf("the request got %s, want an operation", a)
	}
	var op operation
	w.check(json.Unmarshal(a.body, &op))
	return w.end(op.ID)
}

// end waits for the end of an operation.
func (w *world) end(id string) (op operation) {
	w.Helper()
	for deadline := time.Now().Add(patience); ; {
		w.read("/operations/"+id+"?wait=30s", &op)
		switch {
		case op.EndedAt != nil:
			return op
		case time.Now().After(deadline):
			w.Fatalf("%s of %q is still %s after %s\n%s", op.Kind, op.Name, op.State, patience, tailOf(w.d.Log(), 8<<10))
		}
	}
}

// task is the part of an A2A task that is looked at.
type task struct {
	ID     string
	Status struct {
		State   string
		Message struct{ Parts []struct{ Text string } }
	}
	Artifacts []struct {
		Name, ArtifactID string
		Parts            []struct{ Text string }
	}
}

func (k task) done() bool {
	switch k.Status.State {
	case "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED":
		return true
	}
	return false
}

// output is what a task's command wrote to stdout.
func (k task) output() string {
	var b strings.Builder
	for _, a := range k.Artifacts {
		if a.Name != "stdout" && a.ArtifactID != "stdout" {
			continue
		}
		for _, p := range a.Parts {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// speak sends a message to a machine and returns the task it makes.
func (w *world) speak(id string, message object, extensions string, now bool) task {
	w.Helper()
	message["messageId"], message["role"] = unique(), "ROLE_USER"
	body, err := json.Marshal(object{"message": message, "configuration": object{"returnImmediately": now}})
	w.check(err)
	h := http.Header{"A2a-Version": {"1.0"}, "A2a-Extensions": {strings.TrimSuffix(extRuntime+", "+extensions, ", ")}}
	a := w.send(w.wake(), http.MethodPost, "/agents/"+id+"/message:send", body, h)
	var got struct{ Task task }
	if a.err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &got) != nil {
		w.Fatalf("message to %s: %s", id, a)
	}
	return got.Task
}

// echo has a machine do a little work, and returns what it gave back.
func (w *world) echo(id, text string) string {
	w.Helper()
	k := w.finished(id, w.speak(id, object{"parts": []any{object{"text": text}}}, "", false).ID)
	w.want(k.Status.State == "TASK_STATE_COMPLETED", "the task is %s: %+v", k.Status.State, k.Status.Message)
	return k.output()
}

func (w *world) task(id, taskID string) (k task) {
	w.Helper()
	a := w.send(w.wake(), http.MethodGet, "/agents/"+id+"/tasks/"+taskID, nil,
		http.Header{"A2a-Version": {"1.0"}, "A2a-Extensions": {extRuntime}})
	if a.err != nil || a.status != http.StatusOK {
		w.Fatalf("task %s: %s", taskID, a)
	}
	w.check(json.Unmarshal(a.body, &k))
	return k
}

// finished waits for the end of a task.
func (w *world) finished(id, taskID string) (k task) {
	w.Helper()
	w.until("the end of task "+taskID, func() bool { k = w.task(id, taskID); return k.done() })
	return k
}
