package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// powerOffGrace is what a guest gets to power off in order before the power
// is cut. Generous: an emulated guest on a busy host is slow.
const powerOffGrace = 30 * time.Second

// beginWith starts what the stored phase demands when a supervisor begins.
func (s *Supervisor) beginWith(ctx context.Context, r *Request) {
	switch phase := s.Record().Phase; phase {
	case instance.Provisioning:
		r.Event = instance.StartRequested
		s.work(ctx, r, s.provision)
	case instance.Starting:
		r.Event = instance.StartRequested
		s.work(ctx, r, s.provision)
	case instance.Running, instance.Paused:
		r.Event = recovering
		s.work(ctx, r, s.recoverMachine)
	case instance.Stopping:
		r.Event = instance.StopRequested
		s.work(ctx, r, s.stop)
	case instance.Deleting:
		r.Event = instance.DeleteRequested
		s.work(ctx, r, s.remove)
	case instance.Stopped, instance.Failed:
		r.end(ctx, nil)
	}
}

// begin stores the phase a request leads to and starts its activity.
func (s *Supervisor) begin(ctx context.Context, r *Request, next instance.Phase) {
	var act activity
	switch r.Event {
	case instance.StartRequested:
		act = s.provision
	case instance.StopRequested:
		act = s.stop
	case instance.PauseRequested:
		act = s.pause
	case instance.ResumeRequested:
		act = s.resume
	case instance.DeleteRequested:
		act = s.remove
	default:
		s.queue.busy = ""
		r.end(ctx, fmt.Errorf("internal error: no activity for %q", r.Event))
		return
	}
	if r.Event != instance.PauseRequested && r.Event != instance.ResumeRequested {
		// Pause and resume are acted on first: until the processor has
		// stopped the truth is still the old phase.
		err := s.save(ctx, Note{Operation: r.ID}, func(rec *Record) error {
			rec.Phase, rec.Reason, rec.Fault = next, r.Why, nil
			return nil
		})
		if err != nil {
			s.queue.busy = ""
			r.end(ctx, err)
			return
		}
	}
	s.work(ctx, r, act)
}

// activity does the work of one request and says which event its end is.
type activity func(ctx context.Context, r *Request) (instance.Event, error)

func (s *Supervisor) work(ctx context.Context, r *Request, act activity) {
	s.queue.busy = r.Event
	actCtx, cancel := context.WithCancel(ctx)
	s.interrupt = cancel
	s.wg.Go(func() {
		defer cancel()
		event, err := act(actCtx, r)
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

// removedEvent is the end of a delete; it is no event of the table because
// nothing is left to have a phase.
const removedEvent instance.Event = "removed"

// journal turns the steps of converge into progress.
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
	return j.r.mark(ctx, Step{Name: step.Name, Mark: string(mark), Percent: percent, Cause: cause})
}

// recoverMachine takes over a machine from an earlier process.
func (s *Supervisor) recoverMachine(ctx context.Context, _ *Request) (instance.Event, error) {
	rec := s.Record()
	if rec.Handle == nil {
		return instance.GaveUp, lost(rec)
	}
	m, err := s.cfg.Driver.Recover(ctx, *rec.Handle)
	if errors.Is(err, vm.ErrGone) {
		return instance.GaveUp, lost(rec)
	}
	if err != nil {
		return instance.GaveUp, fmt.Errorf("cannot take over the machine of %q: %w", rec.Name, err)
	}
	s.setMachine(m)
	if rec.Phase == instance.Paused {
		return "", nil
	}
	if _, err := s.connect(ctx, rec.Plan.SetupTimeout); err != nil {
		if f := instance.AsFault(err); f.Code == codeEnded || f.Code == codePoweredOff {
			if f.Code == codePoweredOff {
				return instance.PoweredOff, nil
			}
			return instance.Crashed, err
		}
		return instance.GaveUp, err
	}
	s.log.InfoContext(ctx, "took the machine over")
	return "", nil
}

func (s *Supervisor) stop(ctx context.Context, r *Request) (instance.Event, error) {
	if err := r.step(ctx, "power-off", 10); err != nil {
		return instance.GaveUp, err
	}
	m, err := s.ensureMachine(ctx)
	if err != nil || m == nil {
		return instance.PoweredOff, err
	}
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	if link != nil {
		s.orderly(ctx, m, link)
	}
	s.dropLink()
	_ = r.step(ctx, "cut", 80)
	if err := hardStop(ctx, m); err != nil {
		return instance.GaveUp, fmt.Errorf("cannot stop the machine of %q: %w", s.Record().Name, err)
	}
	return instance.PoweredOff, nil
}

// orderly asks the guest to power off and waits for it within the grace. What
// goes wrong here does not matter: the power is cut afterwards.
func (s *Supervisor) orderly(ctx context.Context, m vm.Instance, link *agentlink.Link) {
	ctx, cancel := context.WithTimeout(ctx, powerOffGrace)
	defer cancel()
	if err := link.PowerOff(ctx); err != nil {
		s.log.InfoContext(ctx, "guest did not take the power-off", "error", err)
		return
	}
	if _, err := m.Wait(ctx); err != nil {
		s.log.InfoContext(ctx, "guest did not power off in time", "grace", powerOffGrace)
	}
}

func (s *Supervisor) pause(ctx context.Context, _ *Request) (instance.Event, error) {
	p, ok := s.currentMachine().(vm.Pauser)
	if !ok {
		return "", unsupported(s.Record(), "pause")
	}
	if err := p.Pause(ctx); err != nil {
		return "", fmt.Errorf("cannot pause %q: %w", s.Record().Name, err)
	}
	return instance.PauseRequested, nil
}

func (s *Supervisor) resume(ctx context.Context, _ *Request) (instance.Event, error) {
	rec := s.Record()
	p, ok := s.currentMachine().(vm.Pauser)
	if !ok {
		return "", unsupported(rec, "resume")
	}
	if err := p.Resume(ctx); err != nil {
		return "", fmt.Errorf("cannot resume %q: %w", rec.Name, err)
	}
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	if link == nil { // paused when an earlier process held the link
		if _, err := s.connect(ctx, rec.Plan.SetupTimeout); err != nil {
			return instance.GaveUp, err
		}
	}
	return instance.ResumeRequested, nil
}

func (s *Supervisor) remove(ctx context.Context, r *Request) (instance.Event, error) {
	_ = r.step(ctx, "machine", 20)
	s.dropLink()
	m, err := s.ensureMachine(ctx)
	if err != nil {
		return "", err
	}
	if m != nil {
		if err := m.Close(ctx); err != nil {
			return "", fmt.Errorf("cannot remove the machine of %q: %w", s.Record().Name, err)
		}
		s.setMachine(nil)
	}
	_ = r.step(ctx, "record", 90)
	if err := s.cfg.Store.Remove(ctx, s.Record(), Note{Operation: r.ID}); err != nil {
		return "", fmt.Errorf("cannot forget instance %q: %w", s.Record().Name, err)
	}
	return removedEvent, nil
}

// ensureMachine returns the machine, found again by its handle if need be;
// nil when there is none.
func (s *Supervisor) ensureMachine(ctx context.Context) (vm.Instance, error) {
	if m := s.currentMachine(); m != nil {
		return m, nil
	}
	rec := s.Record()
	if rec.Handle == nil {
		return nil, nil //nolint:nilnil // no machine is an answer, not a fault
	}
	m, err := s.cfg.Driver.Recover(ctx, *rec.Handle)
	if errors.Is(err, vm.ErrGone) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the machine of %q again: %w", rec.Name, err)
	}
	s.setMachine(m)
	return m, nil
}

func (s *Supervisor) currentMachine() vm.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine
}

func (s *Supervisor) setMachine(m vm.Instance) {
	s.mu.Lock()
	s.machine = m
	s.mu.Unlock()
}

func hardStop(ctx context.Context, m vm.Instance) error {
	st, ok := m.(vm.Stopper)
	if !ok {
		return errors.New("the driver cannot cut the power")
	}
	return st.Stop(ctx)
}
