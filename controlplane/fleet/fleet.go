package fleet

import (
	"cmp"
	"context"
	"errors"
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

// ErrNameTaken is what an InstanceStore says to a second instance of a name.
var ErrNameTaken = errors.New("name is taken")

// InstanceStore keeps the instances.
type InstanceStore interface {
	// Insert adds a record; ErrNameTaken if its name is in use.
	Insert(ctx context.Context, r supervise.Record) error
	Save(ctx context.Context, r supervise.Record) error
	Remove(ctx context.Context, id instance.ID) error
	Instances(ctx context.Context) ([]supervise.Record, error)
}

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
	Instances  InstanceStore
	Operations OperationStore
	Images     ImageStore
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
	Now      func() time.Time
}

// Fleet is the instances of one host.
type Fleet struct {
	cfg Config
	log *slog.Logger
	ops *operations

	// run is the life of all supervisors: it ends in Close.
	run     context.Context //nolint:containedctx // supervisors outlive the requests that start them
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	byID   map[instance.ID]*supervise.Supervisor
	byName map[string]instance.ID
	// orphans are machines of our drivers that no record knows.
	orphans []orphan
}

type orphan struct {
	provider string
	found    vm.Found
}

// New returns a fleet that does nothing before Start.
func New(cfg Config) *Fleet {
	return &Fleet{
		cfg: cfg, log: cfg.Log, ops: newOperations(cfg.Operations, cfg.Log, cfg.Now),
		byID: map[instance.ID]*supervise.Supervisor{}, byName: map[string]instance.ID{},
	}
}

// Start reads what is stored, finds the machines of earlier processes again
// and begins to supervise. ctx is the life of the fleet.
func (f *Fleet) Start(ctx context.Context) error {
	f.run, f.stop = context.WithCancel(ctx)
	if err := f.ops.load(ctx); err != nil {
		return err
	}
	records, err := f.cfg.Instances.Instances(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the instances: %w", err)
	}
	if err := f.findOrphans(ctx, records); err != nil {
		return err
	}
	trackers := f.resumeOperations(ctx, records)
	for _, r := range records {
		if err := f.supervise(r, trackers[r.ID]); err != nil {
			f.log.ErrorContext(ctx, "cannot supervise a stored instance", "instance", r.ID.String(), "name", r.Name, "error", err)
		}
	}
	return nil
}

// resumeOperations gives the operations that an earlier process did not end
// to the supervisors that go on with the work, and ends the others truthfully.
func (f *Fleet) resumeOperations(ctx context.Context, records []supervise.Record) map[instance.ID]supervise.Tracker {
	phases := map[instance.ID]instance.Phase{}
	for _, r := range records {
		phases[r.ID] = r.Phase
	}
	goesOn := map[string][]instance.Phase{
		kindCreate: {instance.Provisioning, instance.Starting},
		kindStart:  {instance.Starting},
		kindStop:   {instance.Stopping},
		kindDelete: {instance.Deleting},
	}
	reached := map[string][]instance.Phase{
		kindCreate: {instance.Running}, kindStart: {instance.Running}, kindResume: {instance.Running},
		kindStop: {instance.Stopped}, kindPause: {instance.Paused},
	}
	trackers := map[instance.ID]supervise.Tracker{}
	for _, op := range f.ops.unfinished() {
		phase, exists := phases[op.Instance]
		t := tracker{f.ops, op.ID}
		switch {
		case exists && slices.Contains(goesOn[op.Kind], phase):
			all, _ := trackers[op.Instance].(shared)
			trackers[op.Instance] = append(all, t)
		case exists && slices.Contains(reached[op.Kind], phase), !exists && op.Kind == kindDelete:
			t.End(ctx, nil)
		default:
			t.End(ctx, &instance.Fault{
				Blame: instance.Host, Code: "operation.interrupted", Hint: "ask for it again",
				Err: errors.New("the control plane was restarted before this was done"),
			})
		}
	}
	return trackers
}

// supervise starts the goroutine of one instance.
func (f *Fleet) supervise(r supervise.Record, t supervise.Tracker) error {
	driver, ok := f.cfg.Drivers[r.Provider]
	if !ok {
		err := fmt.Errorf("cannot find provider %q of instance %q: it is not configured on this host", r.Provider, r.Name)
		if t != nil {
			t.End(f.run, err)
		}
		return err
	}
	s := supervise.New(supervise.Config{
		Driver: driver, Images: f.cfg.Images, Store: f.cfg.Instances, Log: f.log,
		Version: f.cfg.Version, Now: f.cfg.Now, Removed: func() { f.forget(r) },
	}, r)
	f.mu.Lock()
	f.byID[r.ID], f.byName[r.Name] = s, r.ID
	f.mu.Unlock()
	f.workers.Go(func() {
		s.Run(f.run, t)
		if f.run.Err() != nil {
			return // the daemon stops; the instance stays
		}
		if f.cfg.Tasks != nil {
			if err := f.cfg.Tasks.Sweep(f.run); err != nil {
				f.log.ErrorContext(f.run, "cannot forget the tasks of a removed instance", "instance", r.ID.String(), "error", err)
			}
		}
	})
	return nil
}

// forget takes an instance that is no more out of the lists. Its name may have
// been given to another one already.
func (f *Fleet) forget(r supervise.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byID, r.ID)
	if f.byName[r.Name] == r.ID {
		delete(f.byName, r.Name)
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
	views, err := f.List(ctx, Filter{})
	if err != nil {
		return err
	}
	var waits []string
	for _, v := range views {
		op, err := f.Act(ctx, v.ID.String(), ActionStop)
		if err != nil {
			f.log.ErrorContext(ctx, "cannot stop an instance", "instance", v.ID.String(), "error", err)
			continue
		}
		waits = append(waits, op.ID)
	}
	for _, id := range waits {
		ch, err := f.Watch(ctx, id)
		if err != nil {
			return err
		}
		for range ch { // until it has ended
		}
	}
	return ctx.Err()
}

// find returns the supervisor of an instance by id or name.
func (f *Fleet) find(ref string) (*supervise.Supervisor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, ok := f.byName[ref]; ok {
		return f.byID[id], nil
	}
	if s, ok := f.byID[instance.ID(ref)]; ok {
		return s, nil
	}
	return nil, &instance.Fault{
		Blame: instance.Caller, Code: "instance.not_found",
		Hint: "`sandboxctl ls` lists the instances there are",
		Err:  fmt.Errorf("cannot find instance %q", ref),
	}
}

// Get returns one instance by id or name.
func (f *Fleet) Get(_ context.Context, ref string) (View, error) {
	s, err := f.find(ref)
	if err != nil {
		return View{}, err
	}
	return f.view(s.Record()), nil
}

// List returns the instances that match, ordered by creation.
func (f *Fleet) List(_ context.Context, filter Filter) ([]View, error) {
	f.mu.Lock()
	all := make([]*supervise.Supervisor, 0, len(f.byID))
	for _, s := range f.byID {
		all = append(all, s)
	}
	f.mu.Unlock()
	views := make([]View, 0, len(all))
	for _, s := range all {
		if v := f.view(s.Record()); matches(v, filter) {
			views = append(views, v)
		}
	}
	slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.ID, b.ID) })
	return views, nil
}

func matches(v View, filter Filter) bool {
	if filter.Phase != "" && v.Phase != filter.Phase {
		return false
	}
	for k, want := range filter.Labels {
		if got, ok := v.Labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}

// The kinds of operations.
const (
	kindCreate = "instance.create"
	kindDelete = "instance.delete"
	kindStart  = "instance.start"
	kindStop   = "instance.stop"
	kindPause  = "instance.pause"
	kindResume = "instance.resume"
)

// Act asks for a change of an instance. What makes no sense in its phase
// fails as an operation, with the reason.
func (f *Fleet) Act(ctx context.Context, ref string, a Action) (Operation, error) {
	events := map[Action]struct {
		kind  string
		event instance.Event
	}{
		ActionStart:  {kindStart, instance.StartRequested},
		ActionStop:   {kindStop, instance.StopRequested},
		ActionPause:  {kindPause, instance.PauseRequested},
		ActionResume: {kindResume, instance.ResumeRequested},
	}
	e, ok := events[a]
	if !ok {
		return Operation{}, &instance.Fault{
			Blame: instance.Caller, Code: "action.unknown",
			Err: fmt.Errorf("cannot %q an instance: want start, stop, pause or resume", a),
		}
	}
	return f.request(ctx, ref, e.kind, e.event)
}

// Delete removes an instance and everything of it. Work in progress on it is
// cut short and undone first.
func (f *Fleet) Delete(ctx context.Context, ref string) (Operation, error) {
	return f.request(ctx, ref, kindDelete, instance.DeleteRequested)
}

func (f *Fleet) request(ctx context.Context, ref, kind string, e instance.Event) (Operation, error) {
	s, err := f.find(ref)
	if err != nil {
		return Operation{}, err
	}
	r := s.Record()
	op, err := f.ops.open(ctx, kind, r.ID, r.Name)
	if err != nil {
		return Operation{}, err
	}
	t := tracker{f.ops, op.ID}
	if err := s.Submit(ctx, &supervise.Request{Event: e, Track: t}); err != nil {
		t.End(ctx, err)
		return Operation{}, err
	}
	return op, nil
}
