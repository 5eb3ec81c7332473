// Package supervise runs one goroutine per instance. It alone decides what
// happens to its machine: requests and the machine's own reports come in by
// channels, one activity works at a time, and every phase is stored before it
// is acted on.
//
//	requests ─► queue (policy) ─► activity (converge) ─► driver, agent link
//	                ▲                                        │
//	                └──────────── exits, results ◄───────────┘
//
// It can fail in three ways, and each has a place: a step fails (the activity
// undoes it and reports a fault), the machine ends by itself (an exit event),
// the daemon dies (the next one starts with a recovery from the record).
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
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
	// Now is the clock for timestamps.
	Now func() time.Time
}

// Supervisor owns one instance.
type Supervisor struct {
	cfg      Config
	log      *slog.Logger
	requests chan *Request
	exits    chan exited
	broken   chan *agentlink.Link // links that ended for good, unasked
	results  chan result
	gone     chan struct{} // closed when Run has returned

	// Only the goroutine of Run touches these.
	queue     queue
	removed   bool               // also read by anyone once gone is closed
	interrupt context.CancelFunc // of the activity at work
	watching  context.CancelFunc // of the exit watcher

	// wg counts the activity and the watcher; Run waits for them.
	wg sync.WaitGroup

	// saving is held while a change of the record is stored: one at a time.
	saving sync.Mutex

	mu      sync.Mutex
	record  Record
	machine vm.Instance
	link    *agentlink.Link
	changed chan struct{} // closed and replaced with every change
	health  *instance.Fault
	// users are those who use the machine now, lastUsed when the last began
	// or ended.
	users    int
	lastUsed time.Time
}

type exited struct {
	machine vm.Instance
	exit    vm.Exit
}

type result struct {
	request *Request
	event   instance.Event // what its success or failure means
	err     error
	removed bool
}

// New returns a supervisor for a stored record. Nothing happens before Run.
func New(cfg Config, r Record) *Supervisor {
	return &Supervisor{
		cfg:      cfg,
		log:      cfg.Log.With("instance", r.ID.String(), "name", r.Name),
		requests: make(chan *Request, 16),
		exits:    make(chan exited, 1),
		broken:   make(chan *agentlink.Link, 1),
		results:  make(chan result, 1),
		gone:     make(chan struct{}),
		record:   r,
		lastUsed: cfg.Now(),
		changed:  make(chan struct{}),
	}
}

// Run supervises until the instance has been deleted or ctx ends; a machine
// that runs then goes on running. It first does what the record's phase
// demands: provision a new instance, or take over one from an earlier process.
// first may be nil; it tracks that work.
func (s *Supervisor) Run(ctx context.Context, first Tracker) {
	defer s.detach(ctx)
	s.beginWith(ctx, &Request{Track: first})
	for {
		select {
		case r := <-s.requests:
			s.take(ctx, r)
		case e := <-s.exits:
			s.ended(ctx, e)
		case link := <-s.broken:
			s.linkEnded(ctx, link)
		case res := <-s.results:
			if s.finish(ctx, res) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

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
		link, phase, changed, fault := s.link, s.record.Phase, s.changed, s.record.Fault
		s.mu.Unlock()
		switch phase {
		case instance.Running:
			if link != nil {
				return link, nil
			}
		case instance.Provisioning, instance.Starting:
		case instance.Paused, instance.Stopping, instance.Stopped, instance.Failed, instance.Deleting:
			return nil, notRunning(s.Record(), phase, fault)
		}
		select {
		case <-changed:
		case <-s.gone:
			return nil, notFound(s.Record())
		case <-ctx.Done():
			return nil, &instance.Fault{
				Blame: instance.Host, Code: "instance.not_ready",
				Hint: "try again when `sandboxctl show` says running",
				Err:  fmt.Errorf("cannot reach the agent of %q: it is %s: %w", s.record.Name, phase, ctx.Err()),
			}
		}
	}
}

// Diagnose returns what the driver knows of the machine.
func (s *Supervisor) Diagnose(ctx context.Context) vm.Diagnosis {
	s.mu.Lock()
	m := s.machine
	s.mu.Unlock()
	if m == nil {
		return vm.Diagnosis{State: "no machine"}
	}
	return m.Diagnose(ctx)
}

// take gives one request to the queue and acts on its verdict.
func (s *Supervisor) take(ctx context.Context, r *Request) {
	phase := s.Record().Phase
	v := s.queue.offer(phase, r)
	s.log.DebugContext(ctx, "request", "event", r.Event, "phase", phase, "answer", v.answer, "begun", v.begin)
	switch {
	case v.answer == instance.Ignored:
		r.end(ctx, nil)
	case v.answer == instance.Denied:
		r.end(ctx, &instance.Fault{Blame: instance.Caller, Code: "instance.state", Err: v.reason})
	case v.begin:
		s.begin(ctx, r, v.next)
	case v.interrupt:
		s.interrupt()
	}
}

// finish ends an activity and begins the next. It reports whether the
// instance is no more.
func (s *Supervisor) finish(ctx context.Context, res result) bool {
	s.interrupt = nil
	if res.removed {
		s.removed = true
		if s.cfg.Removed != nil {
			s.cfg.Removed()
		}
		s.endShared(ctx, res)
		s.refuseWaiting(ctx)
		return true
	}
	if res.event != "" {
		s.apply(ctx, res.event, res.err)
	}
	// Also after a failure: the machine may have ended meanwhile, and whoever
	// saw that left it to the activity.
	s.watch(ctx)
	s.endShared(ctx, res)
	for r := s.queue.done(); r != nil; r = s.queue.done() {
		s.take(ctx, r)
		if s.queue.busy != "" {
			break
		}
	}
	return false
}

// apply moves the record by an event and stores it. cause becomes the fault
// when the new phase is Failed.
func (s *Supervisor) apply(ctx context.Context, e instance.Event, cause error) {
	s.note(ctx, Note{}, func(r *Record) {
		to, answer, _ := instance.Next(r.Phase, e)
		if answer != instance.Accepted {
			return
		}
		r.Phase = to
		r.Fault = nil
		if to == instance.Failed {
			r.Fault = instance.AsFault(cause)
			r.Reason = r.Fault.Code
		}
	})
}

// notify wakes everyone who waits for a change; s.mu is held.
func (s *Supervisor) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// detach ends everything of ours and leaves the machine as it is.
func (s *Supervisor) detach(ctx context.Context) {
	if s.interrupt != nil {
		s.interrupt()
	}
	if s.watching != nil {
		s.watching()
	}
	s.wg.Wait()
	s.dropLink()
	close(s.gone)
	s.refuseLate(context.WithoutCancel(ctx))
}

func (s *Supervisor) dropLink() {
	s.mu.Lock()
	link := s.link
	s.link = nil
	if link != nil {
		s.notify()
	}
	s.mu.Unlock()
	if link != nil {
		if err := link.Close(); err != nil {
			s.log.Debug("cannot close the agent link", "error", err)
		}
	}
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
		Blame: instance.Caller, Code: "instance.state",
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
