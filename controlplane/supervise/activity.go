package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
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
		err := s.save(ctx, func(rec *Record) { rec.Phase = next; rec.Fault = nil })
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
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
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
	}()
}

// removedEvent is the end of a delete; it is no event of the table because
// nothing is left to have a phase.
const removedEvent instance.Event = "removed"

// journal turns the steps of converge into progress.
type journal struct {
	s *Supervisor
	r *Request
}

func (j journal) Mark(ctx context.Context, step converge.Step, mark converge.Mark, _ error) error {
	j.s.log.DebugContext(ctx, "step", "step", step.Name, "mark", mark)
	if mark == converge.Began || mark == converge.Did {
		percent := step.Percent
		if mark == converge.Began {
			percent = 0 // the tracker never goes back
		}
		j.r.step(ctx, step.Name, percent)
	}
	return nil
}

// provision carries out the plan from wherever it stands: a new instance, a
// stopped one, or one whose daemon died half-way.
func (s *Supervisor) provision(ctx context.Context, r *Request) (instance.Event, error) {
	rec := s.Record()
	fresh := rec.Phase == instance.Provisioning
	p := provisioning{s: s, rec: rec, fresh: fresh}
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
	if fresh && ctx.Err() == nil {
		// A create that failed leaves nothing, not even the name.
		if rmErr := s.cfg.Store.Remove(context.WithoutCancel(ctx), rec.ID); rmErr != nil {
			return instance.GaveUp, errors.Join(err, rmErr)
		}
		return removedEvent, stepFault(err)
	}
	return instance.GaveUp, stepFault(err)
}

// provisioning holds what the steps of one run hand to each other.
type provisioning struct {
	s     *Supervisor
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
		return &instance.Fault{Blame: instance.Host, Code: "image.unusable", Err: err}
	}
	return nil
}

func (p *provisioning) machine(ctx context.Context) error {
	s := p.s
	if p.rec.Handle != nil {
		m, err := s.cfg.Driver.Recover(ctx, *p.rec.Handle)
		if err == nil {
			s.setMachine(m)
			return p.prepared(ctx)
		}
		if !errors.Is(err, vm.ErrGone) {
			return fmt.Errorf("cannot find the machine of %q again: %w", p.rec.Name, err)
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
	if err := s.save(ctx, func(r *Record) { r.Handle = &handle; r.Provider = handle.Driver }); err != nil {
		return err
	}
	return p.prepared(ctx)
}

// prepared stores that the files are there, before the machine starts.
func (p *provisioning) prepared(ctx context.Context) error {
	return p.s.save(ctx, func(r *Record) {
		if to, answer, _ := instance.Next(r.Phase, instance.Prepared); answer == instance.Accepted {
			r.Phase = to
		}
	})
}

func (p *provisioning) unmachine(ctx context.Context) error {
	if !p.fresh {
		return nil // the disk of a machine that has run is its owner's
	}
	m := p.s.currentMachine()
	if m == nil {
		return nil
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
	return s.save(ctx, func(r *Record) { r.Guest = guestOf(link.Hello(), s.cfg.Now(), s.cfg.Now().Sub(p.began)) })
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
	link, err := agentlink.Connect(connectCtx,
		func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, agentv1.Port) },
		agentlink.Options{InstanceID: s.Record().ID, HostVersion: s.cfg.Version, Log: s.log})
	stopWaiting()
	<-waited
	if err != nil {
		select {
		case exit := <-ended:
			return nil, machineEnded(ctx, m, exit)
		default:
		}
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			return nil, noAnswer(ctx, m, timeout, err)
		}
		return nil, err
	}
	s.mu.Lock()
	s.link = link
	s.notify()
	s.mu.Unlock()
	return link, nil
}

var errNoAnswer = errors.New("the agent did not answer in time")

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
	r.step(ctx, "power-off", 10)
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
	r.step(ctx, "cut", 80)
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
	r.step(ctx, "machine", 20)
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
	r.step(ctx, "record", 90)
	if err := s.cfg.Store.Remove(ctx, s.Record().ID); err != nil {
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
