package a2a_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestSlowReader: a reader that takes nothing holds up neither the command nor
// other readers, and is dropped.
func TestSlowReader(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Stall = 5 * time.Second })
	const size = 12 << 20 // more than the buffers of a connection take
	slow := r.open(post, "/agents/"+idA+"/message:stream", message("sh:head -c 12582912 /dev/zero | tr '\\0' x"), good)
	defer slow.Body.Close()
	page, err := r.db.List(t.Context(), task.System(), task.Filter{InstanceID: idA, Limit: 1}, task.View{Inline: -1})
	if err != nil || len(page.Tasks) != 1 {
		t.Fatal(page, err)
	}
	id := page.Tasks[0].ID
	got := 0
	path := "/agents/" + idA + "/tasks/" + id + ":subscribe"
	resp := r.open(get, path, "", with(map[string]string{"Last-Event-ID": "1"}))
	r.frames(resp, func(f frame) bool {
		var c collected
		c.add(f)
		got += len(c.out["stdout"])
		return true
	})
	if got != size {
		t.Errorf("another reader got %d bytes, want %d", got, size)
	}
	n, err := slow.Body.Read(make([]byte, 1))
	for err == nil && n > 0 { // what was under way when it was dropped
		n, err = slow.Body.Read(make([]byte, 1<<20))
	}
	if err == nil || strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("the slow reader was not dropped: %v", err)
	}
}

// TestStreamsAcrossRestart: the daemon dies in the middle of a stream; the
// next one takes the task up, and the reader misses nothing.
func TestStreamsAcrossRestart(t *testing.T) {
	r := newRig(t, nil)
	dir := t.TempDir()
	id := r.start("sh:echo one; while [ ! -e " + dir + "/go ]; do sleep 0.01; done; echo two; exit 5")
	path := "/agents/" + idA + "/tasks/" + id + ":subscribe"
	var c collected
	r.frames(r.open(get, path, "", good), func(f frame) bool {
		if c.add(f); c.out["stdout"] == "one\n" {
			go r.engine.Close() // the stream ends by itself
		}
		return true
	})
	if c.out["stdout"] != "one\n" {
		t.Fatalf("before: %v", c)
	}
	if a := r.do(http.MethodPost, "/agents/"+idA+"/message:send", message("x"), good); a.status != 503 {
		t.Errorf("a stopping server answers %d %s", a.status, a.body)
	}
	r.engine.Close()
	touch(t, dir+"/go") // the command ends while nobody follows it
	second := engine.New(t.Context(), engine.Config{Journal: r.db, Runs: r.db, Reader: r.db, Guests: r.guest})
	if err := second.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	h := a2a.New(a2a.Config{
		Instances: agents(), Tasks: second, Store: r.db, PublicURL: r.url,
		Caller: func(context.Context) a2a.Caller { return a2a.Caller{Name: "alice"} },
	})
	srv := serveOn(t, h)
	r.url = srv
	r.frames(r.open(get, path, "", with(map[string]string{"Last-Event-ID": c.last})), func(f frame) bool { c.add(f); return true })
	if c.out["stdout"] != "one\ntwo\n" || c.states[len(c.states)-1] != "TASK_STATE_FAILED" {
		t.Errorf("after: %v", c)
	}
	if n := r.guest.Starts(); n != 1 {
		t.Errorf("the command was started %d times", n)
	}
}
