package a2a_test

import (
	"bufio"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestResumeBehindCutSnapshot: a snapshot that could not hold all of one
// artifact is broken off after every few events and continued: nothing is lost
// and nothing comes twice, of the other artifact neither.
func TestResumeBehindCutSnapshot(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Inline = 100 << 10 })
	dir := t.TempDir()
	id := r.start("sh:echo before >&2; head -c 1500000 /dev/zero | tr '\\0' x; for i in 1 2 3 4 5; do echo $i >&2; sleep 0.05; done; " +
		"while [ ! -e " + dir + "/go ]; do sleep 0.01; done; echo end")
	for name, want := range map[string]uint64{"stdout": 1500000, "stderr": 17} {
		for {
			changed := r.engine.Changed(id)
			if size, _, err := r.db.ArtifactSize(t.Context(), task.System(), id, name); err == nil && size == want {
				break
			}
			<-changed
		}
	}
	path := "/agents/" + idA + "/tasks/" + id + ":subscribe"
	var parts []collected
	for most := 1; most <= 6; most++ {
		var c collected
		seen := uint64(0)
		r.frames(r.open(get, path, "", good), func(f frame) bool {
			c.add(f)
			at, err := strconv.ParseUint(f.id, 10, 64)
			if err != nil || at <= seen {
				t.Errorf("event %q comes behind %d", f.id, seen)
			}
			seen = at
			return c.frames < most
		})
		parts = append(parts, c)
	}
	touch(t, dir+"/go")
	for i, c := range parts {
		r.frames(r.open(get, path, "", with(map[string]string{"Last-Event-ID": c.last})), func(f frame) bool { c.add(f); return true })
		if c.out["stderr"] != "before\n1\n2\n3\n4\n5\n" || c.out["stdout"] != strings.Repeat("x", 1500000)+"end\n" {
			t.Errorf("broken off after %d: stderr is %q, stdout has %d bytes", i+1, c.out["stderr"], len(c.out["stdout"]))
		}
	}
}

// TestListPageIsBounded: a page ends when it holds as much as one may.
func TestListPageIsBounded(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Page = 25_000 })
	for range 5 {
		if a := r.send("sh:head -c 10000 /dev/zero | tr '\\0' x"); a.status != 200 {
			t.Fatalf("send: %d %s", a.status, a.body)
		}
	}
	page := func(query string) (sizes []int) {
		for token, first := "", true; first || token != ""; first = false {
			a := r.do(get, "/agents/"+idA+"/tasks?pageSize=4&pageToken="+token+query, "", good)
			rpc := r.rpc("ListTasks", `{"pageSize":4,"pageToken":"`+token+`","includeArtifacts":`+strconv.FormatBool(query != "")+`}`, good)
			list, _ := a.path("tasks").([]any)
			same, _ := rpc.path("result", "tasks").([]any)
			if a.path("pageSize") != 4.0 || a.path("totalSize") != 5.0 || len(same) != len(list) || len(list) == 0 {
				t.Fatalf("a page: %d %.300s, %.300s", a.status, a.body, rpc.body)
			}
			sizes = append(sizes, len(list))
			token, _ = a.path("nextPageToken").(string)
		}
		return sizes
	}
	if got := page(""); len(got) != 2 || got[0] != 4 {
		t.Errorf("without artifacts pages have %v tasks, want 4 and 1", got)
	}
	if got := page("&includeArtifacts=true"); len(got) != 3 || got[0] != 2 || got[1] != 2 {
		t.Errorf("with artifacts pages have %v tasks, want 2, 2 and 1", got)
	}
}

// TestListPageCountsWhatIsWritten: what must be escaped takes the room that it
// takes in the answer.
func TestListPageCountsWhatIsWritten(t *testing.T) {
	const most = 25_000
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Page = most })
	for range 3 {
		if a := r.send("sh:head -c 4000 /dev/zero | tr '\\0' '\\001'"); a.status != 200 {
			t.Fatalf("send: %d %s", a.status, a.body)
		}
	}
	a := r.do(get, "/agents/"+idA+"/tasks?includeArtifacts=true", "", good)
	if list, _ := a.path("tasks").([]any); len(list) != 1 || len(a.body) > most+most/4 {
		t.Errorf("a page has %d tasks of %d bytes in all: %.300s", len(list), len(a.body), a.body)
	}
}

// TestSlowReaderOfListsHoldsUpHimself: who takes nothing of his lists keeps a
// share of the places, and others read theirs.
func TestSlowReaderOfListsHoldsUpHimself(t *testing.T) {
	const size, places = 12 << 20, 4
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
		c.Limits.Inline, c.Limits.Lists, c.Limits.Blocking, c.Limits.Stall = size, places, 200*time.Millisecond, time.Minute
	})
	id := r.start("sh:head -c 12582912 /dev/zero | tr '\\0' x")
	for {
		changed := r.engine.Changed(id)
		if n, _, err := r.db.ArtifactSize(t.Context(), task.System(), id, "stdout"); err == nil && n == size {
			break
		}
		<-changed
	}
	path := "/agents/" + idA + "/tasks"
	for range places { // the first has his one place, the others wait behind it
		defer r.open(get, path+"?includeArtifacts=true", "", good).Body.Close()
	}
	if a := r.do(get, path, "", with(map[string]string{"X-User": "bob"})); a.status != 200 {
		t.Errorf("a list of somebody else: %d %.300s", a.status, a.body)
	}
}

// TestStreamsHoldNoSnapshots: what a reader has been told is not kept for as long
// as his stream lasts.
func TestStreamsHoldNoSnapshots(t *testing.T) {
	const streams, size = 12, 1 << 20
	r := newRig(t, nil)
	body := strings.Replace(message("sh:sleep 600"), `"messageId"`, `"metadata":{"x":"`+strings.Repeat("x", size)+`"},"messageId"`, 1)
	a := r.do(post, "/agents/"+idA+"/message:send", strings.TrimSuffix(body, "}")+`,"configuration":{"returnImmediately":true}}`, good)
	id, _ := a.path("task", "id").(string)
	if id == "" {
		t.Fatalf("send: %d %.300s", a.status, a.body)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // and what the first one finalized
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range streams {
		resp := r.open(get, "/agents/"+idA+"/tasks/"+id+":subscribe", "", good)
		if i%2 == 1 {
			_ = resp.Body.Close()
			resp = r.open(post, "/agents/"+idA, `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"`+id+`"}}`, good)
		}
		defer resp.Body.Close()
		told := bufio.NewScanner(resp.Body)
		told.Buffer(nil, 2*size)
		for told.Scan() && told.Text() != "" {
		}
		if err := told.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if more := int64(heap()) - int64(before); more > streams*size/4 { //nolint:gosec // sizes
		t.Errorf("%d streams hold %d KiB", streams, more>>10)
	}
}

// TestListsAreHeldOneByOne: a reader who takes nothing of a long list keeps
// others waiting, who are refused in time, and is dropped.
func TestListsAreHeldOneByOne(t *testing.T) {
	const size = 12 << 20 // more than the buffers of a connection take
	long := func(blocking, stall time.Duration) *rig {
		r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
			c.Limits.Inline, c.Limits.Lists, c.Limits.Blocking, c.Limits.Stall = size, 1, blocking, stall
		})
		id := r.start("sh:head -c 12582912 /dev/zero | tr '\\0' x")
		for {
			changed := r.engine.Changed(id)
			if n, _, err := r.db.ArtifactSize(t.Context(), task.System(), id, "stdout"); err == nil && n == size {
				return r
			}
			<-changed
		}
	}
	path := "/agents/" + idA + "/tasks"
	r := long(50*time.Millisecond, time.Minute)
	slow := r.open(get, path+"?includeArtifacts=true", "", good)
	if a := r.do(get, path, "", good); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("a list beside one that is not read: %d %.300s", a.status, a.body)
	}
	if a := r.rpc("ListTasks", `{}`, good); a.path("error", "code") != -32029.0 {
		t.Errorf("a list beside one that is not read: %.300s", a.body)
	}
	if err := slow.Body.Close(); err != nil {
		t.Fatal(err)
	}
	for a := (answer{}); a.status != 200; { // as soon as its end was noticed
		if a = r.do(get, path, "", good); a.status != 200 && a.status != 429 {
			t.Fatalf("%d %.300s", a.status, a.body)
		}
	}
	r = long(time.Minute, time.Second)
	slow = r.open(get, path+"?includeArtifacts=true", "", good)
	defer slow.Body.Close()
	if a := r.do(get, path, "", good); a.status != 200 {
		t.Errorf("a list after one that was not read: %d %.300s", a.status, a.body)
	}
}
