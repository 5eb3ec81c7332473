package a2a_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// fakeNode makes the adapter command run a shell script instead of node.
func fakeNode(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "node"), []byte("#!/bin/sh\n"+script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func hitlRig(t *testing.T, script string) *rig {
	t.Helper()
	fakeNode(t, script)
	return newRig(t, func(_ *a2a.Config, c *engine.Config) { c.PromptQuiet = 50 * time.Millisecond })
}

var hitlHeader = with(map[string]string{
	"A2A-Extensions": extensions.Runtime + ", " + extensions.AdapterCommand + ", " + extensions.HITLPrompt,
})

const hitlCommand = `{"adapter":"sandbox-agent-runner","mode":"plan","timeout_seconds":120,` +
	`"command":["node",".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs","--request",".aiwg/ops/runs/r.json"]%s}`

func hitlMessage(more string) string {
	return `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"Run."}],"metadata":{"` + extensions.AdapterCommand + `":` +
		fmt.Sprintf(hitlCommand, more) + `}}}`
}

const textLine = `,"input_mode":"text-line"`

// replyMessage answers a prompt. Payload is JSON.
func replyMessage(taskID, promptID, payload string) string {
	return `{"message":{"messageId":"r1","role":"ROLE_USER","taskId":"` + taskID + `","parts":[{"text":"reply"}],` +
		`"metadata":{"hitl_response_for":{"prompt_id":"` + promptID + `","payload":` + payload + `}}}}`
}

func (r *rig) sendHITL(body string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, "/agents/"+idA+"/message:send", body, hitlHeader)
}

// asks starts a command that asks and returns its task and envelope.
func (r *rig) asks() (taskID string, e prompt.Envelope) {
	r.t.Helper()
	a := r.sendHITL(hitlMessage(textLine))
	return r.envelope(a.json["task"])
}

func (r *rig) envelope(t any) (taskID string, e prompt.Envelope) {
	r.t.Helper()
	taskID, _ = dig(t, "id").(string)
	if state := dig(t, "status", "state"); state != "TASK_STATE_INPUT_REQUIRED" {
		r.t.Fatalf("the task asks nothing: %v", t)
	}
	raw, err := json.Marshal(dig(t, "status", "message", "metadata", extensions.HITLPrompt))
	if err != nil {
		r.t.Fatal(err)
	}
	if e, err = prompt.ParseEnvelope(raw, time.Now()); err != nil {
		r.t.Fatalf("%s: %v", raw, err)
	}
	return taskID, e
}

const askOnce = `printf 'Continue? [y/N] '; read a; echo "got <$a>"`

func wantNotCurrent(t *testing.T, what string, a answer) {
	t.Helper()
	if a.status != http.StatusConflict || a.path("error", "details", 0, "reason") != "HITL_ALREADY_ANSWERED_OR_UNKNOWN" ||
		!strings.Contains(string(a.body), "hitl_already_answered_or_unknown") {
		t.Errorf("%s: %d %s", what, a.status, a.body)
	}
}

// TestCF1Correlation: a reply is for the prompt it names, once; anything else
// conflicts.
func TestCF1Correlation(t *testing.T) {
	r := hitlRig(t, askOnce)
	id, e := r.asks()
	wantNotCurrent(t, "an unknown prompt", r.sendHITL(replyMessage(id, "6ba7b810-9dad-41d1-80b4-00c04fd430c8", `{"text":"y"}`)))
	wantNotCurrent(t, "no UUID", r.sendHITL(replyMessage(id, "x", `{"text":"y"}`)))
	if a := r.sendHITL(replyMessage("nobody's", e.PromptID, `{"text":"y"}`)); a.status != http.StatusNotFound {
		t.Errorf("an unknown task: %d %s", a.status, a.body)
	}
	other := strings.Replace(replyMessage(id, e.PromptID, `{"text":"y"}`), `"taskId"`, `"contextId":"c","taskId"`, 1)
	if a := r.sendHITL(other); a.status != http.StatusBadRequest {
		t.Errorf("another context: %d %s", a.status, a.body)
	}
	if a := r.do(http.MethodPost, "/agents/"+idB+"/message:send", replyMessage(id, e.PromptID, `{"text":"y"}`), hitlHeader); a.status != http.StatusNotFound {
		t.Errorf("another instance: %d %s", a.status, a.body)
	}
	if a := r.sendHITL(replyMessage(id, e.PromptID, `{"text":"y"}`)); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Fatalf("the reply: %d %s", a.status, a.body)
	}
	wantNotCurrent(t, "a second reply", r.sendHITL(replyMessage(id, e.PromptID, `{"text":"y"}`)))
	rpc := r.rpc("SendMessage", replyMessage(id, e.PromptID, `{"text":"y"}`), hitlHeader)
	if rpc.path("error", "code") != -32010. {
		t.Errorf("a second reply by JSON-RPC: %s", rpc.body)
	}
}

// TestReplyIsSmall: replies stay in the history that everybody reads, and there
// may be many: one that is large is refused, and the prompt waits on.
func TestReplyIsSmall(t *testing.T) {
	r := hitlRig(t, askOnce)
	id, e := r.asks()
	reply := replyMessage(id, e.PromptID, `{"text":"y"}`)
	for name, large := range map[string]string{
		"parts":    strings.Replace(reply, `"reply"`, `"`+strings.Repeat("x", 200<<10)+`"`, 1),
		"metadata": strings.Replace(reply, `"metadata":{`, `"metadata":{"x":"`+strings.Repeat("x", 200<<10)+`",`, 1),
	} {
		if a := r.sendHITL(large); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "message must not have more than") {
			t.Errorf("a reply with much in its %s: %d %.300s", name, a.status, a.body)
		}
	}
	if a := r.sendHITL(reply); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("the reply: %d %.300s", a.status, a.body)
	}
}

// TestCF2Accept: an accepted reply moves the task on before it is answered,
// and of many replies at once one is accepted.
func TestCF2Accept(t *testing.T) {
	r := hitlRig(t, askOnce+`; cat`)
	id, e := r.asks()
	answers := make([]answer, 20)
	body := strings.TrimSuffix(replyMessage(id, e.PromptID, `{"text":"y"}`), "}") + `,"configuration":{"returnImmediately":true}}`
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = r.sendHITL(body) })
	}
	wg.Wait()
	accepted := 0
	for _, a := range answers {
		if a.status != http.StatusOK {
			wantNotCurrent(t, "a reply too many", a)
			continue
		}
		accepted++
		if a.path("task", "status", "state") != "TASK_STATE_WORKING" {
			t.Errorf("the accepted reply is answered %s", a.body)
		}
	}
	if accepted != 1 {
		t.Errorf("%d replies were accepted", accepted)
	}
	r.do(http.MethodPost, "/agents/"+idA+"/tasks/"+id+":cancel", "{}", good)
}

// TestCF3InvalidAndRetry: a payload that breaks the schema says where and how,
// and the prompt waits on.
func TestCF3InvalidAndRetry(t *testing.T) {
	r := hitlRig(t, askOnce)
	id, e := r.asks()
	for payload, want := range map[string]struct{ path, keyword string }{
		`{}`:                    {"", "required"},
		`{"text":7}`:            {"/text", "type"},
		`{"text":"a\nb"}`:       {"/text", "pattern"},
		`{"text":"y","more":1}`: {"", "additionalProperties"},
		`{"text":"` + strings.Repeat("ä", 2100) + `"}`: {"/text", "maxLength"},
	} {
		a := r.sendHITL(replyMessage(id, e.PromptID, payload))
		var got any
		details, _ := a.path("error", "details").([]any)
		for _, d := range details {
			if v := dig(d, "validation_errors", 0); v != nil {
				got = v
			}
		}
		if a.status != http.StatusUnprocessableEntity || dig(got, "path") != want.path || dig(got, "keyword") != want.keyword || dig(got, "message") == "" {
			t.Errorf("%.40s: %d %s", payload, a.status, a.body)
		}
		rpc := r.rpc("SendMessage", replyMessage(id, e.PromptID, payload), hitlHeader)
		if rpc.path("error", "code") != -32011. || !strings.Contains(string(rpc.body), `"validation_errors":[{"path"`) {
			t.Errorf("%.40s by JSON-RPC: %s", payload, rpc.body)
		}
		now := r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+id, "", good)
		if _, same := r.envelope(now.json); same.PromptID != e.PromptID {
			t.Errorf("after %.40s it asks %q", payload, same.PromptID)
		}
	}
	for name, body := range map[string]string{
		"no payload": strings.Replace(replyMessage(id, e.PromptID, `1`), `,"payload":1`, "", 1),
		"a member":   strings.Replace(replyMessage(id, e.PromptID, `1`), `,"payload":1`, `,"payload":{"text":"y"},"x":1`, 1),
		"no object":  strings.Replace(replyMessage(id, e.PromptID, `1`), `{"prompt_id":"`+e.PromptID+`","payload":1}`, `"y"`, 1),
		"plain text": strings.Replace(replyMessage(id, e.PromptID, `1`), "hitl_response_for", "something_else", 1),
	} {
		a := r.sendHITL(body)
		if a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "hitl_response_for") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := r.sendHITL(replyMessage(id, e.PromptID, `{"text":"y"}`)); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("the retry: %d %s", a.status, a.body)
	}
}

// TestCF4Resume: what a reply sets off is seen within few events, and nothing
// waits for a poll. The time is logged; a loaded host has no say in a test.
func TestCF4Resume(t *testing.T) {
	const trials = 20
	r := hitlRig(t, `for i in `+strings.Repeat("x ", trials)+`; do printf 'Continue? [y/N] '; read a; done`)
	id, e := r.asks()
	var took []time.Duration
	for i := range trials {
		resp := r.open(http.MethodPost, "/agents/"+idA+"/message:stream", replyMessage(id, e.PromptID, `{"text":"y"}`), hitlHeader)
		began, events, first := time.Now(), 0, true
		var next map[string]any
		r.frames(resp, func(f frame) bool {
			events++
			if first {
				took = append(took, time.Since(began))
				first = false
				if state := dig(f.data, "task", "status", "state"); state == nil {
					t.Errorf("the first event is %v", f.data)
				}
			}
			if f.data["task"] != nil {
				next, _ = f.data["task"].(map[string]any)
			} else if f.data["statusUpdate"] != nil {
				next = map[string]any{"id": id, "status": dig(f.data, "statusUpdate", "status")}
			}
			return true // to the end, which the next prompt makes
		})
		if events > 8 {
			t.Errorf("trial %d took %d events", i, events)
		}
		if i == trials-1 {
			if dig(next, "status", "state") != "TASK_STATE_COMPLETED" {
				t.Errorf("after the last reply: %v", next)
			}
			break
		}
		before := e.PromptID
		if _, e = r.envelope(next); e.PromptID == before {
			t.Fatal("a later prompt has the id of an earlier one")
		}
	}
	slices.Sort(took)
	t.Logf("from reply to resumed: median %v, p95 %v of %d", took[len(took)/2], took[len(took)*95/100], len(took))
}

// TestCF5Closed: the envelope on the wire has the members of the extension and
// no others.
func TestCF5Closed(t *testing.T) {
	r := hitlRig(t, askOnce)
	a := r.sendHITL(hitlMessage(textLine))
	m, _ := dig(a.json, "task", "status", "message", "metadata", extensions.HITLPrompt).(map[string]any)
	var names []string
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"allowed_responders", "deadline", "prompt", "prompt_id", "response_schema"}) {
		t.Errorf("the envelope has %v", names)
	}
	if got := a.header.Get("A2A-Extensions"); !strings.Contains(got, extensions.HITLPrompt) {
		t.Errorf("activated is %q", got)
	}
}

// TestCF6ReplayAfterDisconnect: who comes back finds the same prompt, by
// GetTask, by subscribing, and in the events missed. SubscribeToTask stays
// open on it, SendStreamingMessage ends with it.
func TestCF6ReplayAfterDisconnect(t *testing.T) {
	r := hitlRig(t, askOnce)
	var id string
	var streamed prompt.Envelope
	r.frames(r.open(http.MethodPost, "/agents/"+idA+"/message:stream", hitlMessage(textLine), hitlHeader), func(f frame) bool {
		if v, ok := dig(f.data, "task", "id").(string); ok {
			id = v
		}
		if dig(f.data, "statusUpdate", "status", "state") == "TASK_STATE_INPUT_REQUIRED" {
			_, streamed = r.envelope(map[string]any{"id": id, "status": dig(f.data, "statusUpdate", "status")})
		}
		return true
	})
	same := func(what string, e prompt.Envelope) {
		t.Helper()
		if e.PromptID != streamed.PromptID || e.Prompt != streamed.Prompt || string(e.ResponseSchema) != string(streamed.ResponseSchema) {
			t.Errorf("%s: %+v, want %+v", what, e, streamed)
		}
	}
	_, e := r.envelope(r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+id, "", good).json)
	same("GetTask", e)
	var states []string
	r.frames(r.open(http.MethodPost, "/agents/"+idA+"/tasks/"+id+":subscribe", "", good), func(f frame) bool {
		if f.data["task"] != nil {
			_, e := r.envelope(f.data["task"])
			same("SubscribeToTask", e)
			if a := r.sendHITL(replyMessage(id, e.PromptID, `{"text":"y"}`)); a.status != http.StatusOK {
				t.Errorf("the reply: %d %s", a.status, a.body)
			}
		}
		if s, ok := dig(f.data, "statusUpdate", "status", "state").(string); ok {
			states = append(states, s)
		}
		return true
	})
	if !slices.Equal(states, []string{"TASK_STATE_WORKING", "TASK_STATE_COMPLETED"}) {
		t.Errorf("the subscriber saw %v", states)
	}
	seen := false
	r.frames(r.open(http.MethodPost, "/agents/"+idA+"/tasks/"+id+":subscribe", "", with(map[string]string{"Last-Event-ID": "1"})), func(f frame) bool {
		if dig(f.data, "statusUpdate", "status", "state") == "TASK_STATE_INPUT_REQUIRED" {
			_, e := r.envelope(map[string]any{"id": id, "status": dig(f.data, "statusUpdate", "status")})
			same("the log", e)
			seen = true
		}
		return true
	})
	if !seen {
		t.Error("the log lacks the prompt")
	}
}

// TestCF7RoundTrip: from a real script that asks to its end, on both bindings,
// with the exit status and the output that the answer made.
func TestCF7RoundTrip(t *testing.T) {
	r := hitlRig(t, `printf 'Continue? [y/N] '; read a; echo "answer $a"; [ "$a" = y ]`)
	for _, text := range []string{"y", "n"} {
		a := r.rpc("SendMessage", hitlMessage(textLine), hitlHeader)
		id, e := r.envelope(a.path("result", "task"))
		a = r.rpc("SendMessage", replyMessage(id, e.PromptID, `{"text":"`+text+`"}`), hitlHeader)
		state := "TASK_STATE_COMPLETED"
		if text == "n" {
			state = "TASK_STATE_FAILED"
		}
		if a.path("result", "task", "status", "state") != state || !strings.Contains(string(a.body), "answer "+text) {
			t.Errorf("%s: %s", text, a.body)
		}
		if text == "n" && dig(a.path("result", "task", "metadata", extensions.AdapterCommand), "fail_kind") != "application" {
			t.Errorf("%s: %s", text, a.body)
		}
		if a.path("result", "task", "history", 2, "messageId") != "r1" {
			t.Errorf("history: %s", a.body)
		}
	}
}

// TestInputModeNeedsActivation: without the extension activated the envelope
// is refused, and without input_mode nothing is ever asked.
func TestInputModeNeedsActivation(t *testing.T) {
	r := hitlRig(t, askOnce)
	a := r.do(http.MethodPost, "/agents/"+idA+"/message:send", hitlMessage(textLine), good)
	if a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "input_mode") || !strings.Contains(string(a.body), extensions.HITLPrompt) {
		t.Errorf("not activated: %d %s", a.status, a.body)
	}
	if list := r.do(http.MethodGet, "/agents/"+idA+"/tasks", "", good); list.path("totalSize") != 0. {
		t.Errorf("a task was made: %s", list.body)
	}
	if a := r.sendHITL(hitlMessage("")); a.path("task", "status", "state") != "TASK_STATE_COMPLETED" || !strings.Contains(string(a.body), `got \u003c\u003e`) {
		t.Errorf("without input_mode: %d %s", a.status, a.body)
	}
}
