package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// answer reads a reply: its prompt and text, as ask.json takes them.
func (f *fakeServer) answer(w http.ResponseWriter, m invoke.Message) (text string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.sent, "reply to %s: %s\n", m.TaskID, m.Metadata["hitl_response_for"])
	var r struct {
		PromptID string `json:"prompt_id"`
		Payload  struct {
			Text string `json:"text"`
		} `json:"payload"`
	}
	switch {
	case json.Unmarshal(m.Metadata["hitl_response_for"], &r) != nil, m.ContextID != "C", r.PromptID != "P":
		a2aError(w, http.StatusConflict, "ABORTED", "HITL_ALREADY_ANSWERED_OR_UNKNOWN", "hitl_already_answered_or_unknown")
	case r.Payload.Text == "bad":
		a2aError(w, http.StatusUnprocessableEntity, "INVALID_ARGUMENT", "HITL_RESPONSE_INVALID", "hitl_response_invalid")
	default:
		return r.Payload.Text, true
	}
	return "", false
}

// deliver is SendMessage.
func (f *fakeServer) deliver(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Message invoke.Message `json:"message"`
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		a2aError(w, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_REQUEST", "no message")
		return
	}
	if _, ok := f.answer(w, body.Message); ok {
		fmt.Fprintf(w, `{"task":%s}`, taskJSON("ok.json"))
	}
}

// replied streams what comes of a reply: the task so far, more output, and its
// end.
func (f *fakeServer) replied(w http.ResponseWriter, m invoke.Message) {
	text, ok := f.answer(w, m)
	if !ok {
		return
	}
	send := events(w)
	send(4, `{"task":{"id":"T-ask.json","contextId":"C","status":{"state":"TASK_STATE_WORKING"},`+
		`"artifacts":[{"artifactId":"stdout","parts":[{"text":"plan\n"}]}]}}`)
	out, _ := json.Marshal("answered " + text + "\n")
	send(5, `{"artifactUpdate":{"taskId":"T-ask.json","artifact":{"artifactId":"stdout","parts":[{"text":`+string(out)+`}]},`+
		`"append":true,"metadata":{"offset":5}}}`)
	send(6, `{"statusUpdate":{"taskId":"T-ask.json","status":{"state":"TASK_STATE_COMPLETED"}}}`)
}

// TestConverse: a prompt is answered where it is asked, again after an answer
// that was refused, and every byte of output comes once.
func TestConverse(t *testing.T) {
	srv := httptest.NewServer(newFakeServer(&auth.Tokens{}).agent())
	defer srv.Close()
	var out, errs strings.Builder
	answers := []string{"bad", "yes"}
	w := &work{
		app:     &app{stdout: &out, stderr: &errs, format: formatTable, stdin: strings.NewReader("")},
		machine: "demo", agent: &invoke.Client{HTTP: srv.Client(), Base: srv.URL + "/agents/x", Limits: invoke.DefaultLimits()},
		ask: func(context.Context, <-chan struct{}) (string, error) {
			text := answers[0]
			answers = answers[1:]
			return text, nil
		},
	}
	m, err := (&runOptions{mode: "plan", request: "ask.json", input: true}).message()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if out.String() != "plan\nanswered yes\n" {
		t.Errorf("output %q", out.String())
	}
	for _, want := range []string{"Continue? [y/N]\n? ", "refused: hitl_response_invalid", "task T-ask.json: completed"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("stderr lacks %q: %q", want, errs.String())
		}
	}
}

func TestReadLine(t *testing.T) {
	a := &app{stdin: strings.NewReader("yes\r\n\nlast")}
	for _, want := range []string{"yes", "", "last"} {
		if got, err := a.readLine(t.Context(), nil); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if got, err := a.readLine(t.Context(), nil); err == nil {
		t.Errorf("%q at the end", got)
	}
	signalled := make(chan struct{})
	close(signalled)
	a.stdin = blocked{t.Context().Done()}
	if _, err := a.readLine(t.Context(), signalled); !errors.Is(err, errSignalled) {
		t.Errorf("%v after a signal", err)
	}
}

type blocked struct{ until <-chan struct{} }

func (b blocked) Read([]byte) (int, error) {
	<-b.until
	return 0, errSignalled
}
