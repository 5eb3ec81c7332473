package a2a_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// closedTasks takes no work, so that fuzzing starts no processes.
type closedTasks struct{ done chan struct{} }

func (closedTasks) Submit(context.Context, engine.Submission) (engine.Result, error) {
	return engine.Result{}, engine.ErrClosed
}

func (closedTasks) Cancel(context.Context, task.Scope, string) (task.Record, error) {
	return task.Record{}, task.ErrNotFound
}
func (closedTasks) Reply(context.Context, engine.Reply) error { return engine.ErrClosed }
func (closedTasks) Changed(string) <-chan struct{}            { return nil }
func (c closedTasks) Done() <-chan struct{}                   { return c.done }

func fuzzHandler(f *testing.F) (http.Handler, *sqlite.DB) {
	f.Helper()
	db, err := sqlite.Open(f.Context(), filepath.Join(f.TempDir(), "db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	return a2a.New(a2a.Config{
		Instances: agents(), Tasks: closedTasks{}, Store: db, PublicURL: "http://x",
		Caller: func(context.Context) a2a.Caller { return a2a.Caller{Name: "fuzz"} },
	}), db
}

func serve(t *testing.T, h http.Handler, path string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	return serveAs(t, h, path, body, good)
}

func serveAs(t *testing.T, h http.Handler, path string, body []byte, header map[string]string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	for k, v := range header {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}
