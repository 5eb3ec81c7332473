package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// fakeServer is a server whose machines exist in memory only.
type fakeServer struct {
	http.Handler
	base    string
	holding chan struct{} // gets a value when a task is held

	mu    sync.Mutex
	views map[string]fleet.View
	ops   map[string]fleet.Operation
	sent  strings.Builder
	hold  chan struct{} // closed when the held task is cancelled
	drops int           // streams still to be broken
}

func newFakeServer(tokens *auth.Tokens) *fakeServer {
	f := &fakeServer{
		views: map[string]fleet.View{}, ops: map[string]fleet.Operation{},
		holding: make(chan struct{}, 1), hold: make(chan struct{}), drops: 2,
	}
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	r.PathPrefix("/agents/{id}").Handler(auth.Require(tokens, f.agent()))
	// The address that the server gives itself is not the one it is reached at.
	r.PathPrefix("/").Handler(auth.Require(tokens, management.New(management.Config{
		Instances: f, Machines: f, Operations: f, Events: f, Guests: f, Host: f, Once: &keys{},
		BaseURL: "http://sandbox.invalid:1", Heartbeat: time.Hour,
	})))
	f.Handler = r
	return f
}

// keys remembers requests in memory.
type keys struct {
	mu    sync.Mutex
	known map[once.Key]once.Reservation
}

func (k *keys) Reserve(_ context.Context, key once.Key, want once.Reservation, _ time.Time, _ once.Bounds) (once.Reservation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r, ok := k.known[key]; ok {
		return r, nil
	}
	if k.known == nil {
		k.known = map[once.Key]once.Reservation{}
	}
	k.known[key] = want
	return want, nil
}

func (k *keys) Answered(_ context.Context, key once.Key, operationID string, a once.Answer) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[key] = once.Reservation{Hash: k.known[key].Hash, OperationID: operationID, Answer: &a}
	return nil
}

func started() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func (f *fakeServer) Create(_ context.Context, req fleet.CreateRequest) (fleet.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.sent, "create name=%q loadout=%q labels=%v env=%v\n", req.Name, req.Loadout.Name, req.Labels, req.Env)
	fmt.Fprintf(&f.sent, "content %q\n", req.Loadout.Data)
	for _, ref := range slices.Sorted(maps.Keys(req.Loadout.Layers)) {
		fmt.Fprintf(&f.sent, "layer %s %q\n", ref, req.Loadout.Layers[ref])
	}
	name := req.Name
	if name == "" {
		name = "minimal-1"
	}
	if _, ok := f.views[name]; ok {
		return fleet.Operation{}, &instance.Fault{
			Blame: instance.Caller, Code: "instance.name_taken", Hint: "choose another with --name",
			Err: fmt.Errorf("cannot create instance %q: there is one of this name", name),
		}
	}
	if req.Loadout.Name == "broken.yaml" {
		return fleet.Operation{}, &instance.Fault{Blame: instance.Caller, Code: "loadout.invalid", Hint: "correct the loadout", Err: twoRules{}}
	}
	v := fleet.View{
		ID: instance.ID(fmt.Sprintf("0190b2a4-0000-7000-8000-%012d", len(f.views)+1)), Name: name, Phase: instance.Running,
		Loadout: "minimal", LoadoutHash: "sha256:00", Kind: "vm", Provider: "libvirt", Accelerator: "tcg", AcceleratorReason: "no KVM here",
		Vsock: "vhost-user-vsock", CPUs: 1, Memory: 512 << 20, Labels: req.Labels, Workspace: "/workspace", Runners: []string{"echo"},
		Guest:     &fleet.Guest{AgentVersion: "1.2.3", Kernel: "6.1", OS: "Evil \x1b[2J OS", Containment: "cgroup2", BootTime: 2 * time.Second},
		CreatedAt: started(), UpdatedAt: started(), Generation: 1, Host: "host-1",
	}
	op := fleet.Operation{
		ID: strings.Replace(string(v.ID), "0190", "0191", 1), Kind: "instance.create", Instance: v.ID, Name: name,
		State: fleet.OperationRunning, Phase: "image", Percent: 10, CreatedAt: started(), UpdatedAt: started(),
	}
	f.ops[op.ID] = op
	if name == "silent" {
		v.Phase = instance.Failed
		v.Fault = &instance.Fault{Blame: instance.Guest, Code: "guest.silent", Hint: "look at the console", Console: "Kernel panic \x1b]0;title\x07",
			Err: errors.New("the agent did not answer within 60 s")}
	}
	f.views[name] = v
	return op, nil
}

type twoRules struct{}

func (twoRules) Error() string { return "broken.yaml:3:9: resources.cpus: want 1 to 64" }

func (twoRules) Fields() []fleet.FieldError {
	return []fleet.FieldError{
		{Field: "resources.cpus", Message: "broken.yaml:3:9: resources.cpus: want 1 to 64", Code: "loadout.invalid"},
		{Field: "network.mode", Message: "broken.yaml:7:9: network.mode: want isolated", Code: "loadout.invalid"},
	}
}

func (f *fakeServer) find(ref string) (fleet.View, error) {
	for _, v := range f.views {
		if v.Name == ref || string(v.ID) == ref {
			return v, nil
		}
	}
	return fleet.View{}, &instance.Fault{Blame: instance.Caller, Code: "instance.not_found", Err: fmt.Errorf("there is no instance %q", ref)}
}

func (f *fakeServer) Get(_ context.Context, ref string) (fleet.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(ref)
}

func (f *fakeServer) List(_ context.Context, filter fleet.Filter) (fleet.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []fleet.View
	for _, v := range f.views {
		if (filter.Phase == "" || v.Phase == filter.Phase) && filter.Selector.Matches(v.Labels) {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b fleet.View) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return fleet.Page{Views: all, Total: len(all)}, nil
}

func (f *fakeServer) SetLabels(_ context.Context, ref string, labels map[string]string, _ int64) (fleet.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(ref)
	if err != nil {
		return v, err
	}
	v.Labels = labels
	v.Generation++
	f.views[v.Name] = v
	return v, nil
}

func (f *fakeServer) Renew(_ context.Context, ref string, ttl time.Duration) (fleet.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(ref)
	if err != nil {
		return v, err
	}
	v.ExpiresAt = time.Time{}
	if ttl > 0 {
		v.ExpiresAt = started().Add(ttl)
	}
	v.Generation++
	f.views[v.Name] = v
	return v, nil
}

func (f *fakeServer) change(ref, kind string, phase instance.Phase) (fleet.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(ref)
	if err != nil {
		return fleet.Operation{}, err
	}
	op := fleet.Operation{
		ID: fmt.Sprintf("0192b2a4-0000-7000-8000-%012d", len(f.ops)), Kind: kind, Instance: v.ID, Name: v.Name,
		State: fleet.OperationSucceeded, Percent: 100, CreatedAt: started(), UpdatedAt: started(), EndedAt: started(),
	}
	f.ops[op.ID] = op
	delete(f.views, v.Name)
	if v.Phase = phase; phase != instance.Deleting {
		f.views[v.Name] = v
	}
	return op, nil
}

func (f *fakeServer) Delete(_ context.Context, ref string, _ int64) (fleet.Operation, error) {
	return f.change(ref, "instance.delete", instance.Deleting)
}

func (f *fakeServer) Act(_ context.Context, ref string, a fleet.Action, _ fleet.ActOptions) (fleet.Operation, error) {
	to := map[fleet.Action]instance.Phase{
		fleet.ActionStart: instance.Running, fleet.ActionStop: instance.Stopped,
		fleet.ActionPause: instance.Paused, fleet.ActionResume: instance.Running, fleet.ActionRestart: instance.Running,
	}
	return f.change(ref, "instance."+string(a), to[a])
}

func (f *fakeServer) Operation(_ context.Context, id string) (fleet.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op, ok := f.ops[id]
	if !ok {
		return op, &instance.Fault{Blame: instance.Caller, Code: "operation.not_found", Err: fmt.Errorf("there is no operation %q", id)}
	}
	return op, nil
}

func (f *fakeServer) Operations(context.Context, fleet.OperationFilter) (fleet.OperationPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Collect(maps.Values(f.ops))
	slices.SortFunc(all, func(a, b fleet.Operation) int { return strings.Compare(b.ID, a.ID) })
	return fleet.OperationPage{Operations: all}, nil
}

func (f *fakeServer) CancelOperation(_ context.Context, id string) (fleet.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op, ok := f.ops[id]
	switch {
	case !ok:
		return op, &instance.Fault{Blame: instance.Caller, Code: "operation.not_found", Err: fmt.Errorf("there is no operation %q", id)}
	case op.State.Done():
		return op, &instance.Fault{Blame: instance.Caller, Code: "operation.ended", Err: fmt.Errorf("operation %q has ended", id)}
	}
	op.Canceling, op.State, op.EndedAt = true, fleet.OperationCanceled, started()
	f.ops[id] = op
	return op, nil
}

// history is what has happened here.
func (f *fakeServer) history(after uint64, filter fleet.EventFilter) (events []fleet.Event) {
	all := []fleet.Event{
		{Seq: 1, Type: fleet.EventCreated, Instance: "0190b2a4-0000-7000-8000-000000000001", Name: "demo", Phase: instance.Provisioning},
		{Seq: 2, Type: fleet.EventPhase, Instance: "0190b2a4-0000-7000-8000-000000000001", Name: "demo", Phase: instance.Running, Reason: "boot"},
	}
	for _, e := range all {
		e.At, e.Tenant = started(), instance.DefaultTenant
		if e.Seq > after && filter.Matches(e) {
			events = append(events, e)
		}
	}
	return events
}

func (f *fakeServer) Events(_ context.Context, after uint64, filter fleet.EventFilter, _ int) ([]fleet.Event, error) {
	return f.history(after, filter), nil
}

func (f *fakeServer) LastEvent() uint64 { return 0 }

func (f *fakeServer) Follow(_ context.Context, after uint64, filter fleet.EventFilter) (<-chan fleet.Event, error) {
	events := f.history(after, filter)
	ch := make(chan fleet.Event, len(events))
	defer close(ch)
	for _, e := range events {
		ch <- e
	}
	return ch, nil
}

// Watch ends the stream once in the middle, as a server does that restarts.
func (f *fakeServer) Watch(ctx context.Context, id string) (<-chan fleet.Operation, error) {
	op, err := f.Operation(ctx, id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan fleet.Operation, 4)
	defer close(ch)
	ch <- op
	if op.State.Done() {
		return ch, nil
	}
	op.Warnings = []string{"env.TOKEN looks like a secret"}
	switch op.Phase {
	case "image":
		op.Phase, op.Percent = "boot", 50
	default:
		op.Phase, op.Percent, op.State, op.EndedAt = "agent", 100, fleet.OperationSucceeded, started()
		if v, _ := f.find(op.Name); v.Fault != nil {
			op.State, op.Fault = fleet.OperationFailed, v.Fault
		}
	}
	f.ops[id] = op
	ch <- op
	return ch, nil
}

func (f *fakeServer) PutArchive(_ context.Context, ref, dir string, in io.Reader) (int, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(ref)
	if err != nil {
		return 0, 0, err
	}
	fmt.Fprintf(&f.sent, "archive %s %s\n", v.ID, dir)
	tr := tar.NewReader(in)
	var size int64
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return n, size, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if path.Base(h.Name) == "refused" {
			return 0, 0, &instance.Fault{Blame: instance.Caller, Code: "agent.invalid_request", Err: fmt.Errorf("entry %q is refused", h.Name)}
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			return 0, 0, err
		}
		size += int64(len(content))
		fmt.Fprintf(&f.sent, "%c %03o %d:%d %s %s%q\n", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Name, h.Linkname, content)
	}
}

func (f *fakeServer) Log(_ context.Context, ref string) (fleet.Log, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(ref)
	return fleet.Log{State: string(v.Phase), Console: "Linux boots\nlogin:", Facts: map[string]string{"pid": "42"}}, err
}

func (f *fakeServer) Console(_ context.Context, ref string, _ bool, _ int) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.find(ref)
	return io.NopCloser(strings.NewReader("Linux boots\nlogin:")), err
}

func (f *fakeServer) Orphans(context.Context) ([]fleet.Orphan, error) {
	return []fleet.Orphan{{
		Provider: "libvirt", ID: "0190b2a4-0000-7000-8000-0000000000ff", Running: true, Note: "no instance knows it", Since: started(),
	}}, nil
}

func (f *fakeServer) RemoveOrphan(context.Context, instance.ID) error { return nil }

func (f *fakeServer) Lacks(_ context.Context, l *loadouts.Resolved) []fleet.FieldError {
	if l.Name == "lacking" {
		return []fleet.FieldError{{Field: "image", Code: "image.not_found", Message: "there is none (`sandboxctl images` lists what there is)"}}
	}
	return nil
}

func (f *fakeServer) Facts(context.Context) (fleet.HostFacts, error) {
	return fleet.HostFacts{
		Host: "host-1", Version: version, StateDir: "/state",
		Providers: []fleet.Provider{
			{Name: "libvirt", Kind: "vm", Default: true, Available: true, Accelerator: "tcg", AcceleratorReason: "KVM did not run a guest",
				Vsock: "vhost-user-vsock", Versions: map[string]string{"qemu": "7.2.0", "libvirt": "11.6.0"}},
			{Name: "host", Kind: "host", Reason: "off by default", Remedy: "sandboxd serve --enable-host"},
		},
		Images: []fleet.Image{{Name: "minimal", Ref: "minimal@sha256:00", Size: 3 << 20, Packages: 2, BuiltAt: started()}},
		Checks: []fleet.Check{
			{Name: "disk", Status: "error", Detail: "no space left", Remedy: "free some space\nor move the state directory"},
			{Name: "kvm", Status: "warning", Detail: "cannot be used"},
			{Name: "images", Status: "ok", Detail: "1 image"},
		},
	}, nil
}
