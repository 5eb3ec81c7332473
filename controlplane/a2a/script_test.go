package a2a_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/scripted"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// newScripted is a rig whose machines take scripted messages.
func newScripted(t *testing.T, change ...func(*a2a.Config, *engine.Config)) *rig {
	t.Helper()
	return newRig(t, func(c *a2a.Config, e *engine.Config) {
		for _, f := range change {
			f(c, e)
		}
		all := instances{}
		for id, a := range agents() {
			a.Runners = append(slices.Clone(a.Runners), scripted.Name)
			all[id] = a
		}
		c.Instances = all
		e.Runners = append([]runner.Runner{scripted.Runner{}}, e.Runners...)
	})
}

// dialect is one way to speak to an agent.
type dialect struct {
	name string
	// send sends a message and returns what is answered, without the names of
	// the binding.
	message func(id, task string) string
	path    [2]string // of send and stream; the same on JSON-RPC
	method  [2]string // of JSON-RPC
	header  map[string]string
}

func dialects() []dialect {
	new1 := func(id, task string) string {
		return `{"message":{"messageId":"` + id + `","taskId":"` + task + `","role":"ROLE_USER","parts":[{"text":"x"}]}}`
	}
	old1 := func(id, task string) string {
		return `{"message":{"kind":"message","messageId":"` + id + `","taskId":"` + task + `","role":"user","parts":[{"kind":"text","text":"x"}]}}`
	}
	oldREST := func(id, task string) string {
		return `{"message":{"messageId":"` + id + `","taskId":"` + task + `","role":"ROLE_USER","content":[{"text":"x"}]}}`
	}
	const base = "/agents/" + idA
	return []dialect{
		{"REST", new1, [2]string{base + "/message:send", base + "/message:stream"}, [2]string{}, good},
		{"JSON-RPC", new1, [2]string{base, base}, [2]string{"SendMessage", "SendStreamingMessage"}, good},
		{"REST 0.3", oldREST, [2]string{base + "/v1/message:send", base + "/v1/message:stream"}, [2]string{}, old},
		{"JSON-RPC 0.3", old1, [2]string{base, base}, [2]string{"message/send", "message/stream"}, old},
	}
}

func (d dialect) body(i int, id, task string) string {
	body := strings.Replace(d.message(id, task), `"taskId":"",`, "", 1)
	if d.method[i] != "" {
		body = `{"jsonrpc":"2.0","id":1,"method":"` + d.method[i] + `","params":` + body + `}`
	}
	return body
}

// open takes the object out of an answer or a frame, and the name it has: the
// member's, or its kind.
func (d dialect) open(v map[string]any) (string, map[string]any) {
	if d.method[0] != "" {
		result, ok := v["result"].(map[string]any)
		if !ok {
			return "error", v
		}
		v = result
	}
	if kind, ok := v["kind"].(string); ok {
		return kind, v
	}
	for name, o := range v {
		if m, ok := o.(map[string]any); ok {
			return name, m
		}
	}
	return "", v
}

func (d dialect) send(r *rig, id, task string) (string, map[string]any) {
	r.t.Helper()
	a := r.do(post, d.path[0], d.body(0, id, task), d.header)
	return d.open(a.json)
}

type told struct {
	name string
	body map[string]any
}

func (d dialect) stream(r *rig, id, task string) []told {
	r.t.Helper()
	var all []told
	r.frames(r.open(post, d.path[1], d.body(1, id, task), d.header), func(f frame) bool {
		name, body := d.open(f.data)
		all = append(all, told{name, body})
		return true
	})
	return all
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestDirectMessage: a message is answered by a message, and no task is made.
func TestDirectMessage(t *testing.T) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			r := newScripted(t)
			parts := "parts"
			if d.name == "REST 0.3" {
				parts = "content"
			}
			check := func(name string, m map[string]any) {
				t.Helper()
				role := strings.ToLower(strings.TrimPrefix(fmt.Sprint(m["role"]), "ROLE_"))
				if name != "message" || dig(m, parts, 0, "text") != "Direct message response" || role != "agent" ||
					m["messageId"] == "" || m["contextId"] == "" || m["taskId"] != nil {
					t.Errorf("%s %s", name, compact(m))
				}
			}
			check(d.send(r, "tck-message-response-1", ""))
			all := d.stream(r, "tck-message-response-1", "")
			if len(all) != 1 {
				t.Fatalf("the stream has %d events", len(all))
			}
			check(all[0].name, all[0].body)
			r.frames(r.open(post, d.path[1], d.body(1, "tck-message-response-1", ""), d.header), func(f frame) bool {
				if f.id != "" {
					t.Errorf("the message has the place %q in a log", f.id)
				}
				return true
			})
			if a := r.do(get, "/agents/"+idA+"/tasks", "", good); a.path("totalSize") != 0.0 {
				t.Errorf("tasks were made: %s", a.body)
			}
		})
	}
}

// answers replies to a message whose metadata says so.
type answers struct{}

func (answers) Name() string                 { return "shell" } // allowed by the agents of the rig
func (answers) Claims(r runner.Request) bool { return r.Message.Metadata["reply"] != nil }
func (answers) Prepare(runner.Request) (*runner.Command, error) {
	return &runner.Command{Script: &runner.Script{Reply: []task.Part{task.TextPart("hi")}}}, nil
}

// TestDirectMessageOnce: with idempotency/v1 a message that is sent again, as a
// stream too, is answered by the very same message.
func TestDirectMessageOnce(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, e *engine.Config) {
		e.Runners = append([]runner.Runner{answers{}}, e.Runners...)
		c.Reservations = e.Journal.(*sqlite.DB).Idempotency()
	})
	once := with(map[string]string{"A2A-Extensions": extensions.Runtime + "," + extensions.Idempotency})
	for _, first := range []string{"send", "stream"} {
		id, err := uuid.NewV7()
		if err != nil {
			t.Fatal(err)
		}
		body := `{"message":{"messageId":"` + id.String() + `","role":"ROLE_USER","parts":[{"text":"x"}],"metadata":{"reply":1}}}`
		var ids []any
		for i, how := range []string{first, "send", "stream"} {
			var m any
			var replayed string
			if how == "send" {
				a := r.do(post, "/agents/"+idA+"/message:send", body, once)
				m, replayed = a.path("message", "messageId"), a.header.Get("Idempotent-Replayed")
			} else {
				resp := r.open(post, "/agents/"+idA+"/message:stream", body, once)
				replayed = resp.Header.Get("Idempotent-Replayed")
				r.frames(resp, func(f frame) bool {
					m = dig(f.data, "message", "messageId")
					return true
				})
			}
			if ids = append(ids, m); m == nil || m != ids[0] || (replayed == "true") != (i > 0) {
				t.Errorf("%s first, %s then: messages %q, replayed %q", first, how, ids, replayed)
			}
		}
	}
}

// TestFollowUpAfterDeath finds what a process left that died with a message to
// a waiting task in its hands: before the task went on with it, and after.
func TestFollowUpAfterDeath(t *testing.T) {
	r := newScripted(t, func(c *a2a.Config, e *engine.Config) { c.Reservations = e.Journal.(*sqlite.DB).Idempotency() })
	once := with(map[string]string{"A2A-Extensions": extensions.Runtime + "," + extensions.Idempotency})
	for _, taken := range []bool{false, true} {
		asked := r.do(post, "/agents/"+idA+"/message:send",
			`{"message":{"messageId":"tck-input-required","role":"ROLE_USER","parts":[{"text":"x"}]}}`, good)
		id, _ := asked.path("task", "id").(string)
		msg := map[bool]string{false: msgA, true: msgB}[taken]
		body := `{"message":{"messageId":"` + msg + `","taskId":"` + id + `","role":"ROLE_USER","parts":[{"text":"x"}]}}`
		_, hash, err := idempotency.Fingerprint([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.db.Idempotency().Reserve(t.Context(), idempotency.Key{Principal: "alice", Instance: idA, MessageID: msg},
			idempotency.Reservation{Hash: hash, TaskID: "018fc0a2-7777-7aaa-8bbb-0000000000ff"}, time.Now(),
			idempotency.Bounds{TTL: time.Hour, Entries: 10})
		if err != nil {
			t.Fatal(err)
		}
		if taken { // what the other process did
			r.do(post, "/agents/"+idA+"/message:send", body, good)
		}
		for i := range 2 {
			a := r.do(post, "/agents/"+idA+"/message:send", body, once)
			history, _ := a.path("task", "history").([]any)
			if a.path("task", "status", "state") != "TASK_STATE_COMPLETED" || len(history) != 3 ||
				(a.header.Get(replayed) == "true") != (taken || i > 0) {
				t.Errorf("taken %v, try %d: %d %s, replayed %q", taken, i, a.status, a.body, a.header.Get(replayed))
			}
		}
	}
}

// TestInputRequired: the round trip of a task that waits for a message.
func TestInputRequired(t *testing.T) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			r := newScripted(t)
			state := func(v map[string]any) string {
				s := fmt.Sprint(dig(v, "status", "state"))
				return strings.ReplaceAll(strings.ToUpper(strings.TrimPrefix(s, "TASK_STATE_")), "-", "_")
			}
			name, tk := d.send(r, "tck-input-required-1", "")
			id, _ := tk["id"].(string)
			if name != "task" || state(tk) != "INPUT_REQUIRED" || dig(tk, "status", "message") == nil {
				t.Fatalf("%s %s", name, compact(tk))
			}
			// A message that asks again, one that streams on, and one too late.
			if name, tk = d.send(r, "tck-auth-required-1", id); name != "task" || tk["id"] != id || state(tk) != "AUTH_REQUIRED" {
				t.Fatalf("%s %s", name, compact(tk))
			}
			all := d.stream(r, "tck-stream-artifact-chunked-1", id)
			last := all[len(all)-1]
			if all[0].name != "task" || all[0].body["id"] != id || state(last.body) != "COMPLETED" {
				t.Errorf("the stream is %s", compact(all))
			}
			got := r.do(get, "/agents/"+idA+"/tasks/"+id, "", good)
			history, _ := got.path("history").([]any)
			if len(history) != 5 || got.path("status", "state") != "TASK_STATE_COMPLETED" || got.path("artifacts", 0, "parts", 1, "text") != "chunk-2" {
				t.Errorf("the task is %s", got.body)
			}
			a := r.do(post, d.path[0], d.body(0, "tck-complete-task-1", id), d.header)
			if !strings.Contains(string(a.body), "UNSUPPORTED_OPERATION") && !strings.Contains(string(a.body), "-32004") {
				t.Errorf("a message after the end: %d %s", a.status, a.body)
			}
		})
	}
}

// TestFollowUpRefused: messages to tasks that do not wait, or are not there.
func TestFollowUpRefused(t *testing.T) {
	r := newScripted(t)
	send := func(id, task, more string, header map[string]string) answer {
		t.Helper()
		return r.do(post, "/agents/"+idA+"/message:send",
			`{"message":{"messageId":"`+id+`","taskId":"`+task+`",`+more+`"role":"ROLE_USER","parts":[{"text":"x"}]}}`, header)
	}
	id := r.start("sh:sleep 600")
	if a := send("m", id, "", good); a.status != http.StatusBadRequest || a.path("error", "details", 0, "reason") != "UNSUPPORTED_OPERATION" {
		t.Errorf("to a command that runs: %d %s", a.status, a.body)
	}
	body := `{"message":{"messageId":"tck-input-required","role":"ROLE_USER","parts":[{"text":"x"}]}}`
	id, _ = r.do(post, "/agents/"+idA+"/message:send", body, good).path("task", "id").(string)
	for name, c := range map[string]struct {
		a    answer
		code int
	}{
		"of somebody else": {send("tck-complete-task", id, "", with(map[string]string{"X-User": "bob"})), http.StatusNotFound},
		"in a context":     {send("tck-complete-task", id, `"contextId":"other",`, good), http.StatusBadRequest},
		"with a message":   {send("tck-message-response", id, "", good), http.StatusBadRequest},
		"that is not":      {send("tck-complete-task", "no", "", good), http.StatusNotFound},
	} {
		if c.a.status != c.code {
			t.Errorf("%s: %d %s", name, c.a.status, c.a.body)
		}
	}
	if a := send("no prefix is needed", id, "", good); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("then it waited no more: %d %s", a.status, a.body)
	}
}

// TestSubscribeToWaiting: who subscribes to a task that waits sees it go on.
func TestSubscribeToWaiting(t *testing.T) {
	r := newScripted(t)
	body := `{"message":{"messageId":"tck-input-required","role":"ROLE_USER","parts":[{"text":"x"}]}}`
	id, _ := r.do(post, "/agents/"+idA+"/message:send", body, good).path("task", "id").(string)
	var c collected
	r.frames(r.open(get, "/agents/"+idA+"/tasks/"+id+":subscribe", "", good), func(f frame) bool {
		if c.add(f); c.frames == 1 {
			follow := `{"message":{"messageId":"tck-artifact-text","taskId":"` + id + `","role":"ROLE_USER","parts":[{"text":"x"}]}}`
			if a := r.do(post, "/agents/"+idA+"/message:send", follow, good); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		return true
	})
	want := []string{"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"}
	if !slices.Equal(c.states, want) || c.out["text"] != "Generated text content" {
		t.Errorf("it went through %q with %q", c.states, c.out)
	}
}

// TestArtifactKinds: every kind of content, in the task and in the stream.
func TestArtifactKinds(t *testing.T) {
	const raw = "R2VuZXJhdGVkIGZpbGUgY29udGVudAo="
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			r := newScripted(t)
			want := map[string]string{
				"tck-artifact-text":     `[{"text":"Generated text content"}]`,
				"tck-artifact-file":     `[{"filename":"output.txt","mediaType":"text/plain","raw":"` + raw + `"}]`,
				"tck-artifact-file-url": `[{"filename":"output.txt","mediaType":"text/plain","url":"https://example.com/output.txt"}]`,
				"tck-artifact-data":     `[{"data":{"count":42,"key":"value"}}]`,
			}
			switch d.name {
			case "JSON-RPC 0.3":
				want = map[string]string{
					"tck-artifact-text":     `[{"kind":"text","text":"Generated text content"}]`,
					"tck-artifact-file":     `[{"file":{"bytes":"` + raw + `","mimeType":"text/plain","name":"output.txt"},"kind":"file"}]`,
					"tck-artifact-file-url": `[{"file":{"mimeType":"text/plain","name":"output.txt","uri":"https://example.com/output.txt"},"kind":"file"}]`,
					"tck-artifact-data":     `[{"data":{"count":42,"key":"value"},"kind":"data"}]`,
				}
			case "REST 0.3":
				want["tck-artifact-file"] = `[{"file":{"fileWithBytes":"` + raw + `","mimeType":"text/plain","name":"output.txt"}}]`
				want["tck-artifact-file-url"] = `[{"file":{"fileWithUri":"https://example.com/output.txt","mimeType":"text/plain","name":"output.txt"}}]`
				want["tck-artifact-data"] = `[{"data":{"data":{"count":42,"key":"value"}}}]`
			}
			for id, parts := range want {
				name, tk := d.send(r, id+"-1", "")
				if got := compact(dig(tk, "artifacts", 0, "parts")); name != "task" || got != parts {
					t.Errorf("%s: the task has %s, want %s", id, got, parts)
				}
				found := false
				for _, e := range d.stream(r, id+"-1", "") {
					if a, ok := e.body["artifact"]; ok {
						found = true
						if got := compact(dig(a, "parts")); got != parts || e.body["append"] != false || e.body["lastChunk"] != true {
							t.Errorf("%s: the stream has %s, want %s", id, compact(e.body), parts)
						}
					}
				}
				if !found {
					t.Errorf("%s: the stream has no artifact", id)
				}
			}
		})
	}
}

// TestChunkedStream: the order of a stream, and of the chunks in it.
func TestChunkedStream(t *testing.T) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			var got []string
			for i, e := range d.stream(newScripted(t), "tck-stream-artifact-chunked-1", "") {
				switch {
				case i == 0:
					got = append(got, e.name)
				case e.body["artifact"] != nil:
					got = append(got, fmt.Sprint(dig(e.body, "artifact", "parts", 0, "text"), " ", e.body["append"], " ", e.body["lastChunk"]))
				default:
					s := strings.TrimPrefix(fmt.Sprint(dig(e.body, "status", "state")), "TASK_STATE_")
					got = append(got, strings.ToUpper(s))
				}
			}
			want := []string{"task", "WORKING", "chunk-1  false false", "chunk-2 true true", "COMPLETED"}
			if !slices.Equal(got, want) {
				t.Errorf("the stream is %q, want %q", got, want)
			}
		})
	}
}

// TestScriptedEnds: the states that end a task, and a long task that is
// cancelled.
func TestScriptedEnds(t *testing.T) {
	r := newScripted(t)
	for id, want := range map[string]string{
		"tck-complete-task": "COMPLETED", "tck-reject-task": "REJECTED", "tck-fail-task": "FAILED", "tck-": "COMPLETED",
	} {
		body := `{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"x"}]}}`
		if a := r.do(post, "/agents/"+idA+"/message:send", body, good); a.path("task", "status", "state") != "TASK_STATE_"+want {
			t.Errorf("%s: %s", id, a.body)
		}
	}
	body := `{"message":{"messageId":"test-resubscribe-message-id-1","role":"ROLE_USER","parts":[{"text":"x"}]},"configuration":{"returnImmediately":true}}`
	id, _ := r.do(post, "/agents/"+idA+"/message:send", body, good).path("task", "id").(string)
	if a := r.do(post, "/agents/"+idA+"/tasks/"+id+":cancel", "", good); a.path("status", "state") != "TASK_STATE_CANCELED" {
		t.Errorf("cancel: %s", a.body)
	}
	if n := r.guest.Starts(); n != 0 {
		t.Errorf("%d commands were started", n)
	}
}

// TestNothingRequired: every extension is offered and none is required.
func TestNothingRequired(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) { c.NothingRequired = true })
	plain := with(map[string]string{"A2A-Extensions": ""})
	if a := r.do(post, "/agents/"+idA+"/message:send", message("hi"), plain); a.status != http.StatusOK || a.header.Get("A2A-Extensions") != "" {
		t.Errorf("send: %d %s", a.status, a.body)
	}
	card := r.do(get, "/agents/"+idA+"/.well-known/agent-card.json", "", nil)
	if !strings.Contains(string(card.body), extensions.Runtime) || strings.Contains(string(card.body), `"required":true`) {
		t.Errorf("the card is %s", card.body)
	}
	if a := r.send("hi"); a.header.Get("A2A-Extensions") != extensions.Runtime {
		t.Errorf("an extension that is asked for is not active: %v", a.header)
	}
}
