package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// stop ends the machine: in order if its guest can be asked, hard otherwise.
func (s *Supervisor) stop(ctx context.Context, r *Request) (instance.Event, error) {
	if err := r.step(ctx, "power-off", 10); err != nil {
		s.log.WarnContext(ctx, "cannot record a step", "error", err) // ending it is right anyway
	}
	rec := s.Record()
	m, err := s.ensureMachine(ctx)
	switch {
	case err != nil:
		return instance.GaveUp, err
	case m == nil && rec.Guest != nil:
		return instance.Lost, Lost(rec)
	case m == nil:
		return instance.PoweredOff, nil
	}
	if !r.Force {
		s.orderly(ctx, r, m)
	}
	s.dropLink()
	r.did(ctx, "power-off", 70)
	if ctx.Err() != nil {
		return "", context.Cause(ctx) // a delete comes first, or the daemon ends
	}
	_ = r.step(ctx, "cut", 80) // as above
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Cut)
	defer cancel()
	if err := hardStop(ctx, m); err != nil {
		return instance.GaveUp, hung(ctx, m, rec, "stop", err)
	}
	r.did(ctx, "cut", 90)
	return instance.PoweredOff, nil
}

// reachLimit bounds the search for an agent that there is no link to.
const reachLimit = 10 * time.Second

// orderly asks the guest to power off and waits for it within the grace. What
// goes wrong here does not matter: the power is cut afterwards.
func (s *Supervisor) orderly(ctx context.Context, r *Request, m vm.Instance) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.PowerOff)
	defer cancel()
	stop := make(chan struct{})
	hurried := make(chan struct{})
	go func() { // ends with this function
		defer close(hurried)
		select {
		case <-r.hurried:
			cancel()
		case <-stop:
		}
	}()
	defer func() { close(stop); <-hurried }()
	if err := s.askToPowerOff(ctx, m); err != nil {
		s.log.InfoContext(ctx, "guest did not take the power-off", "error", err)
		return
	}
	if _, err := m.Wait(ctx); err != nil {
		s.log.InfoContext(ctx, "guest did not power off in time", "grace", s.cfg.Limits.PowerOff)
	}
}

// askToPowerOff gives the guest the word. One that is paused must go on for
// that: what it has not written yet would be lost.
func (s *Supervisor) askToPowerOff(ctx context.Context, m vm.Instance) error {
	switch m.Diagnose(ctx).State {
	case statePaused:
		if p, ok := m.(vm.Pauser); ok {
			if err := p.Resume(ctx); err != nil {
				return err
			}
		}
	case stateRunning:
	default:
		return errors.New("the machine does not run")
	}
	link := s.currentLink()
	if link == nil { // an earlier process had it
		try, cancel := context.WithTimeout(ctx, min(reachLimit, s.cfg.Limits.PowerOff))
		defer cancel()
		var err error
		if link, err = s.dial(try, m); err != nil {
			return err
		}
		s.setLink(link)
	}
	return link.PowerOff(ctx)
}

func (s *Supervisor) pause(ctx context.Context, r *Request) (instance.Event, error) {
	err := s.toggle(ctx, r, "pause", vm.Pauser.Pause)
	if err != nil {
		return "", err
	}
	return instance.PauseRequested, nil
}

func (s *Supervisor) resume(ctx context.Context, r *Request) (instance.Event, error) {
	err := s.toggle(ctx, r, "resume", vm.Pauser.Resume)
	if err != nil {
		return "", err
	}
	return instance.ResumeRequested, nil
}

// toggle pauses or resumes. A hypervisor that does not answer ends it in time.
func (s *Supervisor) toggle(ctx context.Context, r *Request, verb string, f func(vm.Pauser, context.Context) error) error {
	rec := s.Record()
	m, err := s.ensureMachine(ctx)
	if err != nil {
		return err
	}
	if m == nil {
		return Lost(rec)
	}
	p, ok := m.(vm.Pauser)
	if !ok {
		return unsupported(rec, verb)
	}
	if err := r.step(ctx, verb, 10); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Toggle)
	defer cancel()
	if err := f(p, ctx); err != nil {
		return hung(ctx, m, rec, verb, err)
	}
	r.did(ctx, verb, 90)
	return nil
}

// remove takes away everything of an instance, its record last.
func (s *Supervisor) remove(ctx context.Context, r *Request) (instance.Event, error) {
	_ = r.step(ctx, "machine", 20) // with a full disk nothing can be recorded, and much be freed
	s.dropLink()
	m, err := s.ensureMachine(ctx)
	gone := string(converge.Did)
	switch {
	case errors.Is(err, ErrNotOffered):
		// Who takes the provider away for good must get rid of its instances too.
		gone = string(converge.Skipped)
		s.log.WarnContext(ctx, "forgetting an instance whose machine cannot be removed", "error", err)
	case err != nil:
		return "", err
	}
	if m != nil {
		closeCtx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Cut)
		err := m.Close(closeCtx)
		cancel()
		if err != nil {
			return "", fmt.Errorf("cannot remove the machine of %q: %w", s.Record().Name, err)
		}
		s.setMachine(nil)
	}
	_ = r.mark(ctx, Step{Name: "machine", Mark: gone, Percent: 80, Cause: err}) // it is so, recorded or not
	_ = r.step(ctx, "record", 90)                                               // as above
	if err := s.forget(ctx, r); err != nil {
		return "", err
	}
	return removedEvent, nil
}

// forgetFor is how long a store may refuse to forget a record.
const forgetFor = 20 * time.Second

// forget removes the record. A store that is full or busy may have room in a
// moment: what the machine used has just been freed.
func (s *Supervisor) forget(ctx context.Context, r *Request) error {
	rec := s.Record()
	deadline := time.NewTimer(forgetFor)
	defer deadline.Stop()
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		err := s.cfg.Store.Remove(context.WithoutCancel(ctx), rec, r.note())
		if err == nil {
			return nil
		}
		err = fmt.Errorf("cannot forget instance %q: %w", rec.Name, err)
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-deadline.C:
			again.Stop()
			return err
		case <-ctx.Done():
			again.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

func hardStop(ctx context.Context, m vm.Instance) error {
	st, ok := m.(vm.Stopper)
	if !ok {
		return errors.New("the driver cannot cut the power")
	}
	return st.Stop(ctx)
}
