package supervise

import (
	"context"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
)

// lookAgain bounds the sleep while something is due by the clock on the wall,
// which may jump.
const lookAgain = 15 * time.Second

// usage is what is known of the use of a machine.
type usage struct {
	users int
	last  time.Time // when one began or ended
	runs  time.Time // since when it runs
}

// idleFrom is when the time of a machine that nobody uses began: a boot, a
// pause or a stop is not held against it.
func (u usage) idleFrom() time.Time {
	if u.runs.After(u.last) {
		return u.runs
	}
	return u.last
}

// dueEvent is what an instance is to do by itself now, and when to look again
// if it is nothing: after 0, not before something happens.
func dueEvent(r *Record, u usage, now time.Time) (e instance.Event, wait time.Duration) {
	soonest := func(d time.Duration) {
		if wait == 0 || d < wait {
			wait = d
		}
	}
	if r.Phase == instance.Deleting {
		return instance.DeleteRequested, 0 // an earlier one failed
	}
	if r.expired(now) {
		return instance.Expired, 0
	}
	if !r.ExpiresAt.IsZero() {
		soonest(min(r.ExpiresAt.Sub(now.Round(0)), lookAgain))
	}
	idle := r.Plan.Idle
	if idle == nil {
		return "", wait
	}
	if r.Resting && idle.Wake && u.users > 0 && (r.Phase == instance.Paused || r.Phase == instance.Stopped) {
		return instance.Used, 0
	}
	if r.Phase != instance.Running || u.users > 0 {
		return "", wait
	}
	left := idle.Timeout - now.Sub(u.idleFrom())
	if left > 0 {
		soonest(left)
		return "", wait
	}
	if idle.Action == plan.IdleStop {
		return instance.IdleStopped, 0
	}
	return instance.IdlePaused, 0
}

// whyOf is the word that is stored with what a policy does.
func whyOf(r Record, e instance.Event) string {
	switch e {
	case instance.Expired:
		return "expired"
	case instance.IdlePaused, instance.IdleStopped:
		return "idle"
	case instance.Used:
		return "used"
	}
	return r.Reason
}

// present is what dueEvent asks for.
func (s *Supervisor) present() (r Record, u usage, unsaved, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	executes := s.record.Phase == instance.Running || s.record.Phase == instance.Paused
	return s.record.clone(), usage{s.users, s.lastUsed, s.runsSince}, s.unsaved, executes && s.machine == nil
}

// untilDue is how long to sleep.
func (s *Supervisor) untilDue() time.Duration {
	const long = time.Hour
	if s.queue.busy != nil {
		return long // its end wakes us
	}
	now := s.cfg.Now()
	r, u, unsaved, lost := s.present()
	e, wait := dueEvent(&r, u, now)
	switch {
	case e != "" || unsaved || lost:
		return max(0, s.notBefore.Sub(now))
	case wait == 0:
		return long
	}
	return wait
}

// due does what an instance is to do by itself.
func (s *Supervisor) due(ctx context.Context) {
	if r := s.queue.urgent(s.Record().Phase); r != nil {
		s.cutShort(ctx, r) // it had come too early for the phase before
	}
	now := s.cfg.Now()
	if s.queue.busy != nil || now.Before(s.notBefore) {
		return
	}
	r, u, unsaved, lost := s.present()
	e, _ := dueEvent(&r, u, now)
	switch {
	case unsaved:
		s.notBefore = now.Add(s.cfg.Limits.Retry)
		s.note(ctx, Note{}, func(*Record) {})
		if !s.stillUnsaved() {
			s.notBefore = time.Time{}
		}
	case e != "":
		s.notBefore = now.Add(s.cfg.Limits.Retry) // until it has succeeded
		req := &Request{Event: e, Why: whyOf(r, e)}
		if s.cfg.Policy != nil && e != instance.DeleteRequested {
			req.ID, req.Track = s.cfg.Policy(ctx, r, e)
		}
		s.take(ctx, req)
	case lost:
		s.work(ctx, &Request{Event: recovering}, s.demanded(r.Phase))
	}
}

func (s *Supervisor) stillUnsaved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsaved
}

// pace puts off what is done unasked after a failure.
func (s *Supervisor) pace(err error) {
	s.notBefore = time.Time{}
	if err != nil {
		s.notBefore = s.cfg.Now().Add(s.cfg.Limits.Retry)
	}
}

// stir has the clock set anew.
func (s *Supervisor) stir() {
	select {
	case s.stirred <- struct{}{}:
	default:
	}
}
