package supervise

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
)

func TestWhatIsDue(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	idle := func(action plan.IdleAction, wake bool) plan.Plan {
		return plan.Plan{Idle: &plan.Idle{Timeout: time.Minute, Action: action, Wake: wake}}
	}
	long := usage{last: now.Add(-time.Hour)}
	for name, c := range map[string]struct {
		r    Record
		u    usage
		want instance.Event
		wait time.Duration
	}{
		"nothing set":        {Record{Phase: instance.Running}, long, "", 0},
		"time is up":         {Record{Phase: instance.Running, ExpiresAt: now}, long, instance.Expired, 0},
		"time was up":        {Record{Phase: instance.Stopped, ExpiresAt: now.Add(-time.Hour)}, long, instance.Expired, 0},
		"time is nearly up":  {Record{Phase: instance.Paused, ExpiresAt: now.Add(time.Second)}, long, "", time.Second},
		"the clock may jump": {Record{Phase: instance.Paused, ExpiresAt: now.Add(time.Hour)}, long, "", lookAgain},
		"a delete failed":    {Record{Phase: instance.Deleting}, long, instance.DeleteRequested, 0},
		"idle: pause":        {Record{Phase: instance.Running, Plan: idle(plan.IdlePause, true)}, long, instance.IdlePaused, 0},
		"idle: stop":         {Record{Phase: instance.Running, Plan: idle(plan.IdleStop, true)}, long, instance.IdleStopped, 0},
		"idle, but in use":   {Record{Phase: instance.Running, Plan: idle(plan.IdleStop, true)}, usage{users: 1, last: long.last}, "", 0},
		"paused is not idle": {Record{Phase: instance.Paused, Plan: idle(plan.IdleStop, true)}, long, "", 0},
		"idle soon":          {Record{Phase: instance.Running, Plan: idle(plan.IdleStop, true)}, usage{last: now}, "", time.Minute},
		"runs only now": {
			Record{Phase: instance.Running, Plan: idle(plan.IdlePause, true)}, usage{last: long.last, runs: now},
			"", time.Minute,
		},
		"runs for a while": {
			Record{Phase: instance.Running, Plan: idle(plan.IdlePause, true)}, usage{last: long.last, runs: now.Add(-50 * time.Second)},
			"", 10 * time.Second,
		},
		"runs for longer": {
			Record{Phase: instance.Running, Plan: idle(plan.IdlePause, true)}, usage{last: long.last, runs: now.Add(-time.Minute)},
			instance.IdlePaused, 0,
		},
		"used since it runs": {
			Record{Phase: instance.Running, Plan: idle(plan.IdlePause, true)},
			usage{last: now.Add(-time.Second), runs: long.last}, "", 59 * time.Second,
		},
		"rests":                 {Record{Phase: instance.Paused, Resting: true, Plan: idle(plan.IdlePause, true)}, long, "", 0},
		"rests and is wanted":   {Record{Phase: instance.Paused, Resting: true, Plan: idle(plan.IdlePause, true)}, usage{users: 1}, instance.Used, 0},
		"stopped and is wanted": {Record{Phase: instance.Stopped, Resting: true, Plan: idle(plan.IdleStop, true)}, usage{users: 1}, instance.Used, 0},
		"wanted but must not":   {Record{Phase: instance.Paused, Resting: true, Plan: idle(plan.IdlePause, false)}, usage{users: 1}, "", 0},
		"paused by hand":        {Record{Phase: instance.Paused, Plan: idle(plan.IdlePause, true)}, usage{users: 1}, "", 0},
		"time is up before waking": {
			Record{Phase: instance.Paused, Resting: true, ExpiresAt: now, Plan: idle(plan.IdlePause, true)}, usage{users: 1},
			instance.Expired, 0,
		},
	} {
		if got, wait := dueEvent(&c.r, c.u, now); got != c.want || wait != c.wait {
			t.Errorf("%s: %q after %v, want %q after %v", name, got, wait, c.want, c.wait)
		}
	}
}

// TestDueEventsFit: what is due is accepted by the table, or by the queue's
// rule for a delete that failed; nobody is woken for nothing.
func TestDueEventsFit(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		r := Record{
			Phase:   rapid.SampledFrom(instance.Phases()).Draw(t, "phase"),
			Resting: rapid.Bool().Draw(t, "resting"),
		}
		if rapid.Bool().Draw(t, "expires") {
			r.ExpiresAt = now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "left")) * time.Second)
		}
		if rapid.Bool().Draw(t, "idle") {
			r.Plan.Idle = &plan.Idle{
				Timeout: time.Duration(rapid.IntRange(1, 5).Draw(t, "timeout")) * time.Second,
				Action:  rapid.SampledFrom([]plan.IdleAction{plan.IdlePause, plan.IdleStop}).Draw(t, "action"),
				Wake:    rapid.Bool().Draw(t, "wake"),
			}
		}
		u := usage{users: rapid.IntRange(0, 2).Draw(t, "users"), last: now.Add(-time.Duration(rapid.IntRange(0, 9).Draw(t, "ago")) * time.Second)}
		e, wait := dueEvent(&r, u, now)
		if wait < 0 || (e != "" && wait != 0) {
			t.Fatalf("%q after %v", e, wait)
		}
		var q queue
		if e != "" && r.Phase != instance.Stopping { // which is always at work
			if v := q.offer(r.Phase, &Request{Event: e}); !v.begin {
				t.Fatalf("%q is due while %s, and %s", e, r.Phase, v.answer)
			}
		}
	})
}

// TestNothingIsTriedBeforeItsTime: what has failed is put off.
func TestNothingIsTriedBeforeItsTime(t *testing.T) {
	r := newRig(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := New(Config{
		Driver: r, Images: shelf{}, Store: r, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	}, Record{Phase: instance.Deleting})
	s.pace(errBoom)
	now = now.Add(s.cfg.Limits.Retry - time.Second)
	if s.due(t.Context()); s.queue.busy != nil || s.untilDue() != time.Second {
		t.Errorf("%+v is at work, the next look is in %v", s.queue.busy, s.untilDue())
	}
	now = now.Add(time.Second)
	if wait := s.untilDue(); wait != 0 {
		t.Errorf("what is due is waited for, %v", wait)
	}
	if s.due(t.Context()); s.queue.busy == nil || s.queue.busy.Event != instance.DeleteRequested {
		t.Errorf("%+v is at work, want the removal", s.queue.busy)
	}
	s.wg.Wait()
}

// paper is a store that keeps nothing.
type paper struct{}

func (paper) Save(context.Context, Record, Record, Note) error { return nil }
func (paper) Remove(context.Context, Record, Note) error       { return nil }

// TestNothingIsBegunWithoutAReason: between the look at the clock and the storing
// of what is due, its end may be moved and somebody may come.
func TestNothingIsBegunWithoutAReason(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		event instance.Event
		left  time.Duration
		users int
		next  instance.Phase
		begun bool
	}{
		"its time is up":                {instance.Expired, 0, 0, instance.Stopping, true},
		"it was renewed":                {instance.Expired, time.Hour, 0, instance.Stopping, false},
		"it was renewed, when it rests": {instance.Expired, time.Hour, 0, instance.Deleting, false},
		"nobody uses it":                {instance.IdleStopped, time.Hour, 0, instance.Stopping, true},
		"somebody came":                 {instance.IdleStopped, time.Hour, 1, instance.Stopping, false},
		"it was asked for":              {instance.StopRequested, time.Hour, 1, instance.Stopping, true},
	} {
		s := New(Config{Store: paper{}, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }},
			Record{Phase: instance.Running, ExpiresAt: now.Add(c.left)})
		for range c.users {
			defer s.Use()()
		}
		err := s.enter(t.Context(), &Request{Event: c.event}, c.next)
		if begun := s.Record().Phase == c.next; begun != c.begun || errors.Is(err, errOutOfDate) == begun {
			t.Errorf("%s: %v, and it is %s", name, err, s.Record().Phase)
		}
		if s.parting {
			t.Errorf("%s: it goes on parting", name)
		}
	}
}
