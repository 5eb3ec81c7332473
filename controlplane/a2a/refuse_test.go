package a2a_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func TestBrokenMessages(t *testing.T) {
	r := newRig(t, nil)
	part := func(p string) string {
		return `{"message":{"messageId":"m","role":"ROLE_USER","parts":[` + p + `]}}`
	}
	for body, field := range map[string]string{
		`{}`:               "message",
		`{"message":null}`: "message",
		`{"message":[]}`:   "message",
		`{"message":{"role":"ROLE_USER","parts":[{"text":"x"}]}}`:                                                "message.messageId",
		`{"message":{"messageId":"","role":"ROLE_USER","parts":[{"text":"x"}]}}`:                                 "message.messageId",
		`{"message":{"messageId":7,"role":"ROLE_USER","parts":[{"text":"x"}]}}`:                                  "message.messageId",
		`{"message":{"messageId":"a\nb","role":"ROLE_USER","parts":[{"text":"x"}]}}`:                             "message.messageId",
		`{"message":{"messageId":"` + strings.Repeat("x", 257) + `","role":"ROLE_USER","parts":[{"text":"x"}]}}`: "message.messageId",
		`{"message":{"messageId":"m","parts":[{"text":"x"}]}}`:                                                   "message.role",
		`{"message":{"messageId":"m","role":"BOGUS","parts":[{"text":"x"}]}}`:                                    "message.role",
		`{"message":{"messageId":"m","role":"user","parts":[{"text":"x"}]}}`:                                     "message.role",
		`{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"x"}]}}`:                               "message.role",
		`{"message":{"messageId":"m","role":"ROLE_USER"}}`:                                                       "message.parts",
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[]}}`:                                            "message.parts",
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":{}}}`:                                            "message.parts",
		part(`"x"`):                         "message.parts[0]",
		part(`{}`):                          "message.parts[0]",
		part(`{"text":"x","url":"y"}`):      "message.parts[0]",
		part(`{"text":"x"},{"kind":"x"}`):   "message.parts[1]",
		part(`{"text":7}`):                  "message.parts[0].text",
		part(`{"raw":"!!"}`):                "message.parts[0].raw",
		part(`{"text":"x","metadata":[]}`):  "message.parts[0].metadata",
		part(`{"text":"x","mediaType":{}}`): "message.parts[0].mediaType",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":{"historyLength":-1}}`:       "configuration.historyLength",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":{"historyLength":"x"}}`:      "configuration.historyLength",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":{"returnImmediately":"no"}}`: "configuration.returnImmediately",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"configuration":7}`:                          "configuration",
		strings.TrimSuffix(part(`{"text":"x"}`), "}") + `,"metadata":7}`:                               "metadata",
		part(`{"text":""}`): "message.parts",
		part(`{"text":"` + strings.Repeat("x", 64<<10) + `y"}`): "message.parts",
	} {
		for _, path := range []string{"/message:send", "/message:stream", "/messages:send"} {
			a := r.do(post, "/agents/"+idA+path, body, good)
			if a.status != 400 || a.path("error", "status") != "INVALID_ARGUMENT" || a.path("error", "details", 1, "fieldViolations", 0, "field") != field {
				t.Errorf("%s %.200s: %d %s, want a violation of %s", path, body, a.status, a.body, field)
			}
		}
		a := r.rpc("SendMessage", body, good)
		if a.status != 200 || a.path("error", "code") != -32602.0 || a.path("error", "data", 1, "fieldViolations", 0, "field") != field {
			t.Errorf("RPC %.200s: %d %s, want a violation of %s", body, a.status, a.body, field)
		}
	}
	a := r.do(post, "/agents/"+idA+"/message:send", part(`{"raw":"AAE"}`), good)
	if a.path("error", "details", 0, "reason") != "CONTENT_TYPE_NOT_SUPPORTED" {
		t.Errorf("bytes: %s", a.body)
	}
	if n := r.do(get, "/agents/"+idA+"/tasks", "", good).path("totalSize"); n != 0.0 {
		t.Errorf("%v tasks were made", n)
	}
	// Unknown members are ignored, snake_case is understood.
	a = r.do(post, "/agents/"+idA+"/message:send",
		`{"message":{"message_id":"m","role":"ROLE_USER","parts":[{"text":"x","kind":"text","new":1}],"new":{}},"tenant":null,"new":1}`, good)
	if a.path("task", "history", 0, "messageId") != "m" {
		t.Errorf("snake case: %d %s", a.status, a.body)
	}
}

func TestBrokenEnvelopeNamesTheRule(t *testing.T) {
	r := newRig(t, nil)
	send := func(envelope string) answer {
		body := `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"metadata":{"` + extensions.AdapterCommand + `":` + envelope + `}}}`
		return r.do(post, "/agents/"+idA+"/message:send", body, good)
	}
	a := send(`{"adapter":"sandbox-agent-runner","mode":"run","command":["node"],"timeout_seconds":901,"shell":true}`)
	var fields []string
	list, _ := a.path("error", "details", 1, "fieldViolations").([]any)
	for _, v := range list {
		fields = append(fields, fmt.Sprint(dig(v, "field")))
	}
	prefix := `message.metadata["` + extensions.AdapterCommand + `"].`
	want := fmt.Sprint([]string{prefix + `"shell"`, prefix + "mode", prefix + "command", prefix + "timeout_seconds"})
	if a.status != 400 || fmt.Sprint(fields) != want {
		t.Errorf("violations are %s, want %s: %s", fields, want, a.body)
	}
	if n := r.do(get, "/agents/"+idA+"/tasks", "", good).path("totalSize"); n != 0.0 {
		t.Errorf("%v tasks were made", n)
	}
	host := r.do(post, "/agents/"+idHost+"/message:send",
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"metadata":{"`+extensions.AdapterCommand+`":{}}}}`, good)
	if host.path("error", "details", 0, "reason") != "UNSUPPORTED_OPERATION" {
		t.Errorf("a machine without the runner: %s", host.body)
	}
}

func TestBrokenRPC(t *testing.T) {
	r := newRig(t, nil)
	for body, code := range map[string]float64{
		``:                                    -32700,
		`{`:                                   -32700,
		`nonsense`:                            -32700,
		`[]`:                                  -32600,
		`[{"jsonrpc":"2.0"}]`:                 -32600,
		`7`:                                   -32600,
		`null`:                                -32600,
		`{}`:                                  -32600,
		`{"jsonrpc":"2.0","method":"x"}`:      -32600,
		`{"jsonrpc":"2.0","id":null}`:         -32600,
		`{"jsonrpc":"2.0","id":{}}`:           -32600,
		`{"jsonrpc":"1.0","id":1}`:            -32600,
		`{"jsonrpc":"2.0","id":1}`:            -32600,
		`{"jsonrpc":"2.0","id":1,"method":1}`: -32600,
		`{"jsonrpc":"2.0","id":1,"method":"Nope"}`:                                         -32601,
		`{"jsonrpc":"2.0","id":1,"method":"message/send"}`:                                 -32601,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}`:                          -32602,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":"x"}`:                         -32602,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":1}}`:                    -32602,
		`{"jsonrpc":"2.0","id":1,"method":"GetTask"}`:                                      -32001,
		`{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}`:                         -32004,
		`{"jsonrpc":"2.0","id":1,"method":"CreateTaskPushNotificationConfig","params":{}}`: -32003,
	} {
		a := r.do(post, "/agents/"+idA, body, good)
		if a.status != 200 || a.path("error", "code") != code || a.path("jsonrpc") != "2.0" || a.path("error", "data", 0, "reason") == nil ||
			a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s, want %v", body, a.status, a.body, code)
		}
		if a.header.Get("A2A-Extensions") == "" {
			t.Errorf("%s: the extension is not echoed", body)
		}
	}
}

func TestEveryAnswerIsJSON(t *testing.T) {
	r := newRig(t, nil)
	base := "/agents/" + idA
	for _, c := range []struct {
		method, path, body string
		header             map[string]string
		status             int
	}{
		{get, base, "", good, 405},
		{http.MethodPut, base + "/message:send", "", good, 405},
		{post, base + "/.well-known/agent-card.json", "", good, 405},
		{http.MethodDelete, base + "/tasks/x", "", good, 405},
		{get, base + "/tasks/x:cancel", "", good, 405},
		{get, base + "/nothing", "", good, 404},
		{get, base + "/tasks/x:verb", "", good, 404},
		{get, base + "//tasks", "", good, 404},
		{get, base + "/tasks/../tasks", "", good, 404},
		{get, "/agents/no-id/tasks", "", good, 404},
		{get, "/agents/" + strings.ToUpper(idHost) + "/.well-known/agent-card.json", "", nil, 404},
		{get, "/agents/01900000-0000-7000-8000-0000000000ff/.well-known/agent-card.json", "", nil, 404},
		{post, "/agents/01900000-0000-7000-8000-0000000000ff", `{"jsonrpc":"2.0","id":1,"method":"GetTask"}`, good, 404},
		{get, "/", "", nil, 404},
		{post, base + "/message:send", "{", good, 400},
		{post, base + "/message:send", "", good, 400},
		{post, base + "/message:send", message("x"), with(map[string]string{"Content-Type": "text/plain"}), 400},
		{post, base + "/message:send", message("x"), with(map[string]string{"Content-Type": "application/x-www-form-urlencoded"}), 400},
		{post, base + "/tasks/x/pushNotificationConfigs", "{}", good, 400},
		{http.MethodDelete, base + "/tasks/x/pushNotificationConfigs/y", "", good, 400},
		{get, base + "/extendedAgentCard", "", good, 400},
	} {
		a := r.do(c.method, c.path, c.body, c.header)
		if a.status != c.status || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") || a.path("error", "message") == nil {
			t.Errorf("%s %s: %d %v %s, want %d", c.method, c.path, a.status, a.header, a.body, c.status)
		}
		if (a.header.Get("Allow") != "") != (a.status == 405) {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, a.header.Get("Allow"))
		}
	}
	for _, h := range []map[string]string{{"Content-Type": "application/a2a+json"}, {"Accept": "application/a2a+json"}} {
		a := r.do(post, base+"/message:send", message("x"), with(h))
		if a.status != 200 || a.header.Get("Content-Type") != "application/a2a+json" {
			t.Errorf("%v: %d %v", h, a.status, a.header)
		}
	}
}

func TestPushIsRefused(t *testing.T) {
	r := newRig(t, nil)
	body := strings.TrimSuffix(message("x"), "}") + `,"configuration":{"taskPushNotificationConfig":{"url":"https://example.org"}}}`
	if a := r.do(post, "/agents/"+idA+"/message:send", body, good); a.path("error", "details", 0, "reason") != "PUSH_NOTIFICATION_NOT_SUPPORTED" {
		t.Errorf("%s", a.body)
	}
}

// FuzzBodies: whatever is sent, the answer is JSON of the right form and no
// task is made of what is not one message.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		message("x"), `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + message("x") + `}`,
		`{"jsonrpc":"2.0","id":"a","method":"GetTask","params":{"id":"x","historyLength":"3"}}`,
		`{"jsonrpc":"2.0","id":1e9,"method":"ListTasks","params":{"pageToken":"MTcgYQ"}}`, `[`, `{"message":{"parts":[{"data":null}]}}`,
	} {
		f.Add([]byte(seed))
	}
	h, db := fuzzHandler(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"", "/message:send", "/message:stream", "/tasks/x:cancel"} {
			w := serve(t, h, "/agents/"+idA+path, body)
			var v map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Fatalf("%s answers %d %q", path, w.Code, w.Body)
			}
			failed := v["error"] != nil
			if !failed && path != "" || w.Code >= 500 && w.Code != 503 {
				t.Fatalf("%s answers %d %s", path, w.Code, w.Body)
			}
		}
		page, err := db.List(t.Context(), task.System(), task.Filter{InstanceID: idA, Limit: 1}, task.View{Inline: -1})
		if err != nil || page.Total != 0 {
			t.Fatalf("%d tasks, %v", page.Total, err)
		}
	})
}
