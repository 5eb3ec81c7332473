package push_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestAbsenceIsNoFailure: the time in which there was no process, or by which the
// clock was set meanwhile, does not count against a webhook.
func TestAbsenceIsNoFailure(t *testing.T) {
	hook := newReceiver(t, func(int, wire) int { return 503 })
	fired, held := make(chan time.Time), make(chan time.Time)
	close(fired)
	r := newRig(t, func(c *push.Config) { c.After = func(time.Duration) <-chan time.Time { return held } })
	r.task("t")
	r.hook("t", hook.url)
	for failures, jump := range []time.Duration{0, 10 * time.Hour, -1000 * time.Hour, 1000 * time.Hour} {
		if failures > 0 {
			r.close()
			r.clock.After(jump)
			waits := jump < 0 // for the rest of the pause, before the first try
			r.cfg.After = func(time.Duration) <-chan time.Time {
				if waits {
					waits = false
					return fired
				}
				return held
			}
			r.open()
		}
		if p := r.stored("t", func(p push.Progress) bool { return p.Failures > failures }); p.State != push.Active {
			t.Errorf("%v later it is %+v", jump, p)
		}
	}
}

// TestOwnersAreBounded: a principal has only so many webhooks that are waited
// for, over all its tasks and after a restart too; others are not concerned.
func TestOwnersAreBounded(t *testing.T) {
	const most = 3
	hook := newReceiver(t, func(int, wire) int { return 503 })
	held := make(chan time.Time)
	r := newRig(t, func(c *push.Config) {
		c.After = func(time.Duration) <-chan time.Time { return held }
		c.Limits.Active = most
	})
	register := func(taskID, id string) error {
		_, err := r.s.Create(t.Context(), task.System(), taskID, push.Registration{ID: id, Version: "1.0", URL: hook.url}, 0)
		return err
	}
	alice, bob := task.Scope{Owner: "alice"}, task.Scope{Owner: "bob"}
	for i := range most {
		id := strconv.Itoa(i)
		r.task(id)
		r.must(r.s.Room(t.Context(), alice, "", ""))
		r.must(register(id, "h"))
	}
	r.task("more")
	r.must(r.tasks.create(t.Context(), "bobs", "bob"))
	for range 2 { // the second time after a restart
		if err := register("more", "h"); !errors.Is(err, push.ErrFull) {
			t.Errorf("one too many: %v", err)
		}
		if err := r.s.Room(t.Context(), alice, "", ""); !errors.Is(err, push.ErrFull) {
			t.Errorf("room for one too many: %v", err)
		}
		r.must(register("0", "h")) // in place of another
		r.must(r.s.Room(t.Context(), bob, "", ""))
		r.close()
		r.open()
	}
	r.must(register("bobs", "h"))
	r.must(r.s.Delete(t.Context(), task.System(), "0", "h"))
	r.must(register("more", "h"))
}
