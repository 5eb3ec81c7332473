package supervise

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// patience bounds one wait: the host may be busy.
const patience = 2 * time.Minute

var errBoom = errors.New("boom")

// rig is one instance with a driver, an agent and a store that do what a test
// wants. Hooks are set before run and may be nil.
type rig struct {
	t *testing.T
	s *Supervisor

	create, closing func() error
	// start, stop and powerOff say what becomes of the call: nil, and it is
	// carried out.
	start, stop func(ctx context.Context) error
	powerOff    func() error
	toggling    func(what string) error // of "pause" and "resume"
	// saving and removing are asked before a record is stored or forgotten.
	saving   func(next Record) error
	removing func() error

	mu       sync.Mutex
	machines map[instance.ID]*machine
	did      []string // what the driver and the agent were asked for
	stored   *Record  // nil: forgotten
	socket   string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, machines: map[instance.ID]*machine{}, socket: filepath.Join(t.TempDir(), "s")}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	agentv1.RegisterAgentServer(server, &guest{r: r})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return r
}

// fresh is the record of an instance that nothing has been done for.
func (r *rig) fresh() Record {
	r.t.Helper()
	id, err := instance.NewID()
	if err != nil {
		r.t.Fatal(err)
	}
	return Record{
		ID: id, Name: "dev", Phase: instance.Provisioning, Provider: "fake",
		Plan: plan.Plan{
			ID: id, Name: "dev", SetupTimeout: patience,
			Image: "minimal@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
			Steps: []plan.Step{plan.StepImage, plan.StepMachine, plan.StepBoot, plan.StepAgent},
		},
	}
}

// run has a supervisor take up a record and returns how to end it, which the
// end of the test does too.
func (r *rig) run(rec Record, l Limits, unended ...*Request) (end func()) {
	r.t.Helper()
	r.stored = &rec
	r.s = New(Config{
		Driver: r, Images: shelf{}, Store: r, Now: time.Now, Limits: l,
		Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	}, rec)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); r.s.Run(ctx, unended...) }()
	end = func() { cancel(); <-done }
	r.t.Cleanup(end)
	return end
}

// running has a machine come up for a new instance.
func (r *rig) running(l Limits) {
	r.t.Helper()
	create := r.request(instance.StartRequested)
	create.mark = func(s Step) error {
		if done := s.Mark == "did"; done != (s.Percent > 0) {
			r.t.Errorf("%s %s: %d percent", s.Name, s.Mark, s.Percent)
		}
		return nil
	}
	r.run(r.fresh(), l, create.Request)
	if err := create.end(); err != nil {
		r.t.Fatal(err)
	}
}

// asked is a request and its tracker.
type asked struct {
	*Request
	t     *testing.T
	mark  func(Step) error
	ended chan error
}

func (r *rig) request(e instance.Event) *asked {
	a := &asked{t: r.t, ended: make(chan error, 1)}
	a.Request = &Request{ID: string(e), Event: e, Why: "test", Track: a}
	return a
}

// Step implements Tracker.
func (a *asked) Step(_ context.Context, s Step) error {
	if a.mark != nil {
		return a.mark(s)
	}
	return nil
}

// End implements Tracker.
func (a *asked) End(_ context.Context, err error) { a.ended <- err }

func (a *asked) end() error {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(patience):
		a.t.Fatalf("%s does not end", a.Event)
		return nil
	}
}

// do submits a request.
func (r *rig) do(a *asked) *asked {
	r.t.Helper()
	if err := r.s.Submit(r.t.Context(), a.Request); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// until waits for a phase.
func (r *rig) until(p instance.Phase) Record {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		r.s.mu.Lock()
		rec, changed := r.s.record.clone(), r.s.changed
		r.s.mu.Unlock()
		if rec.Phase == p {
			return rec
		}
		select {
		case <-changed:
		case <-deadline.C:
			r.t.Fatalf("it is %s, want %s", rec.Phase, p)
		}
	}
}

// count is how often something was asked for.
func (r *rig) count(what string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.did {
		if d == what {
			n++
		}
	}
	return n
}

func (r *rig) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.did = append(r.did, what)
}

// only returns the one machine there is, nil if there is none.
func (r *rig) only() *machine {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.machines))
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	r.t.Fatalf("there are %d machines", len(all))
	return nil
}

// Save implements Store.
func (r *rig) Save(_ context.Context, _, next Record, _ Note) error {
	if r.saving != nil {
		if err := r.saving(next); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored = &next
	return nil
}

// Remove implements Store.
func (r *rig) Remove(context.Context, Record, Note) error {
	if r.removing != nil {
		if err := r.removing(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored = nil
	return nil
}

// forgotten reports whether the store has no record any more.
func (r *rig) forgotten() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stored == nil
}

type shelf struct{}

func (shelf) Ensure(context.Context, images.Ref) (store.Image, error) { return store.Image{}, nil }

// The rig is the driver, too.

func (r *rig) Capabilities(context.Context) (vm.Capabilities, error) { return vm.Capabilities{}, nil }
func (r *rig) Close() error                                          { return nil }

func (r *rig) Create(_ context.Context, spec vm.Spec) (vm.Instance, vm.Handle, error) {
	r.note("create")
	if r.create != nil {
		if err := r.create(); err != nil {
			return nil, vm.Handle{}, err
		}
	}
	m := &machine{r: r, id: spec.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machines[spec.ID] = m
	return m, handleOf(spec.ID), nil
}

func handleOf(id instance.ID) vm.Handle {
	return vm.Handle{Driver: "fake", Data: []byte(`"` + id + `"`)}
}

func (r *rig) Recover(_ context.Context, h vm.Handle) (vm.Instance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, m := range r.machines {
		if bytes.Equal(handleOf(id).Data, h.Data) {
			return m, nil
		}
	}
	return nil, vm.ErrGone
}

func (r *rig) List(context.Context) ([]vm.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []vm.Found
	for id := range r.machines {
		all = append(all, vm.Found{ID: id, Handle: handleOf(id)})
	}
	slices.SortFunc(all, func(a, b vm.Found) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}
