package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// provision carries out the plan from wherever it stands: a new instance, a
// stopped one, or one whose daemon died half-way.
func (s *Supervisor) provision(ctx context.Context, r *Request) (instance.Event, error) {
	rec := s.Record()
	// Until the agent has answered once, nothing in the machine is anybody's.
	p := provisioning{s: s, r: r, rec: rec, fresh: rec.Guest == nil}
	var steps []converge.Step
	for _, step := range rec.Plan.Steps {
		c, err := p.step(step)
		if err != nil {
			return instance.GaveUp, err
		}
		steps = append(steps, c)
	}
	err := converge.Run(ctx, journal{s, r}, steps)
	if err == nil {
		return instance.Answered, nil
	}
	s.dropLink()
	cause := context.Cause(ctx)
	if errors.Is(cause, converge.ErrDetached) {
		return "", err
	}
	var step *converge.StepError
	undone := !errors.As(err, &step) || step.UndoErr == nil
	err = stepFault(ctx, err)
	switch {
	case !undone:
		return instance.GaveUp, err
	case p.fresh && !errors.Is(cause, errCutShort):
		// A create that failed leaves nothing, not even the name.
		if rmErr := p.vanish(ctx); rmErr != nil {
			return instance.GaveUp, errors.Join(err, rmErr)
		}
		return removedEvent, nothingLeft(err, p.r.ID)
	case cause != nil: // where it is bound for has been stored
		return instance.PoweredOff, err
	}
	return instance.GaveUp, err
}

// provisioning holds what the steps of one run hand to each other.
type provisioning struct {
	s     *Supervisor
	r     *Request
	rec   Record
	fresh bool
	files store.Image
	began time.Time
}

func (p *provisioning) step(step plan.Step) (converge.Step, error) {
	c := converge.Step{Name: string(step), Percent: step.Percent()}
	switch step {
	case plan.StepImage:
		c.Do = p.image
	case plan.StepMachine:
		c.Do, c.Undo = p.machine, p.unmachine
	case plan.StepBoot:
		c.Do, c.Undo = p.boot, p.unboot
	case plan.StepAgent:
		c.Do = p.agent
	default:
		return c, fmt.Errorf("cannot carry out the plan of %q: unknown step %q", p.rec.Name, step)
	}
	return c, nil
}

func (p *provisioning) image(ctx context.Context) error {
	ref, err := images.ParseRef(p.rec.Plan.Image)
	if err != nil {
		return err
	}
	p.files, err = p.s.cfg.Images.Ensure(ctx, ref)
	if err != nil {
		return &instance.Fault{
			Blame: instance.Host, Code: "image.unusable", Err: err,
			Hint: "bring a good one into the image directory of sandboxd, which `sandboxctl doctor` names",
		}
	}
	return nil
}

func (p *provisioning) machine(ctx context.Context) error {
	s := p.s
	if p.rec.Handle != nil {
		m, err := s.cfg.Driver.Recover(ctx, *p.rec.Handle)
		switch {
		case err == nil:
			s.setMachine(m)
			return p.prepared(ctx)
		case !errors.Is(err, vm.ErrGone):
			return fmt.Errorf("cannot find the machine of %q again: %w", p.rec.Name, err)
		case !p.fresh:
			return Lost(p.rec) // a new disk would look like the old one
		}
	}
	boot, err := json.Marshal(p.rec.Plan.Boot)
	if err != nil {
		return fmt.Errorf("cannot encode the boot configuration: %w", err)
	}
	m, handle, err := s.cfg.Driver.Create(ctx, vm.Spec{
		ID:         p.rec.ID,
		Name:       p.rec.Name,
		CPUs:       p.rec.Plan.Machine.CPUs,
		Memory:     p.rec.Plan.Machine.Memory,
		Kernel:     p.files.Kernel,
		Initramfs:  p.files.Initramfs,
		RootDisk:   p.files.RootDisk,
		DiskSize:   p.rec.Plan.Machine.DiskSize,
		BootConfig: boot,
	})
	if err != nil {
		return err
	}
	s.setMachine(m)
	err = s.save(ctx, p.r.note(), func(r *Record) error {
		r.Handle, r.Provider = &handle, handle.Driver
		return nil
	})
	if err != nil {
		return err
	}
	return p.prepared(ctx)
}

// prepared stores that the files are there, before the machine starts.
func (p *provisioning) prepared(ctx context.Context) error {
	return p.s.save(ctx, p.r.note(), func(r *Record) error {
		if to, answer, _ := instance.Next(r.Phase, instance.Prepared); answer == instance.Accepted {
			r.Phase = to
		}
		return nil
	})
}

// vanish removes what is left of a new instance: also what an earlier process
// made, whose steps are not among those that were undone, and the record.
func (p *provisioning) vanish(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	closeCtx, cancel := context.WithTimeout(ctx, p.s.cfg.Limits.Cut)
	defer cancel()
	if err := p.unmachine(closeCtx); err != nil {
		return fmt.Errorf("cannot remove the machine of %q: %w", p.rec.Name, err)
	}
	return p.s.forget(ctx, p.r)
}

func (p *provisioning) unmachine(ctx context.Context) error {
	if !p.fresh {
		return nil // the disk of a machine that has run is its owner's
	}
	m, err := p.s.ensureMachine(ctx)
	if err != nil || m == nil {
		return err
	}
	if p.s.Record().Guest != nil {
		// It has answered, and that could not be recorded as done. Who starts it
		// again must not look for the disk that goes now.
		p.s.note(ctx, Note{}, func(r *Record) { r.Guest = nil })
	}
	if err := m.Close(ctx); err != nil {
		return err
	}
	p.s.setMachine(nil)
	return nil
}

func (p *provisioning) boot(ctx context.Context) error {
	p.began = p.s.cfg.Now()
	m := p.s.currentMachine()
	if err := m.Start(ctx); err != nil {
		return bootFault(ctx, m, err)
	}
	return nil
}

func (p *provisioning) unboot(ctx context.Context) error {
	m := p.s.currentMachine()
	if m == nil || p.fresh {
		return nil // unmachine destroys it
	}
	return hardStop(ctx, m)
}

func (p *provisioning) agent(ctx context.Context) error {
	s := p.s
	link, err := s.connect(ctx, p.rec.Plan.SetupTimeout)
	if err != nil {
		return err
	}
	err = s.save(ctx, p.r.note(), func(r *Record) error {
		r.Guest = guestOf(link.Hello(), s.cfg.Now(), s.cfg.Now().Sub(p.began))
		return nil
	})
	if err == nil && s.cfg.Booted != nil {
		s.cfg.Booted(s.Record())
	}
	return err
}

// connect waits for the agent's first answer, for the machine's end or for
// the deadline, whichever comes first.
func (s *Supervisor) connect(ctx context.Context, timeout time.Duration) (*agentlink.Link, error) {
	m := s.currentMachine()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	ended := make(chan vm.Exit, 1)
	waitCtx, stopWaiting := context.WithCancel(ctx)
	connectCtx, stopConnecting := context.WithCancel(ctx)
	defer stopConnecting()
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if exit, err := m.Wait(waitCtx); err == nil {
			ended <- exit
			stopConnecting()
		}
	}()
	link, err := s.dial(connectCtx, m)
	stopWaiting()
	<-waited
	if err != nil {
		select {
		case exit := <-ended:
			return nil, machineEnded(ctx, m, s.Record(), exit)
		default:
		}
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			return nil, noAnswer(ctx, m, s.Record(), timeout, err)
		}
		return nil, err
	}
	s.setLink(link)
	return link, nil
}

var errNoAnswer = errors.New("the agent did not answer in time")
