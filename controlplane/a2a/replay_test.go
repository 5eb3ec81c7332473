package a2a

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestStoredFault: what is kept of a fault is all of it.
func TestStoredFault(t *testing.T) {
	if have, want := reflect.TypeFor[storedFault]().NumField(), reflect.TypeFor[fault]().NumField(); have != want {
		t.Fatalf("a fault has %d members, what is kept of it %d: add the new ones to storedFault", want, have)
	}
	f := &fault{
		rpc: 1, http: 2, status: "3", reason: "4", domain: "5", message: "<6>", meta: map[string]string{"7": "&"},
		violations: []runner.Violation{{Field: "8", Description: "9"}}, second: "10", secondMeta: map[string]string{"11": "12"},
		retryAfter: 13, rpcHTTP: 14, more: []any{struct {
			Z int `json:"z"`
			A any `json:"a"`
		}{15, map[string]int{"16": 17}}},
	}
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test sets no %s", v.Type().Field(i).Name)
		}
	}
	kept, err := newStoredFault(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	var s storedFault
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	got := s.fault()
	have, err := json.Marshal(got.details())
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(f.details())
	if err != nil || string(have) != string(want) {
		t.Errorf("details are %s, want %s, %v", have, want, err)
	}
	got.more, f.more = nil, nil
	if !reflect.DeepEqual(got, f) {
		t.Errorf("kept is %+v, want %+v", got, f)
	}
}

// TestPasses: which refusals are not kept, since the same message may be taken
// in a moment.
func TestPasses(t *testing.T) {
	for _, c := range []struct {
		f    fault
		want bool
	}{
		{fault{http: 400}, false}, {fault{http: 404}, false}, {fault{http: 409}, false}, {fault{http: 422}, false},
		{fault{http: 429, retryAfter: 1}, true}, {fault{http: 409, retryAfter: 1}, true}, {fault{http: 500}, true}, {fault{http: 503}, true},
	} {
		if got := c.f.passes(); got != c.want {
			t.Errorf("%d, retry after %d: %t", c.f.http, c.f.retryAfter, got)
		}
	}
	if !errBusy("x").passes() || !errClosing().passes() || errTaskNotFound().passes() || errPromptNotCurrent().passes() {
		t.Error("of the faults there are")
	}
}

// keptAnswers is a store that has the newest answer.
type keptAnswers struct {
	Reservations
	answer []byte
}

func (k *keptAnswers) Answer(ctx context.Context, _ idempotency.Key, _ string, answer []byte) error {
	k.answer = answer
	return ctx.Err()
}

// TestLargeAnswersAreMadeAgain: only where the task cannot change any more, and
// is that of the message; and whether or not the client still waits.
func TestLargeAnswersAreMadeAgain(t *testing.T) {
	k := &keptAnswers{}
	c := &call{surface: &surface{cfg: Config{Reservations: k, Log: slog.New(slog.DiscardHandler)}}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, one := range []struct {
		id    string
		state task.State
		size  int
		kept  bool
	}{
		{"mine", task.Completed, keptAnswer, false}, {"mine", task.Canceled, keptAnswer, false},
		{"mine", task.Working, keptAnswer, true}, {"mine", task.InputRequired, keptAnswer, true},
		{"older", task.Completed, keptAnswer, true}, {"mine", task.Completed, 1, true},
	} {
		k.answer = nil
		answer := task.Task{ID: one.id, Status: task.Status{State: one.state}}
		answer.Artifacts = []task.Artifact{{Parts: []task.Part{task.TextPart(strings.Repeat("x", one.size))}}}
		c.store(gone, &flight{taskID: "mine"}, storedAnswer{Task: &answer})
		if (k.answer != nil) != one.kept {
			t.Errorf("%+v: %d bytes are kept", one, len(k.answer))
		}
	}
}
