// Package supervise runs one goroutine per instance. It alone decides what
// happens to its machine: requests and the machine's own reports come in by
// channels, one activity works at a time, and every phase is stored before it
// is acted on.
//
//	requests, clock ─► queue (policy) ─► activity (converge) ─► driver, agent link
//	                       ▲                                        │
//	                       └──────────── reports, results ◄─────────┘
//
// It can fail in three ways, and each has a place: a step fails (the activity
// undoes it and reports a fault), the machine ends or falls silent by itself
// (a report), the daemon dies (the next one starts with a recovery from the
// record).
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// Images finds the verified files of an image.
type Images interface {
	Ensure(ctx context.Context, ref images.Ref) (store.Image, error)
}

// Config is what a supervisor works with.
type Config struct {
	Driver  vm.Driver
	Images  Images
	Store   Store
	Log     *slog.Logger
	Version string
	// Removed is told that the instance is no more, before those who asked
	// for it are. May be nil.
	Removed func()
	// Policy is asked to follow what the supervisor begins by itself: the end
	// of an instance's time, rest and waking. May be nil.
	Policy func(ctx context.Context, r Record, e instance.Event) (id string, t Tracker)
	// Health is told when a fault of a machine whose phase does not show it
	// comes, and with nil when it goes. May be nil.
	Health func(ctx context.Context, r Record, f *instance.Fault)
	// Booted is told when the agent of a machine has answered for the first time
	// since its start. May be nil.
	Booted func(r Record)
	// Now is the clock for timestamps.
	Now func() time.Time
	// Limits bound waiting; zero values mean the defaults.
	Limits Limits
}

// Limits bound how long a supervisor waits for others.
type Limits struct {
	// PowerOff is what a guest gets to power off in order before the power is
	// cut. Default 30 s: an emulated guest on a busy host is slow.
	PowerOff time.Duration
	// Cut bounds the cutting of power, Toggle a pause or a resume. Default 60 s
	// and 30 s.
	Cut, Toggle time.Duration
	// Silence is how long the agent of a running machine may be out of reach
	// before that is a fault. Default 30 s.
	Silence time.Duration
	// Retry is the pause before something that failed is tried again without
	// being asked for. Default 60 s.
	Retry time.Duration
}

func (l *Limits) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&l.PowerOff, 30*time.Second)
	def(&l.Cut, 60*time.Second)
	def(&l.Toggle, 30*time.Second)
	def(&l.Silence, 30*time.Second)
	def(&l.Retry, 60*time.Second)
}

// Supervisor owns one instance.
type Supervisor struct {
	id       instance.ID
	cfg      Config
	log      *slog.Logger
	requests chan *Request
	cancels  chan cancel
	reports  chan report
	results  chan result
	stirred  chan struct{} // the clock must be set anew
	gone     chan struct{} // closed when Run has returned

	// Only the goroutine of Run touches these.
	queue     queue
	removed   bool                    // also read by anyone once gone is closed
	interrupt context.CancelCauseFunc // of the activity at work
	watching  context.CancelFunc      // of the watch
	watch     int                     // counts watches
	notBefore time.Time               // the next thing that is done unasked

	// wg counts the activity and the watch; Run waits for them.
	wg sync.WaitGroup

	// saving is held while a change of the record is stored: one at a time.
	saving sync.Mutex

	mu      sync.Mutex
	record  Record
	unsaved bool // the record could not be stored
	machine vm.Instance
	link    *agentlink.Link
	changed chan struct{} // closed and replaced with every change
	health  *instance.Fault
	// users are those who use the machine now, lastUsed when the last began
	// or ended, and runsSince when it last came to run.
	users     int
	lastUsed  time.Time
	runsSince time.Time
	parting   bool // it is about to be stopped because there are none
}

type result struct {
	request *Request
	event   instance.Event // what its success or failure means
	err     error
	removed bool
}

// New returns a supervisor for a stored record. Nothing happens before Run.
func New(cfg Config, r Record) *Supervisor {
	cfg.Limits.fill()
	return &Supervisor{
		id:       r.ID,
		cfg:      cfg,
		log:      cfg.Log.With("instance", r.ID.String(), "name", r.Name),
		requests: make(chan *Request, 16),
		cancels:  make(chan cancel),
		reports:  make(chan report),
		results:  make(chan result, 1),
		stirred:  make(chan struct{}, 1),
		gone:     make(chan struct{}),
		record:   r,
		lastUsed: cfg.Now(),
		changed:  make(chan struct{}),
	}
}

// Run supervises until the instance has been deleted or ctx ends; a machine
// that runs then goes on running. It first does what the record's phase
// demands: provision a new instance, or take over one from an earlier process.
// unended are requests that were made before, oldest first: what fits goes on
// with that, the others come after.
func (s *Supervisor) Run(ctx context.Context, unended ...*Request) {
	defer s.detach(ctx)
	clock := time.NewTimer(time.Hour)
	defer clock.Stop()
	s.beginWith(ctx, unended)
	for {
		clock.Reset(s.untilDue())
		select { // what the machine says comes before what is asked of it
		case r := <-s.reports:
			s.reported(ctx, r)
			continue
		default:
		}
		select {
		case r := <-s.reports:
			s.reported(ctx, r)
		case r := <-s.requests:
			s.take(ctx, r)
		case c := <-s.cancels:
			c.answer <- s.cancel(ctx, c.id)
		case res := <-s.results:
			if s.finish(ctx, res) {
				return
			}
		case <-clock.C:
			s.due(ctx)
		case <-s.stirred:
			s.due(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// ID is the instance's.
func (s *Supervisor) ID() instance.ID { return s.id }

// Record returns a copy of the present record.
func (s *Supervisor) Record() Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.clone()
}

// Peek lets look at the present record without copying it. It must be quick
// and keep nothing.
func (s *Supervisor) Peek(look func(*Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	look(&s.record)
}

// Gone is closed when the supervisor has stopped.
func (s *Supervisor) Gone() <-chan struct{} { return s.gone }

// Link waits until the agent answers and returns the link to it. It fails at
// once when the instance is in a phase that no waiting will mend.
func (s *Supervisor) Link(ctx context.Context) (*agentlink.Link, error) {
	for {
		s.mu.Lock()
		link, phase, changed, fault, wakes, parting := s.link, s.record.Phase, s.changed, s.record.Fault, s.wakes(), s.parting
		s.mu.Unlock()
		switch phase {
		case instance.Running:
			if link != nil && !parting {
				return link, nil
			}
		case instance.Provisioning, instance.Starting:
		case instance.Paused, instance.Stopping, instance.Stopped:
			if !wakes {
				return nil, notRunning(s.Record(), phase, fault)
			}
		case instance.Failed, instance.Deleting:
			return nil, notRunning(s.Record(), phase, fault)
		}
		select {
		case <-changed:
		case <-s.gone:
			return nil, notFound(s.Record())
		case <-ctx.Done():
			return nil, &instance.Fault{
				Blame: instance.Host, Code: "instance.not_ready",
				Hint: fmt.Sprintf("try again when `sandboxctl show %s` says running", s.Record().Name),
				Err:  fmt.Errorf("cannot reach the agent of %q: it is %s: %w", s.Record().Name, phase, ctx.Err()),
			}
		}
	}
}

// Diagnose returns what the driver knows of the machine.
func (s *Supervisor) Diagnose(ctx context.Context) vm.Diagnosis {
	m := s.currentMachine()
	if m == nil {
		return vm.Diagnosis{State: "no machine"}
	}
	return m.Diagnose(ctx)
}

// Machine returns the driver's machine; nil when there is none at hand.
func (s *Supervisor) Machine() vm.Instance { return s.currentMachine() }

// detach ends everything of ours and leaves the machine as it is.
func (s *Supervisor) detach(ctx context.Context) {
	if s.interrupt != nil {
		s.interrupt(converge.ErrDetached)
	}
	if s.watching != nil {
		s.watching()
	}
	s.wg.Wait()
	s.dropLink()
	close(s.gone)
	s.refuseLate(context.WithoutCancel(ctx))
}

func notFound(r Record) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "instance.not_found",
		Hint: "`sandboxctl ls` lists the instances there are",
		Err:  fmt.Errorf("cannot find instance %q", r.Name),
	}
}

func notRunning(r Record, phase instance.Phase, fault *instance.Fault) error {
	f := &instance.Fault{
		Blame: instance.Caller, Code: CodeState,
		Hint: fmt.Sprintf("start it with `sandboxctl start %s`", r.Name),
		Err:  fmt.Errorf("cannot reach the agent of %q: it is %s", r.Name, phase),
	}
	switch {
	case phase == instance.Paused:
		f.Hint = fmt.Sprintf("resume it with `sandboxctl resume %s`", r.Name)
	case phase == instance.Deleting:
		f.Hint = ""
	case fault != nil:
		f.Err = fmt.Errorf("cannot reach the agent of %q: it has failed: %w", r.Name, errors.New(fault.Error()))
	}
	return f
}
