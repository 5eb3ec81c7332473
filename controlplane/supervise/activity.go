package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

// activity does the work of one request and says which event its end is; an
// empty event changes nothing.
type activity func(ctx context.Context, r *Request) (instance.Event, error)

// doing is an activity with the request whose rules hold while it works.
type doing struct {
	as instance.Event
	do activity
}

// demanded is what an instance in phase p needs, and what brings it there.
func (s *Supervisor) demanded(p instance.Phase) doing {
	switch p {
	case instance.Provisioning, instance.Starting:
		return doing{instance.StartRequested, s.provision}
	case instance.Running, instance.Paused:
		return doing{recovering, s.recoverMachine}
	case instance.Stopping:
		return doing{instance.StopRequested, s.stop}
	case instance.Deleting:
		return doing{instance.DeleteRequested, s.remove}
	case instance.Stopped, instance.Failed:
	}
	return doing{}
}

// beginWith starts what the stored phase demands when a supervisor begins.
// Requests of an earlier process go on where they stood.
func (s *Supervisor) beginWith(ctx context.Context, unended []*Request) {
	rec := s.Record()
	d := s.demanded(rec.Phase)
	fits := func(r *Request) bool { return slices.Contains(leadsTo(rec), r.Event) }
	var first *Request
	var rest []*Request
	for _, r := range unended {
		switch {
		case d.do == nil || !fits(r):
			rest = append(rest, r)
		case first == nil:
			first = r
		default:
			s.queue.joined = append(s.queue.joined, r)
		}
	}
	if d.do != nil {
		if first == nil {
			first = &Request{Event: d.as, Why: rec.Reason}
		}
		s.work(ctx, first, d)
	}
	for _, r := range rest {
		s.take(ctx, r)
	}
	for _, r := range unended {
		if !r.Cancel {
			continue
		}
		if err := s.cancel(ctx, r.ID); err != nil {
			s.log.InfoContext(ctx, "a request goes on although its end was asked for", "operation", r.ID, "error", err)
		}
	}
}

// leadsTo are the requests whose work a record shows under way.
func leadsTo(r Record) []instance.Event {
	switch r.Phase {
	case instance.Provisioning, instance.Starting:
		return []instance.Event{instance.StartRequested, instance.RestartRequested, instance.Used}
	case instance.Stopping:
		switch r.After {
		case instance.StartRequested:
			return []instance.Event{instance.RestartRequested}
		case instance.DeleteRequested:
			return []instance.Event{instance.Expired}
		}
		return []instance.Event{instance.StopRequested, instance.IdleStopped}
	case instance.Deleting:
		return []instance.Event{instance.DeleteRequested, instance.Expired}
	case instance.Running, instance.Paused, instance.Stopped, instance.Failed:
	}
	return nil
}

// take gives one request to the queue and acts on its verdict.
func (s *Supervisor) take(ctx context.Context, r *Request) {
	phase := s.Record().Phase
	v := s.queue.offer(phase, r)
	s.log.DebugContext(ctx, "request", "event", r.Event, "phase", phase, "answer", v.answer, "begun", v.begin)
	switch {
	case v.answer == instance.Ignored:
		// Who asked learns from it that there was nothing to do.
		_ = r.mark(ctx, Step{Name: string(r.Event), Mark: string(converge.Skipped)}) // its tracker logs it
		r.end(ctx, s.stay(ctx, r))
	case v.answer == instance.Denied:
		r.end(ctx, denied(s.Record().Name, v.reason))
	case v.begin:
		s.begin(ctx, r, v.next)
	case v.interrupt:
		s.cutShort(ctx, r)
	case v.hurry:
		s.hurry()
	}
}

// begin stores the phase a request leads to and starts its activity.
func (s *Supervisor) begin(ctx context.Context, r *Request, next instance.Phase) {
	err := s.enter(ctx, r, next)
	switch {
	case err == nil:
		s.work(ctx, r, s.towards(next))
		return
	case errors.Is(err, errOutOfDate):
		err = canceledFault(r)
		s.notBefore = time.Time{}
	case next == instance.Deleting:
		// A full disk must not keep us from freeing some of it.
		s.note(ctx, r.note(), func(rec *Record) { rec.enter(r, next) })
		s.work(ctx, r, s.towards(next))
		return
	}
	for _, one := range append(s.queue.done(), r) {
		one.end(ctx, err)
	}
}

// errOutOfDate is the end of what a policy began when the reason for it has
// gone before it was stored.
var errOutOfDate = errors.New("there is no reason for it any more")

// enter stores the phase that a request leads to. A pause and a resume are
// acted on first: until the processor has stopped, or goes on, the truth is
// still the old phase.
func (s *Supervisor) enter(ctx context.Context, r *Request, next instance.Phase) error {
	if r.Event == instance.IdleStopped && !s.part() {
		return errOutOfDate
	}
	defer s.parted()
	switch next {
	case instance.Running:
		return nil
	case instance.Paused:
		intent := instance.Event("")
		if r.Event == instance.IdlePaused {
			intent = r.Event // so that whoever finds it paused knows that it rests
		}
		if s.Record().After == intent {
			return nil
		}
		return s.save(ctx, r.note(), func(rec *Record) error { rec.After = intent; return nil })
	case instance.Provisioning, instance.Starting, instance.Stopping, instance.Stopped, instance.Failed, instance.Deleting:
	}
	return s.save(ctx, r.note(), func(rec *Record) error {
		if r.Event == instance.Expired && !rec.expired(s.cfg.Now()) {
			return errOutOfDate // it was renewed
		}
		rec.enter(r, next)
		return nil
	})
}

// stay ends the rest of a machine that somebody asks to be paused or stopped,
// as it is already: from now on that is so because it was asked for, and the
// next use does not change it.
func (s *Supervisor) stay(ctx context.Context, r *Request) error {
	rec := s.Record()
	asked := r.Event == instance.PauseRequested && rec.Phase == instance.Paused ||
		r.Event == instance.StopRequested && rec.Phase == instance.Stopped
	if !rec.Resting || !asked {
		return nil
	}
	return s.save(ctx, r.note(), func(rec *Record) error {
		rec.Resting, rec.Reason = false, r.Why
		return nil
	})
}

// towards is the activity that leads to a phase.
func (s *Supervisor) towards(next instance.Phase) doing {
	switch next {
	case instance.Paused:
		return doing{instance.PauseRequested, s.pause}
	case instance.Running:
		return doing{instance.ResumeRequested, s.resume}
	case instance.Provisioning, instance.Starting, instance.Stopping, instance.Stopped, instance.Failed, instance.Deleting:
	}
	return s.demanded(next)
}

// work starts an activity for a request.
func (s *Supervisor) work(ctx context.Context, r *Request, d doing) {
	s.queue.busy = r
	r.working, r.hurried = d.as, make(chan struct{})
	actCtx, cancel := context.WithCancelCause(request.WithOperation(context.WithoutCancel(ctx), r.ID))
	release := context.AfterFunc(ctx, func() { cancel(converge.ErrDetached) })
	s.interrupt = cancel
	if d.as != instance.PauseRequested && d.as != instance.ResumeRequested {
		s.unwatch() // it sees the machine end by itself
	}
	s.wg.Go(func() {
		defer cancel(nil)
		defer release()
		event, err := d.do(actCtx, r)
		err = s.overtaken(actCtx, r, event, err)
		res := result{request: r, event: event, err: err, removed: event == removedEvent}
		if res.removed {
			res.event = ""
		}
		if ctx.Err() != nil {
			return // the daemon is stopping: the stored phase tells the next one
		}
		s.results <- res
	})
}

// hurry makes the stop at work wait no longer for the guest.
func (s *Supervisor) hurry() {
	select {
	case <-s.queue.busy.hurried:
	default:
		close(s.queue.busy.hurried)
	}
}

// removedEvent is the end of a delete; it is no event of the table because
// nothing is left to have a phase.
const removedEvent instance.Event = "removed"

// finish ends an activity and begins the next. It reports whether the
// instance is no more.
func (s *Supervisor) finish(ctx context.Context, res result) bool {
	s.interrupt = nil
	r := res.request
	if res.removed {
		if res.err == nil {
			res.err = s.withdrawn(r)
		}
		s.removed = true
		if s.cfg.Removed != nil {
			s.cfg.Removed()
		}
		s.endShared(ctx, res)
		s.refuseWaiting(ctx)
		return true
	}
	before := s.Record().Phase
	if res.event != "" {
		s.apply(ctx, r, res.event, res.err)
	}
	after := s.Record().Phase
	switch {
	case before == instance.Stopping && (after == instance.Starting || after == instance.Deleting):
		s.work(ctx, r, s.demanded(after)) // the second half of the request
		return false
	case res.err == nil && r.working == instance.StartRequested && (after == instance.Stopping || after == instance.Deleting):
		// It came up although its end had been stored, too late to interrupt
		// anything: without more work it would be on its way down for ever.
		r.overtaken = true
		s.work(ctx, r, s.demanded(after))
		return false
	}
	if res.err == nil {
		res.err = s.withdrawn(r)
	}
	if res.err == nil && r.Event == instance.Expired {
		res.err = canceledFault(r) // its end was moved meanwhile
	}
	s.pace(res.err)
	s.endShared(ctx, res)
	for rep, ok := s.queue.said(); ok; rep, ok = s.queue.said() {
		s.reported(ctx, rep)
	}
	s.rewatch(ctx)
	for s.queue.busy == nil {
		next := s.queue.next()
		if next == nil {
			break
		}
		s.take(ctx, next)
	}
	return false
}

// apply moves the record by an event and stores it. cause becomes the fault
// when the new phase is Failed, or the guest has gone by itself.
func (s *Supervisor) apply(ctx context.Context, r *Request, e instance.Event, cause error) {
	s.note(ctx, r.note(), func(rec *Record) {
		to, answer, _ := instance.Next(rec.Phase, e)
		if answer != instance.Accepted {
			return
		}
		asked := rec.Phase == instance.Stopping
		follow := rec.After
		rec.Phase, rec.After = to, ""
		switch to {
		case instance.Failed:
			rec.Resting, rec.Fault = false, instance.AsFault(cause)
			rec.Reason = rec.Fault.Code
		case instance.Stopped:
			rec.Fault = nil
			if !asked && cause != nil {
				rec.Resting, rec.Fault = false, instance.AsFault(cause)
				rec.Reason = rec.Fault.Code
			}
			if next, answer, _ := instance.Next(to, follow); follow != "" && !r.canceled && answer == instance.Accepted {
				rec.enter(r, next)
			}
		case instance.Paused:
			rec.Resting, rec.Reason, rec.Fault = r.Event == instance.IdlePaused, r.Why, nil
			if r.Event == recovering && follow == instance.IdlePaused {
				rec.Resting, rec.Reason = true, whyOf(*rec, follow)
			}
		case instance.Running:
			rec.Resting, rec.Reason, rec.Fault = false, r.Why, nil
		case instance.Provisioning, instance.Starting, instance.Stopping, instance.Deleting:
		}
	})
}

// journal turns the steps of converge into those of a request.
type journal struct {
	s *Supervisor
	r *Request
}

func (j journal) Mark(ctx context.Context, step converge.Step, mark converge.Mark, cause error) error {
	j.s.log.DebugContext(ctx, "step", "step", step.Name, "mark", mark)
	percent := step.Percent
	if mark != converge.Did && mark != converge.Skipped {
		percent = 0 // the tracker never goes back
	}
	err := j.r.mark(ctx, Step{Name: step.Name, Mark: string(mark), Percent: percent, Cause: cause})
	if err != nil {
		return fmt.Errorf("cannot record the step: %w", err)
	}
	return nil
}
