package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// asking runs the text of a message as a script that may ask.
type asking struct{ timeout time.Duration }

func (asking) Name() string               { return "shell" }
func (asking) Claims(runner.Request) bool { return true }
func (a asking) Prepare(req runner.Request) (*runner.Command, error) {
	timeout := a.timeout
	if timeout == 0 {
		timeout = 5 * time.Minute
	}
	return &runner.Command{
		Spec: &agentv1.RunSpec{
			Argv: []string{"sh", "-c", *req.Message.Parts[0].Text}, Root: "/", WorkingDir: "/", Stdin: true, Timeout: durationpb.New(timeout),
		},
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}

func newAskingRig(t *testing.T, change func(*engine.Config)) *rig {
	t.Helper()
	return newRig(t, func(c *engine.Config) {
		c.Runners = []runner.Runner{asking{}}
		c.PromptQuiet = 50 * time.Millisecond
		if change != nil {
			change(c)
		}
	})
}

// envelopeOf returns what a task asks.
func envelopeOf(t testing.TB, rec task.Record) prompt.Envelope {
	t.Helper()
	if rec.Status.State != task.InputRequired || rec.Status.Message == nil {
		t.Fatalf("the task asks nothing: %+v", rec.Status)
	}
	e, err := prompt.ParseEnvelope(rec.Status.Message.Metadata[prompt.URI], time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// asks waits until the task asks something else than before.
func (r *rig) asks(id string, before ...string) prompt.Envelope {
	r.t.Helper()
	rec := r.wait(id, func(rec task.Record) bool {
		return rec.Status.State == task.InputRequired && !slices.Contains(before, envelopeOf(r.t, rec).PromptID)
	})
	return envelopeOf(r.t, rec)
}

func reply(rec task.Record, promptID, text string) engine.Reply {
	payload, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		panic(err)
	}
	return engine.Reply{
		Scope:      task.Scope{Tenant: rec.Tenant, Owner: rec.Owner},
		InstanceID: rec.InstanceID, TaskID: rec.ID, ContextID: rec.ContextID, PromptID: promptID, Payload: payload,
		Message: task.Message{MessageID: "reply", Role: task.User, Parts: []task.Part{task.TextPart(text)}},
	}
}

func (r *rig) answer(rec task.Record, promptID, text string) {
	r.t.Helper()
	if err := r.Reply(r.t.Context(), reply(rec, promptID, text)); err != nil {
		r.t.Fatal(err)
	}
}

const askTwice = `printf 'Continue? [y/N] '; read a; printf 'Really? [y/N] ' >&2; read b; echo "got <$a> <$b>"`

// TestDialog: two prompts, one after the other on either stream, each with an
// id of its own.
func TestDialog(t *testing.T) {
	r := newAskingRig(t, nil)
	rec := r.submit(askTwice)
	first := r.asks(rec.ID)
	if first.Prompt != "Continue? [y/N]" || !slices.Equal(first.AllowedResponders, []string{prompt.Any}) {
		t.Errorf("asked %+v", first)
	}
	if err := first.CheckTextLine(time.Now()); err != nil {
		t.Error(err)
	}
	r.answer(rec, first.PromptID, "ja, grüß")
	second := r.asks(rec.ID, first.PromptID)
	if second.Prompt != "Really? [y/N]" || second.PromptID == first.PromptID || !second.Deadline.Equal(first.Deadline) {
		t.Errorf("asked %+v after %+v", second, first)
	}
	for _, id := range []string{first.PromptID, "00000000-0000-4000-8000-000000000000", ""} {
		if err := r.Reply(t.Context(), reply(rec, id, "y")); !errors.Is(err, prompt.ErrNotCurrent) {
			t.Errorf("a reply to %q: %v", id, err)
		}
	}
	r.answer(rec, second.PromptID, "")
	end := r.end(rec.ID)
	if end.Status.State != task.Completed || textOf(end, "stdout") != "Continue? [y/N] got <ja, grüß> <>\n" {
		t.Errorf("%+v %q", end.Status, textOf(end, "stdout"))
	}
	if len(end.History) != 5 || end.History[1].Role != task.Agent || end.History[2].MessageID != "reply" || *end.History[3].Parts[0].Text != "Really? [y/N]" {
		t.Errorf("history %+v", end.History)
	}
	if err := r.Reply(t.Context(), reply(rec, second.PromptID, "y")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a reply after the end: %v", err)
	}
	checkLog(t, r.db, end)
}

// TestReplyMustMatch: a reply is for one prompt of one task of one instance in
// one context, and of the form asked for; all else leaves the prompt as it was.
func TestReplyMustMatch(t *testing.T) {
	r := newAskingRig(t, nil)
	rec := r.submit(`printf 'Continue? [y/N] '; read a; echo "$a"`)
	other := r.submit(`printf 'Other? [y/N] '; read a; echo "$a"`)
	e := r.asks(rec.ID)
	theirs := r.asks(other.ID)
	for name, change := range map[string]func(*engine.Reply){
		"instance":         func(r *engine.Reply) { r.InstanceID = "01900000-0000-7000-8000-000000000002" },
		"context":          func(r *engine.Reply) { r.ContextID = "c" },
		"task":             func(r *engine.Reply) { r.TaskID = other.ID },
		"prompt of theirs": func(r *engine.Reply) { r.PromptID = theirs.PromptID },
		"no such task":     func(r *engine.Reply) { r.TaskID = "x" },
		"owner":            func(r *engine.Reply) { r.Scope.Owner = "bob" },
		"tenant":           func(r *engine.Reply) { r.Scope.Tenant = "blue" },
	} {
		rp := reply(rec, e.PromptID, "n")
		change(&rp)
		if err := r.Reply(t.Context(), rp); !errors.Is(err, prompt.ErrNotCurrent) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	for _, payload := range []string{`{}`, `{"text":1}`, `{"text":"a\nb"}`, `{"text":"` + strings.Repeat("x", 4097) + `"}`, `{"text":"y","z":1}`, `null`} {
		rp := reply(rec, e.PromptID, "n")
		rp.Payload = json.RawMessage(payload)
		var invalid *prompt.Invalid
		if err := r.Reply(t.Context(), rp); !errors.As(err, &invalid) {
			t.Errorf("%.40s: %v", payload, err)
		}
	}
	now, err := r.db.Task(t.Context(), task.System(), rec.ID, task.View{Inline: -1})
	if err != nil || envelopeOf(t, now).PromptID != e.PromptID || len(now.History) != 0 {
		t.Errorf("after refused replies: %+v, %v", now, err)
	}
	r.answer(rec, e.PromptID, "y")
	r.answer(other, theirs.PromptID, "z")
	if got := textOf(r.end(rec.ID), "stdout"); got != "Continue? [y/N] y\n" {
		t.Errorf("stdout %q", got)
	}
	if got := textOf(r.end(other.ID), "stdout"); got != "Other? [y/N] z\n" {
		t.Errorf("stdout of the other %q", got)
	}
}

// TestRepliesRace: of twenty replies at once exactly one is delivered.
func TestRepliesRace(t *testing.T) {
	r := newAskingRig(t, nil)
	rec := r.submit(`printf 'Continue? [y/N] '; read a; echo "$a"; cat`)
	e := r.asks(rec.ID)
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = r.Reply(t.Context(), reply(rec, e.PromptID, fmt.Sprint("n", i))) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case err == nil:
			t.Errorf("replies %d and %d were both accepted", won, i)
		case !errors.Is(err, prompt.ErrNotCurrent):
			t.Error(err)
		}
	}
	want := fmt.Sprintf("Continue? [y/N] n%d\n", won)
	r.wait(rec.ID, func(rec task.Record) bool { return textOf(rec, "stdout") == want })
	if _, err := r.Cancel(t.Context(), task.System(), rec.ID); err != nil {
		t.Fatal(err)
	}
	if end := r.end(rec.ID); end.Status.State != task.Canceled || textOf(end, "stdout") != want {
		t.Errorf("%+v %q", end.Status, textOf(end, "stdout"))
	}
}

// TestNobodyAsksWithoutInput: a command without an input is never waited for.
func TestNobodyAsksWithoutInput(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.Prompts, c.PromptQuiet = nil, time.Millisecond })
	gate := t.TempDir() + "/gate"
	rec := r.submit(`printf 'Continue? [y/N] '; while [ ! -e ` + gate + ` ]; do sleep 0.05; done; echo done`)
	r.wait(rec.ID, func(rec task.Record) bool { return textOf(rec, "stdout") != "" })
	if err := touch(gate); err != nil {
		t.Fatal(err)
	}
	end := r.end(rec.ID)
	events, err := r.db.Events(t.Context(), task.System(), rec.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.Status != nil && ev.Status.Status.State == task.InputRequired {
			t.Errorf("asked: %+v", ev.Status)
		}
	}
	if end.Status.State != task.Completed {
		t.Errorf("%+v", end.Status)
	}
	// And one that reads replies is refused where none can be kept.
	r2 := newRig(t, func(c *engine.Config) { c.Runners, c.Prompts = []runner.Runner{asking{}}, nil })
	_, err = r2.Submit(t.Context(), engine.Submission{
		Machine: machine("shell"), Message: task.Message{Parts: []task.Part{task.TextPart("true")}},
	})
	var refusal *runner.Refusal
	if !errors.As(err, &refusal) {
		t.Errorf("%v, want a refusal", err)
	}
}

// TestWithdrawn: a command that goes on by itself waits for nobody, and a
// reply to what it asked then comes too late.
func TestWithdrawn(t *testing.T) {
	r := newAskingRig(t, nil)
	gate := t.TempDir() + "/gate"
	rec := r.submit(`printf 'Continue? [y/N] '; while [ ! -e ` + gate + ` ]; do sleep 0.05; done; echo taken as yes; read a; echo "$a"`)
	e := r.asks(rec.ID)
	if err := touch(gate); err != nil {
		t.Fatal(err)
	}
	r.wait(rec.ID, func(rec task.Record) bool { return rec.Status.State == task.Working })
	if err := r.Reply(t.Context(), reply(rec, e.PromptID, "n")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a late reply: %v", err)
	}
	if _, err := r.Cancel(t.Context(), task.System(), rec.ID); err != nil {
		t.Fatal(err)
	}
	if got := textOf(r.end(rec.ID), "stdout"); got != "Continue? [y/N] taken as yes\n" {
		t.Errorf("stdout %q", got)
	}
}

// TestDeadlineGoesOn: waiting for an answer does not lengthen a command's life.
func TestDeadlineGoesOn(t *testing.T) {
	r := newAskingRig(t, func(c *engine.Config) { c.Runners = []runner.Runner{asking{timeout: 4 * time.Second}} })
	rec := r.submit(`printf 'Continue? [y/N] '; read a`)
	e := r.asks(rec.ID)
	end := r.end(rec.ID)
	if o := outcome(t, end); o.Reason != task.ReasonTimeout || end.Status.State != task.Failed {
		t.Errorf("%+v %+v", end.Status, o)
	}
	if err := r.Reply(t.Context(), reply(rec, e.PromptID, "n")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a late reply: %v", err)
	}
}

// TestUndelivered: an answer that nobody takes in time is taken back, and the
// same prompt waits for another.
func TestUndelivered(t *testing.T) {
	r := newAskingRig(t, func(c *engine.Config) { c.DeliverWait = 100 * time.Millisecond })
	r.guest.Deafen(true)
	rec := r.submit(`printf 'Continue? [y/N] '; read a; echo "$a"`)
	e := r.asks(rec.ID)
	if err := r.Reply(t.Context(), reply(rec, e.PromptID, "lost")); !errors.Is(err, engine.ErrUndelivered) {
		t.Fatalf("a reply to a deaf guest: %v", err)
	}
	now, err := r.db.Task(t.Context(), task.System(), rec.ID, task.View{History: -1, Inline: -1})
	if err != nil || envelopeOf(t, now).PromptID != e.PromptID || len(now.History) != 1 {
		t.Fatalf("%+v, %v", now, err)
	}
	r.guest.Deafen(false)
	r.answer(rec, e.PromptID, "found")
	if got := textOf(r.end(rec.ID), "stdout"); got != "Continue? [y/N] found\n" {
		t.Errorf("stdout %q", got)
	}
}

// TestRestartOnAPrompt: the binding dies with the engine. The prompt of before
// is refused, also once the run is followed again, and it asks anew.
func TestRestartOnAPrompt(t *testing.T) {
	r := newAskingRig(t, nil)
	rec := r.submit(askTwice)
	first := r.asks(rec.ID)
	r.answer(rec, first.PromptID, "one")
	second := r.asks(rec.ID, first.PromptID)
	r.Close()
	if err := r.Reply(t.Context(), reply(rec, second.PromptID, "x")); err == nil {
		t.Error("a closed engine took a reply")
	}
	r.guest.Break(errors.New("not yet"))
	r.start()
	now, err := r.db.Task(t.Context(), task.System(), rec.ID, task.View{Inline: -1})
	if err != nil || envelopeOf(t, now).PromptID != second.PromptID {
		t.Fatalf("%+v, %v", now, err)
	}
	if err := r.Reply(t.Context(), reply(rec, second.PromptID, "x")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a reply without a binding: %v", err)
	}
	r.guest.Break(nil)
	third := r.asks(rec.ID, first.PromptID, second.PromptID)
	if third.Prompt != second.Prompt || !third.Deadline.Equal(first.Deadline) {
		t.Errorf("asked %+v, want as %+v", third, second)
	}
	if err := r.Reply(t.Context(), reply(rec, second.PromptID, "x")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a reply to the prompt of before: %v", err)
	}
	r.answer(rec, third.PromptID, "two")
	end := r.end(rec.ID)
	if textOf(end, "stdout") != "Continue? [y/N] got <one> <two>\n" || r.guest.Starts() != 1 {
		t.Errorf("%q after %d starts", textOf(end, "stdout"), r.guest.Starts())
	}
	checkLog(t, r.db, end)
}

// TestRestartWhileDelivering: an answer that was claimed and may have left
// goes to the run once, whoever sends it at last.
func TestRestartWhileDelivering(t *testing.T) {
	r := newAskingRig(t, func(c *engine.Config) { c.DeliverWait = time.Minute })
	rec := r.submit(`printf 'Continue? [y/N] '; read a; echo "$a"; cat`)
	r.guest.Deafen(true)
	// The feeder of the guest may be past its check already: let it take none.
	e := r.asks(rec.ID)
	done := make(chan error, 1)
	go func() { done <- r.Reply(t.Context(), reply(rec, e.PromptID, "once")) }()
	var err error
	select {
	case err = <-done: // it had
	case <-time.After(300 * time.Millisecond):
		r.Close()
		err = <-done
		r.guest.Deafen(false)
		r.start()
	}
	if err != nil && !errors.Is(err, engine.ErrClosed) {
		t.Errorf("the reply: %v", err)
	}
	r.guest.Deafen(false)
	const want = "Continue? [y/N] once\n"
	r.wait(rec.ID, func(rec task.Record) bool { return textOf(rec, "stdout") == want && rec.Status.State == task.Working })
	if err := r.Reply(t.Context(), reply(rec, e.PromptID, "twice")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a second reply: %v", err)
	}
	if _, err := r.Cancel(t.Context(), task.System(), rec.ID); err != nil {
		t.Fatal(err)
	}
	if got := textOf(r.end(rec.ID), "stdout"); got != want {
		t.Errorf("stdout %q", got)
	}
}

// TestMachineGoneOnAPrompt: what asks and is lost fails and asks no more.
func TestMachineGoneOnAPrompt(t *testing.T) {
	r := newAskingRig(t, nil)
	rec := r.submit(`printf 'Continue? [y/N] '; read a`)
	e := r.asks(rec.ID)
	r.guest.Forget()
	end := r.end(rec.ID)
	checkInfra(t, end, task.ReasonRunLost)
	if err := r.Reply(t.Context(), reply(rec, e.PromptID, "n")); !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("a late reply: %v", err)
	}
}
