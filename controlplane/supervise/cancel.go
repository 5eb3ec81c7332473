package supervise

import (
	"context"
	"errors"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Causes with which activities are cut short.
var (
	errCanceled = errors.New("its end was asked for")
	errCutShort = errors.New("another request comes first")
	errRemoved  = fmt.Errorf("%w: the machine is being removed", errCutShort)
)

// ErrNoRequest is what Cancel says of a request that has ended, or has not
// come yet.
var ErrNoRequest = errors.New("no such request")

type cancel struct {
	id     string
	answer chan error
}

// Cancel asks for the end of a request by its id. One that waits ends at once.
// A create or start at work is undone and ends when that is done. Others at
// work cannot be taken back: a fault with CodeNotCancelable.
func (s *Supervisor) Cancel(ctx context.Context, id string) error {
	c := cancel{id: id, answer: make(chan error, 1)}
	select {
	case s.cancels <- c:
		return <-c.answer
	case <-s.gone:
		return ErrNoRequest
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Supervisor) cancel(ctx context.Context, id string) error {
	for len(s.requests) > 0 { // those that came before
		s.take(ctx, <-s.requests)
	}
	w := s.queue.withdraw(id)
	switch r := w.request; {
	case r == nil:
		return ErrNoRequest
	case w.ended:
		r.end(ctx, canceledFault(r))
		return nil
	case r.canceled:
		return nil
	case r.working == instance.StartRequested:
		// What is to become of it is stored first, so that the next process
		// goes on with the undoing, not with the start.
		next := instance.Stopping
		if s.Record().Guest == nil {
			next = instance.Deleting
		}
		if err := s.save(ctx, r.note(), func(rec *Record) error {
			rec.Phase, rec.Reason = next, "canceled"
			return nil
		}); err != nil {
			return err
		}
		r.canceled = true
		s.interrupt(errCanceled)
		return nil
	case r.working == instance.StopRequested && r.Event == instance.RestartRequested:
		// The stop goes on, the start does not come.
		err := s.save(ctx, r.note(), func(rec *Record) error { rec.After = ""; return nil })
		r.canceled = err == nil
		return err
	default:
		return &instance.Fault{
			Blame: instance.Caller, Code: CodeNotCancelable, Hint: "wait for its end",
			Err: fmt.Errorf("cannot cancel a %s at work: it cannot be undone", r.Event),
		}
	}
}

// cutShort interrupts the activity at work for a request that comes first.
// Where the instance is then bound for is stored before.
func (s *Supervisor) cutShort(ctx context.Context, r *Request) {
	busy := s.queue.busy
	if r.Event == instance.DeleteRequested || busy.working == instance.StartRequested {
		next, answer, _ := instance.Next(s.Record().Phase, r.Event)
		if answer == instance.Accepted {
			s.note(ctx, r.note(), func(rec *Record) {
				rec.Phase, rec.Reason, rec.After = next, r.Why, ""
			})
			r.begun = true
		}
	}
	cause := errCutShort
	if r.Event == instance.DeleteRequested {
		cause = errRemoved
	}
	s.interrupt(cause)
}

// overtaken is what the failure of a request that was cut short is called:
// what broke off when it was is no fault of anything. An event says that more
// has happened; to a machine that is being removed nothing more can.
func (s *Supervisor) overtaken(ctx context.Context, r *Request, event instance.Event, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil || event == removedEvent || !errors.Is(cause, errCutShort):
		return err
	case event != "" && !errors.Is(cause, errRemoved):
		return err
	}
	s.log.InfoContext(ctx, "request was cut short", "event", r.Event, "error", err)
	return cutShortFault(r, errors.Is(cause, errRemoved))
}

func cutShortFault(r *Request, removed bool) error {
	why := "another request came first"
	if removed {
		why = "the machine is being removed"
	}
	return &instance.Fault{
		Blame: instance.Caller, Code: CodeCanceled, Err: fmt.Errorf("the %s was cut short: %s", r.Event, why),
	}
}

// withdrawn is how a request ends whose work has come to its end in spite of
// its own, which was asked for; nil for all others.
func (s *Supervisor) withdrawn(r *Request) error {
	switch {
	case r.canceled:
		return canceledFault(r)
	case r.overtaken:
		return cutShortFault(r, s.Record().Phase == instance.Deleting)
	}
	return nil
}

func canceledFault(r *Request) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: CodeCanceled, Err: fmt.Errorf("the %s was cancelled", r.Event),
	}
}

// denied makes a fault of what was denied to the instance of that name.
func denied(name string, err error) error {
	f := &instance.Fault{Blame: instance.Caller, Code: CodeState, Err: err}
	var d *instance.Denial
	if errors.As(err, &d) {
		f.Hint = d.Remedy(name)
		if d.Reason == instance.QueueFull {
			f.Code = CodeBusy
		}
	}
	return f
}
