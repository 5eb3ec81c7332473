package a2a_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestBrokenMessages03 sends what breaks one rule; the field is named and no
// task is made.
func TestBrokenMessages03(t *testing.T) {
	r := newRig(t, nil)
	part := func(p string) string { return `{"message":{"role":"user","parts":[` + p + `]}}` }
	for body, field := range map[string]string{
		`{}`:                                   "message",
		`{"message":[]}`:                       "message",
		`{"message":{"parts":[{"text":"x"}]}}`: "message.role",
		`{"message":{"role":"agent","parts":[{"text":"x"}]}}`:                                   "message.role",
		`{"message":{"role":"ROLE_AGENT","content":[{"text":"x"}]}}`:                            "message.role",
		`{"message":{"kind":"task","role":"user","parts":[{"text":"x"}]}}`:                      "message.kind",
		`{"message":{"role":"user"}}`:                                                           "message.parts",
		`{"message":{"role":"user","parts":[],"content":[{"text":"x"}]}}`:                       "message.parts",
		`{"message":{"role":"user","content":[]}}`:                                              "message.content",
		`{"message":{"role":"user","content":{}}}`:                                              "message.content",
		`{"message":{"role":"user","messageId":"a\nb","parts":[{"text":"x"}]}}`:                 "message.messageId",
		`{"message":{"role":"user","content":[` + strings.Repeat(`{"text":""},`, 256) + `{}]}}`: "message.content",
		part(`{}`):                                           "message.parts[0]",
		part(`{"kind":"text"}`):                              "message.parts[0]",
		part(`{"kind":"text","text":7}`):                     "message.parts[0].text",
		part(`{"kind":"text","text":"x","file":{}}`):         "message.parts[0]",
		part(`{"kind":"file","text":"x"}`):                   "message.parts[0].kind",
		part(`{"kind":"text","text":"x"},{"kind":"x"}`):      "message.parts[1]",
		part(`{"kind":"file","file":{}}`):                    "message.parts[0].file",
		part(`{"kind":"file","file":7}`):                     "message.parts[0].file",
		part(`{"kind":"file","file":{"bytes":"!"}}`):         "message.parts[0].file.bytes",
		part(`{"kind":"file","file":{"bytes":"","uri":""}}`): "message.parts[0].file",
		part(`{"file":{"fileWithBytes":"","uri":""}}`):       "message.parts[0].file",
		part(`{"kind":"data","data":[1]}`):                   "message.parts[0].data",
		part(`{"kind":"data","data":null}`):                  "message.parts[0]",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":{"blocking":"no"}}`:    "configuration.blocking",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":{"historyLength":-1}}`: "configuration.historyLength",
	} {
		for _, path := range []string{"/v1/message:send", "/v1/message:stream", "/message:send", "/messages:stream"} {
			a := r.do(post, "/agents/"+idA+path, body, old)
			if a.status != 400 || a.path("error", "details", 1, "fieldViolations", 0, "field") != field {
				t.Errorf("%s %.200s: %d %s, want a violation of %s", path, body, a.status, a.body, field)
			}
		}
		for _, method := range []string{"message/send", "message/stream"} {
			a := r.rpc03(method, body)
			if a.status != 200 || a.path("error", "code") != -32602.0 || a.path("error", "data", 1, "fieldViolations", 0, "field") != field {
				t.Errorf("%s %.200s: %d %s, want a violation of %s", method, body, a.status, a.body, field)
			}
		}
	}
	if n := r.do(get, "/agents/"+idA+"/tasks", "", good).path("totalSize"); n != 0.0 {
		t.Errorf("%v tasks were made", n)
	}
}

// TestSeen03 looks at one task from both versions.
func TestSeen03(t *testing.T) {
	r := newRig(t, nil)
	a := r.rpc03("message/send", `{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"sh:sleep 600"}]},`+
		`"configuration":{"blocking":false,"historyLength":0}}`)
	id, _ := a.path("result", "id").(string)
	if id == "" || a.path("result", "history") != nil {
		t.Fatalf("blocking false: %s", a.body)
	}
	if s := r.do(get, "/agents/"+idA+"/tasks/"+id, "", good); s.path("history", 0, "role") != "ROLE_USER" || s.path("history", 0, "parts", 0, "text") != "sh:sleep 600" {
		t.Errorf("in 1.0: %s", s.body)
	}
	canceled := r.rpc("CancelTask", `{"id":"`+id+`"}`, good)
	if canceled.path("result", "status", "state") != "TASK_STATE_CANCELED" {
		t.Errorf("cancel: %s", canceled.body)
	}
	base := "/agents/" + idA + "/v1/tasks"
	if s := r.do(get, base+"/"+id, "", old).path("status", "state"); s != "TASK_STATE_CANCELLED" {
		t.Errorf("HTTP+JSON of 0.3 calls it %v", s)
	}
	if s := r.rpc03("tasks/get", `{"id":"`+id+`"}`).path("result", "status", "state"); s != "canceled" {
		t.Errorf("JSON-RPC of 0.3 calls it %v", s)
	}
	for query, want := range map[string]int{
		"status=TASK_STATE_CANCELLED": 1, "status=TASK_STATE_CANCELED": 1, "status=TASK_STATE_WORKING": 0,
		"lastUpdatedAfter=2026-01-01T00:00:00Z": 1, "lastUpdatedAfter=2999-01-01T00:00:00Z": 0,
	} {
		if list, _ := r.do(get, base+"?"+query, "", old).path("tasks").([]any); len(list) != want {
			t.Errorf("%s lists %v", query, list)
		}
	}
	if a := r.do(get, base+"?lastUpdatedAfter=yesterday", "", old); a.status != 400 {
		t.Errorf("a bad time: %d %s", a.status, a.body)
	}
	for name, a := range map[string]answer{
		"again":           r.rpc03("tasks/cancel", `{"id":"`+id+`"}`),
		"resubscribe":     r.rpc03("tasks/resubscribe", `{"id":"`+id+`"}`),
		"unknown":         r.rpc03("tasks/resubscribe", `{"id":"no"}`),
		"message to it":   r.rpc03("message/send", strings.Replace(message03("x"), `"role"`, `"taskId":"`+id+`","role"`, 1)),
		"message to none": r.rpc03("message/send", strings.Replace(message03("x"), `"role"`, `"taskId":"no","role"`, 1)),
	} {
		want := map[string]any{"again": nil, "resubscribe": -32004.0, "unknown": -32001.0, "message to it": -32004.0, "message to none": -32001.0}[name]
		if a.status != 200 || a.header.Get("Content-Type") != "application/json" || a.path("error", "code") != want {
			t.Errorf("%s: %d %s, want %v", name, a.status, a.body, want)
		}
	}
	if n := r.do(get, "/agents/"+idA+"/tasks", "", good).path("totalSize"); n != 1.0 {
		t.Errorf("there are %v tasks", n)
	}
}

// TestSubscribe03 follows a task with every verb and binding of 0.3; only the
// last event is final, and the stream ends with it.
func TestSubscribe03(t *testing.T) {
	r := newRig(t, nil)
	id := r.running("sh:sleep 600")
	path := "/agents/" + idA + "/v1/tasks/" + id + ":subscribe"
	rpc := `{"jsonrpc":"2.0","id":"s","method":"tasks/resubscribe","params":{"id":"` + id + `"}}`
	streams := []*http.Response{
		r.open(get, path, "", old), r.open(post, path, "", old), r.open(get, strings.Replace(path, "/v1", "", 1), "", old),
		r.open(post, "/agents/"+idA+"/", rpc, old),
	}
	r.rpc("CancelTask", `{"id":"`+id+`"}`, good)
	for i, resp := range streams {
		if resp.Header.Get("X-A2A-Extensions") != extensions.Runtime || resp.Header.Get("A2A-Extensions") != extensions.Runtime {
			t.Errorf("stream %d does not echo the extension: %v", i, resp.Header)
		}
		var states []string
		var finals []bool
		r.frames(resp, func(f frame) bool {
			v := f.data["result"]
			if i < 3 {
				if v = f.data["statusUpdate"]; v == nil {
					v = f.data["task"]
				}
			} else if f.data["id"] != "s" || dig(v, "kind") != []any{"task", "status-update"}[min(len(states), 1)] {
				t.Errorf("frame %v", f.data)
			}
			s, _ := dig(v, "status", "state").(string)
			final, _ := dig(v, "final").(bool)
			states, finals = append(states, s), append(finals, final)
			return true
		})
		want := []string{"TASK_STATE_WORKING", "TASK_STATE_CANCELLED"}
		if i == 3 {
			want = []string{"working", "canceled"}
		}
		if !slices.Equal(states, want) || !slices.Equal(finals, []bool{false, true}) {
			t.Errorf("stream %d: %v %v", i, states, finals)
		}
	}
}

// TestExtensionIsRequired03: the rule of runtime/v1 holds in 0.3 too, and both
// names of the header are understood.
func TestExtensionIsRequired03(t *testing.T) {
	r := newRig(t, nil)
	rpc := `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"no"}}`
	for name, h := range map[string]map[string]string{
		"none": {}, "other": {"X-A2A-Extensions": extensions.AdapterCommand}, "version": {"A2A-Version": "0.3"},
	} {
		a, b := r.do(post, "/agents/"+idA, rpc, h), r.do(get, "/agents/"+idA+"/v1/tasks/no", "", h)
		if a.status != 400 || a.path("error", "code") != -32008.0 || b.status != 400 ||
			b.path("error", "details", 1, "reason") != "EXTENSION_REQUIRED" || b.path("error", "details", 1, "metadata", "uri") != extensions.Runtime {
			t.Errorf("%s: %s %s", name, a.body, b.body)
		}
	}
	for _, h := range []string{"A2A-Extensions", "X-A2A-Extensions"} {
		a := r.do(post, "/agents/"+idA, rpc, map[string]string{h: "https://a/e, " + extensions.Runtime})
		if a.path("error", "code") != -32001.0 || a.header.Get("X-A2A-Extensions") != extensions.Runtime || a.header.Get("A2A-Extensions") != extensions.Runtime {
			t.Errorf("%s: %v %s", h, a.header, a.body)
		}
	}
	if a := r.rpc("GetTask", `{"id":"no"}`, good); a.header.Get("X-A2A-Extensions") != "" {
		t.Error("1.0 is answered with the header of 0.3")
	}
}

// TestStrangersSeeNothing03 is TestStrangersSeeNothing by the ways of 0.3.
func TestStrangersSeeNothing03(t *testing.T) {
	r := newRig(t, nil)
	id := r.start("sh:sleep 600")
	ask := func(instance, id, user string) []answer {
		h := map[string]string{"X-A2A-Extensions": extensions.Runtime, "X-User": user}
		rpc := func(method, params string) answer {
			return r.do(post, "/agents/"+instance, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, h)
		}
		base := "/agents/" + instance + "/v1"
		named, follow := `{"id":"`+id+`"}`, strings.Replace(message03("x"), `"role"`, `"taskId":"`+id+`","role"`, 1)
		return []answer{
			rpc("tasks/get", named), rpc("tasks/cancel", named), rpc("tasks/resubscribe", named), rpc("message/send", follow), rpc("message/stream", follow),
			r.do(get, base+"/tasks/"+id, "", h), r.do(post, base+"/tasks/"+id+":cancel", "", h), r.do(get, base+"/tasks/"+id+":subscribe", "", h),
			r.do(post, base+"/message:send", follow, h), r.do(post, base+"/message:stream", follow, h),
		}
	}
	unknown := ask(idA, "no", "")
	for name, got := range map[string][]answer{"stranger": ask(idA, id, "bob"), "other machine": ask(idB, id, "")} {
		for i, a := range got {
			if a.status != unknown[i].status || string(a.body) != string(unknown[i].body) || !strings.Contains(string(a.body), "TASK_NOT_FOUND") {
				t.Errorf("%s, operation %d: %d %s, unlike %s", name, i, a.status, a.body, unknown[i].body)
			}
		}
	}
}

func TestPathsOfNobody(t *testing.T) {
	r := newRig(t, nil)
	base := "/agents/" + idA
	for _, path := range []string{ // with a tenant, which no interface has
		"/acme/tasks", "/acme/tasks/x", "/acme/extendedAgentCard", "/v1/acme/tasks", "/v2/tasks", "/v1", "/v1/", "/v1//tasks", "/v1/extendedAgentCard",
		"/tasks/", "/v1/tasks/", "/v1/tasks/x:verb",
	} {
		if a := r.do(get, base+path, "", good); a.status != 404 || a.path("error", "details", 0, "reason") != "RESOURCE_NOT_FOUND" {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	for _, path := range []string{"/acme/message:send", "/acme/message:stream", "/acme/tasks/x:cancel", "/acme/tasks/x:subscribe", "/v1/v1/message:send"} {
		if a := r.do(post, base+path, message("x"), good); a.status != 404 || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
			t.Errorf("POST %s: %d %s", path, a.status, a.body)
		}
	}
}

// TestBusyStreamOnRPC: a stream refused before its first event is an answer of
// its own binding.
func TestBusyStreamOnRPC(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.Limits.Streams = 1 })
	id := r.start("sh:sleep 600")
	first := r.open(get, "/agents/"+idA+"/tasks/"+id+":subscribe", "", good)
	for method, a := range map[string]answer{
		"1.0": r.rpc("SubscribeToTask", `{"id":"`+id+`"}`, good), "0.3": r.rpc03("tasks/resubscribe", `{"id":"`+id+`"}`),
	} {
		if a.status != 429 || a.path("error", "code") != -32029.0 || a.path("jsonrpc") != "2.0" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
	}
	r.frames(first, func(frame) bool { return false })
}

// FuzzBodies03 is FuzzBodies by the ways of 0.3.
func FuzzBodies03(f *testing.F) {
	for _, seed := range []string{
		message03("x"), messageREST03("x"), partsRPC, partsREST, `{"jsonrpc":"2.0","id":1,"method":"message/send","params":` + message03("x") + `}`,
		`{"jsonrpc":"2.0","id":1,"method":"message/stream","params":` + messageREST03("x") + `}`,
		`{"jsonrpc":"2.0","id":"a","method":"tasks/resubscribe","params":{"id":"x"}}`, `{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"x"}}`,
	} {
		f.Add([]byte(seed))
	}
	h, db := fuzzHandler(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"", "/v1/message:send", "/messages:stream", "/v1/tasks/x:cancel"} {
			w := serveAs(t, h, "/agents/"+idA+path, body, old)
			var v map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Fatalf("%s answers %d %q", path, w.Code, w.Body)
			}
			if v["error"] == nil || w.Code >= 500 && w.Code != 503 {
				t.Fatalf("%s answers %d %s", path, w.Code, w.Body)
			}
		}
		page, err := db.List(t.Context(), task.System(), task.Filter{InstanceID: idA, Limit: 1}, task.View{Inline: -1})
		if err != nil || page.Total != 0 {
			t.Fatalf("%d tasks, %v", page.Total, err)
		}
	})
}
