package command

import (
	"context"
	"errors"
	"testing"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

const (
	patience = time.Minute
	stdout   = agentv1.Stream_STREAM_STDOUT
)

// talking is a run that nobody supervises, with room for one chunk.
func talking(stdin bool) *Run {
	return newRun("r", &agentv1.RunSpec{Stdin: stdin}, bounds{buffer: 1})
}

func attachTo(t *testing.T, r *Run, after uint64) *Attachment {
	t.Helper()
	a, _, err := r.Attach(after)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func next(t *testing.T, a *Attachment) *agentv1.AttachResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := a.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func kindOf(err error) Kind {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Kind
	}
	return -1
}

// TestAttachWhereOutputIs: not before what was freed, not behind what was shown.
func TestAttachWhereOutputIs(t *testing.T) {
	r := talking(false)
	r.add(stdout, []byte("one"))
	if _, _, err := r.Attach(1); kindOf(err) != Invalid {
		t.Errorf("behind what nobody was shown: %v", err)
	}
	a := attachTo(t, r, 0)
	if o := next(t, a).GetOutput(); o.GetSeq() != 1 || string(o.GetData()) != "one" {
		t.Errorf("first comes %v", o)
	}
	if err := a.Ack(2); kindOf(err) != Invalid {
		t.Errorf("ack of what nobody was shown: %v", err)
	}
	if err := a.Ack(1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Attach(0); kindOf(err) != OutOfRange {
		t.Errorf("before what was freed: %v", err)
	}
	if r.attached != a {
		t.Error("an attachment that was refused has taken over")
	}
}

// TestOnlyTheNewestIsHeard: an older attachment hears that it is one, and what
// it still has to say is dropped.
func TestOnlyTheNewestIsHeard(t *testing.T) {
	r := talking(true)
	older := attachTo(t, r, 0)
	newer := attachTo(t, r, 0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := older.Next(ctx); kindOf(err) != Superseded {
		t.Errorf("the older one: %v", err)
	}
	if err := older.Input(0, []byte("old"), false); err != nil || len(r.input.queued) != 0 {
		t.Errorf("input of the older one: %v, taken are %q", err, r.input.queued)
	}
	if err := newer.Input(0, []byte("new"), false); err != nil || string(r.input.queued) != "new" {
		t.Errorf("input of the newer one: %v, taken are %q", err, r.input.queued)
	}
	older.Close()
	if r.attached != newer {
		t.Error("the end of the older one ends the newer one")
	}
	newer.Close()
	if r.attached != nil {
		t.Error("one that has ended is attached")
	}
	if err := attachTo(t, talking(false), 0).Input(0, []byte("x"), false); kindOf(err) != Invalid {
		t.Errorf("input of a run without: %v", err)
	}
}

// TestRoomIsTold: a process that waits for room goes on when output is
// acknowledged, by an attachment or by the next one.
func TestRoomIsTold(t *testing.T) {
	for name, free := range map[string]func(*Run, *Attachment) error{
		"ack":    func(_ *Run, a *Attachment) error { return a.Ack(1) },
		"attach": func(r *Run, _ *Attachment) error { _, _, err := r.Attach(1); return err },
	} {
		r := talking(false)
		r.add(stdout, []byte("one"))
		a := attachTo(t, r, 0)
		next(t, a)
		added := make(chan struct{})
		go func() { r.add(stdout, []byte("two")); close(added) }()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for waits := false; !waits; <-tick.C {
			r.mu.Lock()
			waits = r.room.ch != nil
			r.mu.Unlock()
		}
		if err := free(r, a); err != nil {
			t.Fatal(err)
		}
		select {
		case <-added:
		case <-time.After(patience):
			t.Fatalf("%s: it waits on", name)
		}
	}
}
