package a2a_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// TestNumbersNobodyElseReads: a number beyond a double is refused, on both
// bindings and wherever it stands, and nothing of it is kept.
func TestNumbersNobodyElseReads(t *testing.T) {
	r := newRig(t, nil)
	for field, more := range map[string]string{
		"message.metadata.m":               `"metadata":{"m":1e999}`,
		`message.metadata["a b"][1].c_d`:   `"metadata":{"a b":[1,{"c_d":-1e400}]}`,
		"message.metadata.n":               `"metadata":{"n":1` + strings.Repeat("0", 400) + `}`,
		"message.metadata[\"\\u003c\\n\"]": `"metadata":{"\u003c\n":1e309}`,
	} {
		body := strings.Replace(message("x"), `"messageId"`, more+`,"messageId"`, 1)
		if field == "message.metadata[\"\\u003c\\n\"]" {
			field = `message.metadata["<\n"]`
		}
		rest := r.do(http.MethodPost, "/agents/"+idA+"/message:send", body, good)
		if rest.status != http.StatusBadRequest || rest.path("error", "details", 1, "fieldViolations", 0, "field") != field {
			t.Errorf("%s: %d %s", field, rest.status, rest.body)
		}
		rpc := r.rpc("SendMessage", body, good)
		if rpc.path("error", "code") != -32602.0 || rpc.path("id") != 7.0 || rpc.path("error", "data", 1, "fieldViolations", 0, "field") != field {
			t.Errorf("%s: %s", field, rpc.body)
		}
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1e999,"method":"ListTasks"}`, `{"jsonrpc":"2.0","id":1,"method":"ListTasks","more":1e999}`,
	} {
		if a := r.do(http.MethodPost, "/agents/"+idA, body, good); a.path("error", "code") == nil || strings.Contains(string(a.body), `"id":1e999`) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	if list := r.do(http.MethodGet, "/agents/"+idA+"/tasks", "", good); list.path("totalSize") != 0. {
		t.Errorf("a task was made: %s", list.body)
	}
}

// TestWebhookTooManyDeliversNothing: a message to a task whose webhook finds no
// room is refused before it is delivered, and taken with one that replaces.
func TestWebhookTooManyDeliversNothing(t *testing.T) {
	fakeNode(t, `printf 'Continue? [y/N] '; read a; echo "got <$a>"`)
	r := newPushRig(t)
	url, _ := webhook(t)
	id, e := r.asks()
	configs := "/agents/" + idA + "/tasks/" + id + "/pushNotificationConfigs"
	for i := range 4 { // as many as the rig lets a task have
		if a := r.do(http.MethodPost, configs, fmt.Sprintf(`{"id":"c%d","url":%q}`, i, url), good); a.status != http.StatusOK {
			t.Fatalf("create answers %d %s", a.status, a.body)
		}
	}
	reply := func(config string) answer {
		return r.sendHITL(strings.TrimSuffix(replyMessage(id, e.PromptID, `{"text":"y"}`), "}") +
			`,"configuration":{"taskPushNotificationConfig":{` + config + `"url":"` + url + `"}}}`)
	}
	for _, config := range []string{"", `"id":"other",`} {
		if a := reply(config); a.status != http.StatusTooManyRequests {
			t.Fatalf("with %s: %d %s", config, a.status, a.body)
		}
		now := r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+id, "", good)
		if _, same := r.envelope(now.json); same.PromptID != e.PromptID {
			t.Errorf("the reply that was refused was delivered: %s", now.body)
		}
	}
	if a := reply(`"id":"c1",`); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("with one that replaces: %d %s", a.status, a.body)
	}
}

// TestReplyStandsAlone: an answer to a prompt is for a task, and is no command.
func TestReplyStandsAlone(t *testing.T) {
	r := hitlRig(t, askOnce)
	id, e := r.asks()
	reply := replyMessage(id, e.PromptID, `{"text":"y"}`)
	envelope := `"` + extensions.AdapterCommand + `":` + fmt.Sprintf(hitlCommand, "")
	for name, c := range map[string]struct{ body, field string }{
		"no task":        {strings.Replace(reply, `"taskId":"`+id+`",`, "", 1), "message.taskId"},
		"an empty task":  {strings.Replace(reply, `"taskId":"`+id+`"`, `"taskId":""`, 1), "message.taskId"},
		"and a command":  {strings.Replace(reply, `"metadata":{`, `"metadata":{`+envelope+`,`, 1), "message.metadata"},
		"one beside it":  {strings.Replace(reply, `{"message"`, `{"metadata":{`+envelope+`},"message"`, 1), "message.metadata"},
		"one of another": {strings.Replace(reply, `"metadata":{`, `"metadata":{"adapter-command/v2":{},`, 1), "message.metadata"},
	} {
		a := r.sendHITL(c.body)
		if a.status != http.StatusBadRequest || a.path("error", "details", 1, "fieldViolations", 0, "field") != c.field {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if list := r.do(http.MethodGet, "/agents/"+idA+"/tasks", "", good); list.path("totalSize") != 1. {
		t.Errorf("a task was made: %s", list.body)
	}
	if a := r.sendHITL(reply); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("the reply: %d %s", a.status, a.body)
	}
}

// TestReplayFollowsPolicy: what was answered while the caller might see the
// host does not show it once the caller may not, nor may a stream's beginning.
func TestReplayFollowsPolicy(t *testing.T) {
	var hidden atomic.Bool
	r := onceRig(t, func(c *a2a.Config, _ *engine.Config) {
		caller := c.Caller
		c.Caller = func(ctx context.Context) a2a.Caller { x := caller(ctx); x.SeesHost = !hidden.Load(); return x }
	})
	streamed := func() (first any) {
		r.frames(r.open(post, "/agents/"+idA+"/message:stream", onceMessage(msgB, "y"), onceHeader), func(f frame) bool {
			if f.data["task"] != nil {
				first = dig(f.data, "task", "metadata")
			}
			return true
		})
		return first
	}
	sent := func() any { return r.once("/message:send", onceMessage(msgA, "x")).path("task", "metadata") }
	for _, hide := range []bool{false, true, false} {
		hidden.Store(hide)
		want := any("host-1")
		if hide {
			want = nil
		}
		for name, m := range map[string]any{"sent": sent(), "streamed": streamed()} {
			if dig(m, "runtime.instance_id") != idA || dig(m, "runtime.host") != want {
				t.Errorf("hidden %t: %s: metadata is %v", hide, name, m)
			}
		}
	}
}

// TestBothSpellings: a member by both its names is refused, whatever the values.
func TestBothSpellings(t *testing.T) {
	r := newRig(t, nil)
	old := with(map[string]string{"A2A-Version": "0.3"})
	for _, c := range []struct{ more, field string }{
		{`"contextId":"B","context_id":"A"`, "message.contextId"},
		{`"contextId":null,"context_id":"A"`, "message.contextId"},
		{`"context_id":"A","contextId":null`, "message.contextId"},
		{`"message_id":"m1"`, "message.messageId"},
	} {
		body := strings.Replace(message("x"), `"messageId"`, c.more+`,"messageId"`, 1)
		for _, h := range []map[string]string{good, old} {
			a := r.do(post, "/agents/"+idA+"/message:send", body, h)
			if a.status != http.StatusBadRequest || a.path("error", "details", 1, "fieldViolations", 0, "field") != c.field ||
				a.path("error", "details", 1, "fieldViolations", 1) != nil {
				t.Errorf("%s: %d %s", c.more, a.status, a.body)
			}
		}
	}
	if a := r.rpc("ListTasks", `{"pageSize":5,"page_size":6}`, good); a.path("error", "data", 1, "fieldViolations", 0, "field") != "pageSize" ||
		a.path("error", "data", 1, "fieldViolations", 1) != nil {
		t.Errorf("params: %s", a.body)
	}
	a := r.do(http.MethodGet, "/agents/"+idA+"/tasks?contextId=A&context_id=A", "", good)
	if a.status != http.StatusBadRequest || a.path("error", "details", 1, "fieldViolations", 0, "field") != "contextId" {
		t.Errorf("query: %d %s", a.status, a.body)
	}
	for _, query := range []string{"?context_id=A&page_size=5", "?contextId=A&pageSize=5", ""} {
		if a := r.do(http.MethodGet, "/agents/"+idA+"/tasks"+query, "", good); a.path("totalSize") != 0. {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
}

// TestPluralPaths: messages:send and messages:stream are those of message, in
// both versions.
func TestPluralPaths(t *testing.T) {
	r := newRig(t, nil)
	old := `{"message":{"messageId":"m1","role":"ROLE_USER","content":[{"text":"x"}]},"configuration":{"blocking":true}}`
	for path, body := range map[string]string{"/messages:": message("x"), "/v1/messages:": old} {
		h := good
		if strings.HasPrefix(path, "/v1") {
			h = with(map[string]string{"A2A-Version": "0.3"})
		}
		if a := r.do(post, "/agents/"+idA+path+"send", body, h); a.status != http.StatusOK || a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
			t.Errorf("%ssend: %d %s", path, a.status, a.body)
		}
		events := 0
		r.frames(r.open(post, "/agents/"+idA+path+"stream", body, h), func(frame) bool { events++; return true })
		if events < 2 {
			t.Errorf("%sstream has %d events", path, events)
		}
	}
}
