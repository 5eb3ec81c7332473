package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
	"agentic-sandbox.aiwg.io/sandbox/test/rig/agentbin"
)

// patience bounds one wait: the host may be busy.
const patience = 2 * time.Minute

// agent is the real one.
var agent agentbin.Agent

func TestMain(m *testing.M) { os.Exit(agent.Main(m)) }

// shelf is an image store with one image whose files nobody reads: machines of
// kind "host" have none.
type shelf struct {
	ensure func(context.Context) error
}

const digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

func (shelf) Lookup(ref images.Ref) (images.Manifest, error) {
	if ref.Name != "minimal" {
		return images.Manifest{}, store.ErrNotFound
	}
	return images.Manifest{Name: "minimal", RootDisk: images.Blob{Digest: digest, VirtualSize: 1 << 20}}, nil
}

func (s shelf) Ensure(ctx context.Context, _ images.Ref) (store.Image, error) {
	if s.ensure != nil {
		return store.Image{}, s.ensure(ctx)
	}
	return store.Image{}, nil
}

func (shelf) List() ([]store.Item, error) { return nil, nil }

// broken wraps a driver and lets a test break single calls.
type broken struct {
	vm.Driver
	create             func() error
	start, pause, stop func(ctx context.Context) error
	closed             func()
	// dead machines do nothing more, as after the death of the process.
	dead atomic.Bool
}

var errDead = errors.New("the process is dead")

func (b *broken) Recover(ctx context.Context, h vm.Handle) (vm.Instance, error) {
	if b.dead.Load() {
		return nil, errDead
	}
	m, err := b.Driver.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return &brokenMachine{Machine: m.(*host.Machine), b: b}, nil
}

func (b *broken) Create(ctx context.Context, spec vm.Spec) (vm.Instance, vm.Handle, error) {
	if b.dead.Load() {
		return nil, vm.Handle{}, errDead
	}
	if b.create != nil {
		if err := b.create(); err != nil {
			return nil, vm.Handle{}, err
		}
	}
	m, h, err := b.Driver.Create(ctx, spec)
	if err != nil {
		return nil, h, err
	}
	return &brokenMachine{Machine: m.(*host.Machine), b: b}, h, nil
}

type brokenMachine struct {
	*host.Machine
	b *broken
}

func (m *brokenMachine) Start(ctx context.Context) error {
	if m.b.dead.Load() {
		return errDead
	}
	if m.b.start != nil {
		if err := m.b.start(ctx); err != nil {
			return err
		}
	}
	return m.Machine.Start(ctx)
}

func (m *brokenMachine) Pause(ctx context.Context) error {
	if m.b.dead.Load() {
		return errDead
	}
	if m.b.pause != nil {
		if err := m.b.pause(ctx); err != nil {
			return err
		}
	}
	return m.Machine.Pause(ctx)
}

func (m *brokenMachine) Stop(ctx context.Context) error {
	if m.b.dead.Load() {
		return errDead
	}
	if m.b.stop != nil {
		return m.b.stop(ctx)
	}
	return m.Machine.Stop(ctx)
}

func (m *brokenMachine) Close(ctx context.Context) error {
	if m.b.dead.Load() {
		return errDead
	}
	err := m.Machine.Close(ctx)
	if m.b.closed != nil {
		m.b.closed()
	}
	return err
}

// rig is one control plane on a directory; open and close are the life of one
// daemon.
type rig struct {
	t     *testing.T
	dir   string
	shelf shelf
	fault broken
	// config may change what a fleet works with; store what it stores in.
	config func(*fleet.Config)

	db     *sqlite.DB
	driver *host.Driver
	fleet  *fleet.Fleet
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl-") //nolint:usetesting // socket paths must stay short
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir}
	t.Cleanup(func() {
		r.removeAll()
		r.close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	if err := r.tryOpen(); err != nil {
		r.t.Fatal(err)
	}
}

// tryOpen begins the life of a daemon; after an error there is none.
func (r *rig) tryOpen() error {
	r.t.Helper()
	var err error
	ctx := context.WithoutCancel(r.t.Context())
	if r.db, err = sqlite.Open(ctx, filepath.Join(r.dir, "db")); err != nil {
		r.t.Fatal(err)
	}
	r.driver, err = host.New(host.Config{StateDir: filepath.Join(r.dir, "m"), AgentBinary: agent.Path(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.fault.Driver = r.driver
	r.fault.dead.Store(false)
	cfg := fleet.Config{
		Store: r.db.Fleet(), Keeper: r.db.Fleet(), Images: &r.shelf,
		Drivers: map[string]vm.Driver{"host": &r.fault}, Default: "host", Catalog: catalog.Lookup, Tasks: r.db,
		Log:     slog.New(slog.NewTextHandler(testWriter{r.t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Version: "test", Host: "here", StateDir: r.dir, Now: time.Now,
	}
	if r.config != nil {
		r.config(&cfg)
	}
	r.fleet = fleet.New(cfg)
	if err := r.fleet.Start(ctx); err != nil {
		r.close()
		return err
	}
	return nil
}

// hang makes the next start of a machine hang, and tells when it does.
func (r *rig) hang() (starting <-chan struct{}) {
	hangs := make(chan struct{})
	r.fault.start = func(ctx context.Context) error {
		close(hangs)
		<-ctx.Done()
		return ctx.Err()
	}
	return hangs
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// close ends the daemon; machines go on.
func (r *rig) close() {
	if r.fleet == nil {
		return
	}
	r.fleet.Close()
	if err := r.driver.Close(); err != nil {
		r.t.Error(err)
	}
	if err := r.db.Close(); err != nil {
		r.t.Error(err)
	}
	r.fleet = nil
}

func (r *rig) removeAll() {
	if r.fleet == nil {
		r.config = func(c *fleet.Config) { c.AcceptEmpty = true }
		r.open()
	}
	orphans, err := r.fleet.Orphans(r.t.Context())
	if err != nil {
		r.t.Error(err)
	}
	for _, o := range orphans {
		if err := r.fleet.RemoveOrphan(context.WithoutCancel(r.t.Context()), o.ID); err != nil {
			r.t.Error(err)
		}
	}
	page, err := r.fleet.List(r.t.Context(), fleet.Filter{})
	if err != nil {
		r.t.Error(err)
	}
	for _, v := range page.Views {
		if op, err := r.fleet.Delete(context.WithoutCancel(r.t.Context()), v.Name, 0); err == nil {
			r.end(op)
		}
	}
	r.empty()
}

// empty wants no machine left on disk.
func (r *rig) empty() {
	r.t.Helper()
	found, err := r.driver.List(context.WithoutCancel(r.t.Context()))
	if err != nil {
		r.t.Error(err)
	}
	if len(found) > 0 {
		r.t.Errorf("machines are left: %+v", found)
	}
}

const loadout = `apiVersion: loadout/v1
kind: loadout
metadata: {name: tester}
runtime_options: {kind: host, provider: host}
image: minimal
runners: [echo]
workspace: {path: /workspace}
`

func request(name string) fleet.CreateRequest { return requestWith(name, "") }

// requestWith adds lines to the loadout.
func requestWith(name, more string) fleet.CreateRequest {
	return fleet.CreateRequest{Name: name, Loadout: fleet.Source{Name: "tester.yaml", Data: []byte(loadout + more)}}
}

// create makes an instance and waits until it runs.
func (r *rig) create(name string) fleet.View {
	r.t.Helper()
	return r.createFrom(request(name))
}

func (r *rig) createFrom(req fleet.CreateRequest) fleet.View {
	r.t.Helper()
	op, err := r.fleet.Create(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		r.t.Fatalf("create ended %s: %v", op.State, op.Fault)
	}
	return r.get(req.Name)
}

func (r *rig) get(name string) fleet.View {
	r.t.Helper()
	v, err := r.fleet.Get(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// act asks for a change and waits for its end.
func (r *rig) act(name string, a fleet.Action) fleet.Operation {
	r.t.Helper()
	op, err := r.fleet.Act(r.t.Context(), name, a, fleet.ActOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.end(op)
}

// end waits for the end of an operation.
func (r *rig) end(op fleet.Operation) fleet.Operation {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	ch, err := r.fleet.Watch(ctx, op.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	for op = range ch { // the last one counts
	}
	if !op.State.Done() {
		r.t.Fatalf("operation %s did not end: %+v", op.Kind, op)
	}
	return op
}

// until waits for a phase.
func (r *rig) until(name string, phase instance.Phase) fleet.View {
	r.t.Helper()
	return r.when(name, string(phase), func(v fleet.View) bool { return v.Phase == phase })
}

// when waits until an instance is as wanted.
func (r *rig) when(name, what string, wanted func(fleet.View) bool) fleet.View {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		v := r.get(name)
		if wanted(v) {
			return v
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("%s is %s (%v), want %s", name, v.Phase, v.Fault, what)
		}
	}
}
