package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// The kinds of operations.
const (
	kindCreate  = "instance.create"
	kindDelete  = "instance.delete"
	kindStart   = "instance.start"
	kindStop    = "instance.stop"
	kindRestart = "instance.restart"
	kindPause   = "instance.pause"
	kindResume  = "instance.resume"

	// What the fleet does by itself.
	kindExpire = "instance.expire"
	kindIdle   = "instance.idle"
	kindWake   = "instance.wake"
)

// byRequest is why an instance is in its phase when somebody asked for it.
const byRequest = "request"

// Act asks for a change of an instance. What makes no sense in its phase
// fails as an operation, with the reason.
func (f *Fleet) Act(ctx context.Context, ref string, a Action, o ActOptions) (Operation, error) {
	events := map[Action]struct {
		kind  string
		event instance.Event
	}{
		ActionStart:   {kindStart, instance.StartRequested},
		ActionStop:    {kindStop, instance.StopRequested},
		ActionRestart: {kindRestart, instance.RestartRequested},
		ActionPause:   {kindPause, instance.PauseRequested},
		ActionResume:  {kindResume, instance.ResumeRequested},
	}
	e, ok := events[a]
	if !ok {
		return Operation{}, &instance.Fault{
			Blame: instance.Caller, Code: "action.unknown",
			Err: fmt.Errorf("cannot %q an instance: want start, stop, restart, pause or resume", a),
		}
	}
	s, err := f.find(ctx, ref)
	if err != nil {
		return Operation{}, err
	}
	return f.request(ctx, s, e.kind, &supervise.Request{Event: e.event, Force: o.Force})
}

// Delete removes an instance and everything of it. Work in progress on it is
// cut short and undone first. With a generation other than 0 it must be that
// of the instance.
func (f *Fleet) Delete(ctx context.Context, ref string, ifGeneration int64) (Operation, error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return Operation{}, err
	}
	if err := unchanged(s.Record(), ifGeneration); err != nil {
		return Operation{}, err
	}
	return f.request(ctx, s, kindDelete, &supervise.Request{Event: instance.DeleteRequested})
}

func (f *Fleet) request(ctx context.Context, s *supervise.Supervisor, kind string, req *supervise.Request) (Operation, error) {
	f.arriving.RLock()
	defer f.arriving.RUnlock()
	r := s.Record()
	if _, ok := f.cfg.Drivers[r.Provider]; !ok && kind != kindDelete {
		// Begun, it would fail, and the phase would no longer tell what the machine
		// does. A removal waits until the provider is back.
		return Operation{}, absent{r.Provider}.fault()
	}
	op, err := f.ops.draft(ctx, kind, r.Tenant, r.ID, r.Name)
	if err != nil {
		return Operation{}, err
	}
	if err := f.ops.open(ctx, op); err != nil {
		// With a full disk nothing can be recorded, but a removal frees some.
		if kind != kindDelete || instance.AsFault(err).Code != codeStoreFull {
			return Operation{}, err
		}
		f.log.WarnContext(ctx, "removing an instance without a record of it", "instance", r.ID.String(), "error", err)
		f.ops.adopt(op)
	}
	t := tracker{f.ops, op.ID}
	req.ID, req.Track, req.Why = op.ID, t, byRequest
	if err := s.Submit(ctx, req); err != nil {
		t.End(ctx, err)
		return Operation{}, err
	}
	return op, nil
}

// codeStoreFull is what a store says when its disk is.
const codeStoreFull = "store.full"

// unchanged checks the generation a caller has seen; 0 is any.
func unchanged(r supervise.Record, ifGeneration int64) error {
	if ifGeneration == 0 || ifGeneration == r.Generation {
		return nil
	}
	return &instance.Fault{
		Blame: instance.Caller, Code: "instance.changed", Hint: "look at it again, then decide anew",
		Err: fmt.Errorf("instance %q has changed: its generation is %d, not %d", r.Name, r.Generation, ifGeneration),
	}
}

// maxTTL bounds how far away an end may be.
const maxTTL = 10 * 366 * 24 * time.Hour

// Renew moves the end of an instance to ttl from now; 0 takes its end away.
func (f *Fleet) Renew(ctx context.Context, ref string, ttl time.Duration) (View, error) {
	if ttl < 0 || ttl > maxTTL {
		return View{}, &instance.Fault{
			Blame: instance.Caller, Code: "instance.ttl", Err: fmt.Errorf("ttl %v: want 0 to %v", ttl, maxTTL),
		}
	}
	s, err := f.find(ctx, ref)
	if err != nil {
		return View{}, err
	}
	r, err := s.Update(ctx, supervise.Note{}, func(r *supervise.Record) error {
		if _, _, err := instance.Next(r.Phase, instance.RenewRequested); err != nil {
			return &instance.Fault{Blame: instance.Caller, Code: "instance.state", Err: err}
		}
		r.Renew(f.expiry(ttl))
		return nil
	})
	if err != nil {
		return View{}, err
	}
	return f.view(s, r), nil
}

// expiry is the end of what lives for ttl from now.
func (f *Fleet) expiry(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return f.cfg.Now().Add(ttl).UTC().Truncate(time.Millisecond)
}

// SetLabels replaces the labels of an instance. With a generation other than 0
// it must be that of the instance.
func (f *Fleet) SetLabels(ctx context.Context, ref string, labels map[string]string, ifGeneration int64) (View, error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return View{}, err
	}
	r, err := s.Update(ctx, supervise.Note{}, func(r *supervise.Record) error {
		if err := unchanged(*r, ifGeneration); err != nil {
			return err
		}
		r.Labels = labels
		return nil
	})
	if err != nil {
		return View{}, err
	}
	return f.view(s, r), nil
}

// CancelOperation asks for the end of an operation that goes on. One that
// waits ends at once. A create or a start is undone; its operation ends when
// that is done. What cannot be undone goes on: "operation.not_cancelable".
func (f *Fleet) CancelOperation(ctx context.Context, id string) (Operation, error) {
	op, err := f.Operation(ctx, id)
	if err != nil {
		return Operation{}, err
	}
	if op.State.Done() {
		return Operation{}, operationEnded(op)
	}
	f.arriving.Lock() // it may be seen before its supervisor has it
	f.mu.Lock()
	s := f.byID[op.Instance]
	f.mu.Unlock()
	f.arriving.Unlock()
	if s == nil {
		return Operation{}, operationEnded(op)
	}
	// Stored first: should the process die now, the next one cancels it.
	err = f.ops.change(ctx, id, func(op *Operation) Event {
		op.Canceling = true
		e := operationEvent(*op, EventOperationChanged)
		e.Reason, e.Message = "canceling", op.Phase
		return e
	})
	if err != nil {
		return Operation{}, err
	}
	if err := s.Cancel(ctx, id); err != nil {
		_ = f.ops.change(ctx, id, func(op *Operation) Event { // logged there
			op.Canceling = false
			e := operationEvent(*op, EventOperationChanged)
			e.Reason, e.Message = "going-on", op.Phase
			return e
		})
		if errors.Is(err, supervise.ErrNoRequest) {
			return Operation{}, operationEnded(op)
		}
		return Operation{}, err
	}
	return f.Operation(ctx, id)
}

func operationEnded(op Operation) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "operation.ended",
		Err: fmt.Errorf("cannot cancel operation %q: it is ending or has ended", op.ID),
	}
}

// policy opens an operation for what a supervisor begins by itself.
func (f *Fleet) policy(ctx context.Context, r supervise.Record, e instance.Event) (string, supervise.Tracker) {
	kind := map[instance.Event]string{
		instance.Expired: kindExpire, instance.IdlePaused: kindIdle, instance.IdleStopped: kindIdle, instance.Used: kindWake,
	}[e]
	op, err := f.ops.draft(ctx, kind, r.Tenant, r.ID, r.Name)
	if err == nil {
		err = f.ops.open(ctx, op)
	}
	if err != nil {
		f.log.WarnContext(ctx, "cannot record what is begun", "instance", r.ID.String(), "event", e, "error", err)
		return "", nil
	}
	return op.ID, tracker{f.ops, op.ID}
}

// health tells of a fault that a phase does not show, or that it has gone.
func (f *Fleet) health(ctx context.Context, r supervise.Record, fault *instance.Fault) {
	e := eventOf(r, EventRecovered, supervise.Note{})
	if fault != nil {
		e = faultEvent(r, fault, supervise.Note{})
	}
	if err := f.events.apply(ctx, &Change{Events: []Event{e}}); err != nil {
		f.log.ErrorContext(ctx, "cannot store an event", "error", err)
	}
}
