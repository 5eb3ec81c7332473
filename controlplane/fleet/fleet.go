package fleet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// ImageStore finds images.
type ImageStore interface {
	Ensure(ctx context.Context, ref images.Ref) (store.Image, error)
	// Lookup finds an image without verifying its files.
	Lookup(ref images.Ref) (images.Manifest, error)
	List() ([]store.Item, error)
}

// Tasks is told when an instance is no more.
type Tasks interface {
	// Sweep forgets the ended tasks of instances that are no more.
	Sweep(ctx context.Context) error
}

// Config is what a fleet works with.
type Config struct {
	Store  Store
	Keeper Keeper
	Images ImageStore
	// Drivers by provider name, and which one serves loadouts that name none.
	Drivers map[string]vm.Driver
	Default string
	// Catalog finds a shipped loadout by name.
	Catalog  loadouts.Lookup
	Tasks    Tasks
	Log      *slog.Logger
	Version  string
	Host     string
	StateDir string
	// ImageDir is where Images has its files.
	ImageDir string
	Now      func() time.Time
	// Passed is how much time has passed since some moment, whatever is done to
	// the clock of Now. The process's own when nil.
	Passed func() time.Duration
	// OrphanGrace is how long a machine that no instance knows is kept before
	// it is removed; 0: for ever.
	OrphanGrace time.Duration
	// AcceptEmpty takes a new store into use although there are machines, which
	// it does not know.
	AcceptEmpty bool
	// Booted is told how long each machine took from its start to the first
	// answer of its agent, whosever it is. May be nil.
	Booted func(provider, accelerator string, took time.Duration)
	// Limits of supervisors; zero values mean the defaults.
	Limits supervise.Limits
}

// Fleet is the instances of one host.
type Fleet struct {
	cfg    Config
	log    *slog.Logger
	events *eventLog
	ops    *operations

	// run is the life of all supervisors: it ends in Close.
	run     context.Context //nolint:containedctx // supervisors outlive the requests that start them
	stop    context.CancelFunc
	workers sync.WaitGroup

	sound soundness

	// arriving is held for reading while a request is stored and handed to its
	// supervisor: whoever takes it for writing knows that all before are there.
	arriving sync.RWMutex

	// tidying is held while machines and instances are compared.
	tidying  sync.Mutex
	suspects map[instance.ID]bool // seen once without an instance; nil: at the start

	mu     sync.Mutex
	byID   map[instance.ID]*supervise.Supervisor
	byName map[name]instance.ID
	// order is sorted by id and never written to: a change makes a new one.
	order []*supervise.Supervisor
	// orphans are machines of our drivers that no record knows.
	orphans []orphan
	// begun is true once Start has succeeded.
	begun bool
}

// name is unique among the instances there are.
type name struct{ tenant, name string }

// New returns a fleet that does nothing before Start.
func New(cfg Config) *Fleet {
	if cfg.Passed == nil {
		since := time.Now()
		cfg.Passed = func() time.Duration { return time.Since(since) }
	}
	events := newEventLog(cfg.Store, cfg.Now)
	return &Fleet{
		cfg: cfg, log: cfg.Log, events: events, ops: newOperations(events, cfg.Log, cfg.Now),
		byID: map[instance.ID]*supervise.Supervisor{}, byName: map[name]instance.ID{},
	}
}

// Start reads what is stored, finds the machines of earlier processes again
// and begins to supervise. ctx is the life of the fleet. A store that is new
// although there are machines is refused, since it may be that the old one was
// lost: nothing is then changed.
func (f *Fleet) Start(ctx context.Context) error {
	began := f.read()
	if err := f.events.load(ctx); err != nil {
		return err
	}
	unended, err := f.ops.load(ctx)
	if err != nil {
		return err
	}
	records, err := f.cfg.Store.Instances(ctx, "")
	if err != nil {
		return fmt.Errorf("cannot read the instances: %w", err)
	}
	seen, err := f.survey(ctx)
	if err != nil {
		return err
	}
	if err := f.adopt(ctx, records, seen); err != nil {
		return err
	}
	f.run, f.stop = context.WithCancel(ctx)
	pending := f.resumeOperations(ctx, unended, records)
	for _, r := range records {
		f.supervise(f.settle(ctx, r, seen), pending[r.ID]...)
	}
	if err := f.quarantine(ctx, seen); err != nil {
		return err
	}
	f.workers.Go(func() { f.keep(f.run, began) })
	f.mu.Lock()
	f.begun = true
	f.mu.Unlock()
	return nil
}

// supervise starts the goroutine of one instance.
func (f *Fleet) supervise(r supervise.Record, unended ...*supervise.Request) {
	driver, ok := f.cfg.Drivers[r.Provider]
	if !ok {
		driver = absent{r.Provider}
	}
	s := supervise.New(supervise.Config{
		Driver: driver, Images: f.cfg.Images, Store: recorder{f.events}, Log: f.log, Limits: f.cfg.Limits,
		Version: f.cfg.Version, Now: f.cfg.Now, Removed: func() { f.forget(r) }, Policy: f.policy, Health: f.health,
		Booted: f.booted,
	}, r)
	f.mu.Lock()
	f.byID[r.ID], f.byName[name{r.Tenant, r.Name}] = s, r.ID
	if at, known := slices.BinarySearchFunc(f.order, r.ID, byOrder); !known {
		f.order = slices.Insert(slices.Clone(f.order), at, s)
	}
	f.mu.Unlock()
	f.workers.Go(func() {
		s.Run(f.run, unended...)
		if f.run.Err() != nil {
			return // the daemon stops; the instance stays
		}
		if f.cfg.Tasks != nil {
			if err := f.cfg.Tasks.Sweep(f.run); err != nil {
				f.log.ErrorContext(f.run, "cannot forget the tasks of a removed instance", "instance", r.ID.String(), "error", err)
			}
		}
	})
}

func (f *Fleet) booted(r supervise.Record) {
	if f.cfg.Booted != nil && r.Guest != nil {
		f.cfg.Booted(r.Plan.Runtime.Provider, r.Plan.Runtime.Accelerator, r.Guest.BootTime)
	}
}

func byOrder(s *supervise.Supervisor, id instance.ID) int { return cmp.Compare(s.ID(), id) }

// all returns the supervisors in the order of their ids. Do not write to it.
func (f *Fleet) all() []*supervise.Supervisor {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.order
}

// forget takes an instance that is no more out of the lists. Its name may have
// been given to another one already.
func (f *Fleet) forget(r supervise.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byID, r.ID)
	if at, known := slices.BinarySearchFunc(f.order, r.ID, byOrder); known {
		f.order = slices.Delete(slices.Clone(f.order), at, at+1)
	}
	if n := (name{r.Tenant, r.Name}); f.byName[n] == r.ID {
		delete(f.byName, n)
	}
}

// Close stops supervising. Machines go on running.
func (f *Fleet) Close() {
	if f.stop != nil {
		f.stop()
	}
	f.workers.Wait()
}

// StopAll stops every machine in order, all at once, and returns when they
// have stopped or ctx ends.
func (f *Fleet) StopAll(ctx context.Context) error {
	var waits []string
	for _, s := range f.all() {
		op, err := f.request(ctx, s, kindStop, &supervise.Request{Event: instance.StopRequested})
		if err != nil {
			f.log.ErrorContext(ctx, "cannot stop an instance", "instance", s.Record().ID.String(), "error", err)
			continue
		}
		waits = append(waits, op.ID)
	}
	for _, id := range waits {
		f.ops.await(ctx, id)
	}
	return ctx.Err()
}
