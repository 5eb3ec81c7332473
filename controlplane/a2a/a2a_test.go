package a2a_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const (
	get  = http.MethodGet
	post = http.MethodPost
)

func TestSendBothBindings(t *testing.T) {
	r := newRig(t, nil)
	rest := r.send("hello é").path("task")
	rpc := r.rpc("SendMessage", message("hello é"), good)
	slash := r.do(post, "/agents/"+idA+"/", `{"jsonrpc":"2.0","id":"x","method":"SendMessage","params":`+message("hello é")+`}`, good)
	for name, tk := range map[string]any{"REST": rest, "RPC": rpc.path("result", "task"), "RPC/": slash.path("result", "task")} {
		if s := dig(tk, "status", "state"); s != "TASK_STATE_COMPLETED" {
			t.Errorf("%s: state is %v", name, s)
		}
		if s := dig(tk, "artifacts", 0, "parts", 0, "text"); s != "hello é" {
			t.Errorf("%s: artifact is %v", name, s)
		}
		if s := dig(tk, "metadata", extensions.AdapterCommand, "exit_code"); s != 0.0 {
			t.Errorf("%s: exit code is %v", name, s)
		}
		if dig(tk, "history", 0, "parts", 0, "text") != "hello é" || dig(tk, "contextId") == "" {
			t.Errorf("%s: %v", name, tk)
		}
	}
	if slash.path("id") != "x" || rpc.path("id") != 7.0 {
		t.Error("the id of the request does not come back")
	}
	seed := r.do(post, "/agents/"+idA+"/messages:send", // as adapter-command/v1 spells it
		`{"message":{"role":"user","parts":[{"kind":"text","text":"x"}]}}`, map[string]string{"A2A-Extensions": extensions.Runtime})
	if seed.path("task", "status", "state") != "TASK_STATE_COMPLETED" || seed.path("task", "history", 0, "role") != "ROLE_USER" {
		t.Errorf("seed's spelling: %d %s", seed.status, seed.body)
	}
}

func TestExtensionIsRequired(t *testing.T) {
	r := newRig(t, nil)
	for _, asked := range []string{"", "https://example.org/x/v1", extensions.AdapterCommand, extensions.Runtime + "x", extensions.Runtime + "/"} {
		h := with(map[string]string{"A2A-Extensions": asked})
		for name, a := range map[string]answer{
			"REST send":   r.do(post, "/agents/"+idA+"/message:send", message("x"), h),
			"REST stream": r.do(post, "/agents/"+idA+"/message:stream", message("x"), h),
			"REST get":    r.do(get, "/agents/"+idA+"/tasks/x", "", h),
			"RPC send":    r.rpc("SendMessage", message("x"), h),
			"RPC stream":  r.rpc("SendStreamingMessage", message("x"), h),
			"RPC get":     r.rpc("GetTask", `{"id":"x"}`, h),
		} {
			details := a.path("error", "details")
			if strings.HasPrefix(name, "RPC") {
				details = a.path("error", "data")
				if a.path("error", "code") != -32008.0 || a.path("id") != 7.0 {
					t.Errorf("%s: %s", name, a.body)
				}
			}
			if a.status != 400 || dig(details, 0, "reason") != "EXTENSION_SUPPORT_REQUIRED" || dig(details, 0, "domain") != "a2a-protocol.org" ||
				dig(details, 1, "reason") != "EXTENSION_REQUIRED" || dig(details, 1, "metadata", "uri") != extensions.Runtime {
				t.Errorf("%s with %q: %d %s", name, asked, a.status, a.body)
			}
		}
	}
	for asked, echo := range map[string]string{
		extensions.Runtime: extensions.Runtime,
		"https://example.org/x/v1 ,  " + extensions.Runtime + ",":   extensions.Runtime,
		extensions.AdapterCommand + "," + extensions.Runtime:        extensions.Runtime + ", " + extensions.AdapterCommand,
		extensions.Runtime + "," + extensions.Runtime + ", ,,  , ,": extensions.Runtime,
	} {
		for _, path := range []string{"/tasks/no", "/tasks"} { // on errors, too
			if a := r.do(get, "/agents/"+idA+path, "", with(map[string]string{"A2A-Extensions": asked})); a.header.Get("A2A-Extensions") != echo {
				t.Errorf("%q is echoed as %q, want %q", asked, a.header.Get("A2A-Extensions"), echo)
			}
		}
	}
}

func TestRuntimeMetadataOnEveryTask(t *testing.T) {
	r := newRig(t, nil)
	id, _ := r.send("x").path("task", "id").(string)
	tasks := map[string]any{
		"get":      r.do(get, "/agents/"+idA+"/tasks/"+id, "", good).json,
		"rpc get":  r.rpc("GetTask", `{"id":"`+id+`"}`, good).path("result"),
		"list":     r.do(get, "/agents/"+idA+"/tasks", "", good).path("tasks", 0),
		"rpc list": r.rpc("ListTasks", `{}`, good).path("result", "tasks", 0),
		"send":     r.rpc("SendMessage", message("x"), good).path("result", "task"),
	}
	for _, verb := range []string{"message", "messages"} {
		r.frames(r.open(post, "/agents/"+idA+"/"+verb+":stream", message("x"), good), func(f frame) bool {
			if tk := f.data["task"]; tk != nil {
				tasks[verb+" stream"] = tk
			}
			return true
		})
	}
	running := r.start("sh:sleep 600")
	r.frames(r.open(get, "/agents/"+idA+"/tasks/"+running+":subscribe", "", good), func(f frame) bool {
		tasks["subscribe"] = f.data["task"]
		return false
	})
	tasks["cancel"] = r.do(post, "/agents/"+idA+"/tasks/"+running+":cancel", "", good).json
	if len(tasks) != 9 {
		t.Errorf("looked at %d tasks", len(tasks))
	}
	for name, tk := range tasks {
		m := dig(tk, "metadata")
		if dig(m, "runtime.instance_id") != idA || dig(m, "runtime.kind") != "vm" || dig(m, "runtime.provider") != "libvirt" ||
			dig(m, "runtime.capabilities", 1) != "instance.x-future:1" || dig(m, "runtime.host") != nil {
			t.Errorf("%s: metadata is %v", name, m)
		}
		validate(t, "runtime/v1/task-metadata.schema.json", m)
		if o := dig(m, extensions.AdapterCommand); dig(tk, "status", "state") != "TASK_STATE_SUBMITTED" && name != "subscribe" {
			validate(t, "adapter-command/v1/outcome.schema.json", o)
		}
	}
}

func TestHostIsShownByPolicyOnly(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
		caller := c.Caller
		c.Caller = func(ctx context.Context) a2a.Caller { x := caller(ctx); x.SeesHost = x.Name == "alice"; return x }
	})
	if h := r.send("x").path("task", "metadata", "runtime.host"); h != "host-1" {
		t.Errorf("who may see the host sees %v", h)
	}
	a := r.do(post, "/agents/"+idA+"/message:send", message("x"), with(map[string]string{"X-User": "bob"}))
	if m, _ := a.path("task", "metadata").(map[string]any); m == nil || m["runtime.host"] != nil {
		t.Errorf("who may not sees %v", m)
	}
}

func TestStreamEndings(t *testing.T) {
	r := newRig(t, nil)
	for script, end := range map[string]string{
		"sh:echo a; echo b >&2; echo c": "TASK_STATE_COMPLETED",
		"sh:echo a; echo c; exit 3":     "TASK_STATE_FAILED",
	} {
		for _, rpc := range []bool{false, true} {
			var c collected
			var last frame
			resp := func() *http.Response {
				if rpc {
					return r.open(post, "/agents/"+idA, `{"jsonrpc":"2.0","id":"q","method":"SendStreamingMessage","params":`+message(script)+`}`, good)
				}
				return r.open(post, "/agents/"+idA+"/message:stream", message(script), good)
			}()
			if resp.Header.Get("A2A-Extensions") != extensions.Runtime {
				t.Error("the stream does not echo the extension")
			}
			r.frames(resp, func(f frame) bool {
				if rpc {
					if f.data["jsonrpc"] != "2.0" || f.data["id"] != "q" {
						t.Errorf("frame %v", f.data)
					}
					f.data, _ = f.data["result"].(map[string]any)
				}
				if len(f.data) != 1 || (c.frames == 0) != (f.data["task"] != nil) {
					t.Errorf("frame %d is %v", c.frames, f.data)
				}
				c.add(f)
				last = f
				return true
			})
			want := []string{"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", end}
			if !slices.Equal(c.states, want) || c.out["stdout"] != "a\nc\n" {
				t.Errorf("%s: %v %q", script, c.states, c.out)
			}
			if end == "TASK_STATE_FAILED" {
				o := dig(last.data, "statusUpdate", "metadata", extensions.AdapterCommand)
				if dig(o, "fail_kind") != "application" || dig(o, "exit_code") != 3.0 {
					t.Errorf("outcome on the last event is %v", o)
				}
			}
		}
	}
}

func TestSubscribe(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Inline = 100 })
	dir := t.TempDir()
	id := r.start(fmt.Sprintf("sh:i=0; while [ $i -lt 50 ]; do echo line $i; sleep 0.001; i=$((i+1)); done; "+
		"while [ ! -e %s/go ]; do sleep 0.01; done; echo end", dir))
	for { // until all but the end is there
		if size, _, err := r.db.ArtifactSize(t.Context(), task.System(), id, "stdout"); err == nil && size == 390 {
			break
		}
		<-r.engine.Changed(id)
	}
	var want strings.Builder
	for i := range 50 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	want.WriteString("end\n")
	path := "/agents/" + idA + "/tasks/" + id + ":subscribe"
	streams := []*http.Response{r.open(get, path, "", good), r.open(post, path, "", good), r.open(post, path, "{}", good)}
	cut := r.open(get, path, "", good) // a reader that goes in the middle
	var upTo string
	got := ""
	r.frames(cut, func(f frame) bool {
		var c collected
		c.add(f)
		got += c.out["stdout"]
		upTo = f.id
		return len(got) < 200
	})
	touch(t, filepath.Join(dir, "go"))
	for i, resp := range streams {
		var c collected
		r.frames(resp, func(f frame) bool { c.add(f); return true })
		if c.out["stdout"] != want.String() || c.states[len(c.states)-1] != "TASK_STATE_COMPLETED" {
			t.Errorf("stream %d brought %q, %v", i, c.out["stdout"], c.states)
		}
	}
	// It has ended now: a new subscription is refused, a resumed one gets the rest.
	if a := r.do(get, path, "", good); a.path("error", "details", 0, "reason") != "UNSUPPORTED_OPERATION" || a.status != 400 {
		t.Errorf("subscribe to an ended task: %d %s", a.status, a.body)
	}
	if a := r.rpc("SubscribeToTask", `{"id":"`+id+`"}`, good); a.path("error", "code") != -32004.0 {
		t.Errorf("subscribe to an ended task: %s", a.body)
	}
	c := collected{out: map[string]string{"stdout": got}}
	r.frames(r.open(get, path, "", with(map[string]string{"Last-Event-ID": upTo})), func(f frame) bool { c.add(f); return true })
	if c.out["stdout"] != want.String() {
		t.Errorf("the resumed stream makes it %q", c.out["stdout"])
	}
	for _, bad := range []string{"x", "-1", "999999"} {
		if a := r.do(get, path, "", with(map[string]string{"Last-Event-ID": bad})); a.status != 400 {
			t.Errorf("Last-Event-ID %q: %d", bad, a.status)
		}
	}
}

func TestCancel(t *testing.T) {
	r := newRig(t, nil)
	for name, cancel := range map[string]func(id string) any{
		"REST": func(id string) any { return r.do(post, "/agents/"+idA+"/tasks/"+id+":cancel", "{}", good).json },
		"RPC":  func(id string) any { return r.rpc("CancelTask", `{"id":"`+id+`"}`, good).path("result") },
	} {
		id := r.start("sh:sleep 600")
		for range 2 {
			if tk := cancel(id); dig(tk, "status", "state") != "TASK_STATE_CANCELED" {
				t.Errorf("%s: %v", name, tk)
			}
		}
	}
	id, _ := r.send("x").path("task", "id").(string)
	a := r.do(post, "/agents/"+idA+"/tasks/"+id+":cancel", "", good)
	if a.status != 400 || a.path("error", "details", 0, "reason") != "TASK_NOT_CANCELABLE" {
		t.Errorf("cancel of a completed task: %d %s", a.status, a.body)
	}
	if a := r.rpc("CancelTask", `{"id":"`+id+`"}`, good); a.path("error", "code") != -32002.0 {
		t.Errorf("cancel of a completed task: %s", a.body)
	}
}

// TestStrangersSeeNothing: somebody else's task, another machine's and none at
// all are the same.
func TestStrangersSeeNothing(t *testing.T) {
	r := newRig(t, nil)
	id := r.start("sh:echo secret; sleep 600")
	bob := with(map[string]string{"X-User": "bob"})
	op := func(instance, id string, h map[string]string) []answer {
		base := "/agents/" + instance
		rpc := func(method, params string) answer {
			return r.do(post, base, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, h)
		}
		follow := strings.Replace(message("x"), `"role"`, `"taskId":"`+id+`","role"`, 1)
		return []answer{
			r.do(get, base+"/tasks/"+id, "", h), r.do(post, base+"/tasks/"+id+":cancel", "", h),
			r.do(get, base+"/tasks/"+id+":subscribe", "", h), r.do(post, base+"/message:send", follow, h),
			r.do(post, base+"/message:stream", follow, h), r.do(get, base+"/tasks/"+id+"/artifacts/stdout", "", h),
			rpc("GetTask", `{"id":"`+id+`"}`), rpc("CancelTask", `{"id":"`+id+`"}`), rpc("SubscribeToTask", `{"id":"`+id+`"}`),
			rpc("SendMessage", follow), rpc("SendStreamingMessage", follow),
		}
	}
	unknown := op(idA, "01900000-0000-7000-8000-0000000000ff", good)
	for name, got := range map[string][]answer{"stranger": op(idA, id, bob), "other machine": op(idB, id, good)} {
		for i, a := range got {
			if a.status != unknown[i].status || string(a.body) != string(unknown[i].body) ||
				!strings.Contains(string(a.body), "TASK_NOT_FOUND") {
				t.Errorf("%s, operation %d: %d %s, unlike %d %s", name, i, a.status, a.body, unknown[i].status, unknown[i].body)
			}
		}
	}
	if a := r.do(get, "/agents/"+idA+"/tasks", "", bob); a.path("totalSize") != 0.0 || len(a.path("tasks").([]any)) != 0 {
		t.Errorf("a stranger's list: %s", a.body)
	}
	if s := r.do(get, "/agents/"+idA+"/tasks/"+id, "", good).path("status", "state"); s == "TASK_STATE_CANCELED" {
		t.Error("a stranger canceled the task")
	}
}

func TestMessageToExistingTask(t *testing.T) {
	r := newRig(t, nil)
	ended, _ := r.send("x").path("task", "id").(string)
	running := r.start("sh:sleep 600")
	for id, text := range map[string]string{ended: "ended", running: "does not wait"} {
		body := strings.Replace(message("x"), `"role"`, `"taskId":"`+id+`","role"`, 1)
		a := r.do(post, "/agents/"+idA+"/message:send", body, good)
		b := r.do(post, "/agents/"+idA+"/message:stream", body, good)
		c := r.rpc("SendMessage", body, good)
		if a.status != 400 || a.path("error", "details", 0, "reason") != "UNSUPPORTED_OPERATION" || b.status != 400 ||
			c.path("error", "code") != -32004.0 || !strings.Contains(string(a.body), text) {
			t.Errorf("%s: %s %s %s", text, a.body, b.body, c.body)
		}
		wrong := strings.Replace(body, `"role"`, `"contextId":"other","role"`, 1)
		if a := r.do(post, "/agents/"+idA+"/message:send", wrong, good); a.path("error", "details", 1, "fieldViolations", 0, "field") != "message.contextId" {
			t.Errorf("wrong context: %s", a.body)
		}
	}
	before := r.do(get, "/agents/"+idA+"/tasks", "", good).path("totalSize")
	if before != 2.0 {
		t.Errorf("there are %v tasks, want 2", before)
	}
}

func TestContextIsKept(t *testing.T) {
	r := newRig(t, nil)
	body := strings.Replace(message("x"), `"role"`, `"contextId":"my context","role"`, 1)
	if c := r.do(post, "/agents/"+idA+"/message:send", body, good).path("task", "contextId"); c != "my context" {
		t.Errorf("context is %v", c)
	}
}

func TestListTasks(t *testing.T) {
	r := newRig(t, nil)
	for range 3 {
		r.send("x")
	}
	base := "/agents/" + idA + "/tasks"
	if a := r.do(get, "/agents/"+idB+"/tasks", "", good); strings.TrimSpace(string(a.body)) !=
		`{"nextPageToken":"","pageSize":50,"tasks":[],"totalSize":0}` {
		t.Errorf("empty list: %s", a.body)
	}
	var ids []any
	token := ""
	for range 3 {
		a := r.do(get, base+"?pageSize=1&pageToken="+token, "", good)
		ids = append(ids, a.path("tasks", 0, "id"))
		if dig(a.path("tasks", 0), "artifacts") != nil || dig(a.path("tasks", 0), "history") != nil {
			t.Errorf("a list shows too much: %s", a.body)
		}
		token, _ = a.path("nextPageToken").(string)
	}
	if token != "" || ids[0] == ids[1] || ids[1] == ids[2] {
		t.Errorf("pages: %v, token %q", ids, token)
	}
	if a := r.do(get, base+"?includeArtifacts=true&history_length=1&status=TASK_STATE_COMPLETED", "", good); a.path("tasks", 0, "artifacts") == nil ||
		a.path("tasks", 0, "history") == nil {
		t.Errorf("asked for more: %s", a.body)
	}
	for _, q := range []string{
		"pageSize=0", "pageSize=101", "pageSize=x", "status=completed", "historyLength=-1", "pageToken=!", "pageToken=aGk",
		"statusTimestampAfter=yesterday", "includeArtifacts=maybe",
	} {
		if a := r.do(get, base+"?"+q, "", good); a.status != 400 || a.path("error", "details", 1, "fieldViolations", 0, "field") == nil {
			t.Errorf("%s: %d %s", q, a.status, a.body)
		}
	}
	if a := r.rpc("ListTasks", `{"page_size":2}`, good); len(a.path("result", "tasks").([]any)) != 2 {
		t.Errorf("snake case: %s", a.body)
	}
}

func TestHistoryLength(t *testing.T) {
	r := newRig(t, nil)
	id, _ := r.send("x").path("task", "id").(string)
	for n, want := range map[string]bool{"0": false, "1": true, "": true} {
		path := "/agents/" + idA + "/tasks/" + id
		if n != "" {
			path += "?historyLength=" + n
		}
		if a := r.do(get, path, "", good); (a.path("history") != nil) != want {
			t.Errorf("historyLength %q: %s", n, a.body)
		}
	}
	if a := r.rpc("GetTask", `{"id":"`+id+`","history_length":0}`, good); a.path("result", "history") != nil || a.path("result", "id") != id {
		t.Errorf("snake case: %s", a.body)
	}
	body := strings.TrimSuffix(message("x"), "}") + `,"configuration":{"historyLength":0}}`
	if a := r.do(post, "/agents/"+idA+"/message:send", body, good); a.path("task", "history") != nil {
		t.Errorf("send: %s", a.body)
	}
}

func TestLargeArtifact(t *testing.T) {
	r := newRig(t, nil)
	a := r.send("sh:head -c 3000000 /dev/zero | tr '\\0' x")
	art := a.path("task", "artifacts", 0)
	text, _ := dig(art, "parts", 0, "text").(string)
	if dig(art, "metadata", "truncated") != true || dig(art, "metadata", "total_bytes") != 3000000.0 || len(text) > 1<<20 || len(text) < 1<<19 {
		t.Errorf("inlined %d bytes, %v", len(text), dig(art, "metadata"))
	}
	url, _ := dig(art, "metadata", "url").(string)
	whole := r.do(get, strings.TrimPrefix(url, r.url), "", nil)
	if whole.status != 200 || len(whole.body) != 3000000 || whole.header.Get("Content-Length") != "3000000" ||
		whole.header.Get("Content-Type") != "application/octet-stream" || strings.Trim(string(whole.body), "x") != "" {
		t.Errorf("download: %d, %d bytes, %v", whole.status, len(whole.body), whole.header)
	}
	if a := r.do(http.MethodHead, strings.TrimPrefix(url, r.url), "", nil); a.header.Get("Content-Length") != "3000000" || len(a.body) != 0 {
		t.Errorf("HEAD: %v", a.header)
	}
	if a := r.do(get, strings.TrimPrefix(url, r.url)+"x", "", nil); a.status != 404 {
		t.Errorf("no such artifact: %d", a.status)
	}
}

func TestBlockingIsBounded(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Blocking = 50 * time.Millisecond })
	a := r.send("sh:sleep 600")
	if s, _ := a.path("task", "status", "state").(string); a.status != 200 || s != "TASK_STATE_SUBMITTED" && s != "TASK_STATE_WORKING" {
		t.Errorf("blocking send: %d %s", a.status, a.body)
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, e *engine.Config) { c.Limits.Body = 2000; c.Limits.Streams = 1; e.MaxUnfinished = 1 })
	big := message(strings.Repeat("x", 3000))
	if a := r.do(post, "/agents/"+idA+"/message:send", big, good); a.status != 413 || a.path("error", "details", 0, "reason") != "REQUEST_TOO_LARGE" {
		t.Errorf("REST body: %d %s", a.status, a.body)
	}
	if a := r.rpc("SendMessage", big, good); a.status != 413 || a.path("error", "code") != -32600.0 {
		t.Errorf("RPC body: %d %s", a.status, a.body)
	}
	id := r.start("sh:sleep 600")
	if a := r.send("x"); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("second task: %d %s", a.status, a.body)
	}
	if a := r.rpc("SendMessage", message("x"), good); a.path("error", "code") != -32029.0 {
		t.Errorf("second task: %s", a.body)
	}
	path := "/agents/" + idA + "/tasks/" + id + ":subscribe"
	first := r.open(get, path, "", good)
	if a := r.do(get, path, "", good); a.status != 429 {
		t.Errorf("second stream: %d %s", a.status, a.body)
	}
	r.frames(first, func(frame) bool { return false })
}
