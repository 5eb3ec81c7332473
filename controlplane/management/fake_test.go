package management_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// fakeFleet answers what a test tells it to, and something plausible otherwise.
type fakeFleet struct {
	CreateFn     func(context.Context, fleet.CreateRequest) (fleet.Operation, error)
	GetFn        func(context.Context, string) (fleet.View, error)
	ListFn       func(context.Context, fleet.Filter) (fleet.Page, error)
	SetLabelsFn  func(context.Context, string, map[string]string, int64) (fleet.View, error)
	RenewFn      func(context.Context, string, time.Duration) (fleet.View, error)
	DeleteFn     func(context.Context, string, int64) (fleet.Operation, error)
	ActFn        func(context.Context, string, fleet.Action, fleet.ActOptions) (fleet.Operation, error)
	OperationFn  func(context.Context, string) (fleet.Operation, error)
	OperationsFn func(context.Context, fleet.OperationFilter) (fleet.OperationPage, error)
	CancelFn     func(context.Context, string) (fleet.Operation, error)
	WatchFn      func(context.Context, string) (<-chan fleet.Operation, error)
	EventsFn     func(context.Context, uint64, fleet.EventFilter, int) ([]fleet.Event, error)
	FollowFn     func(context.Context, uint64, fleet.EventFilter) (<-chan fleet.Event, error)
	LastEventFn  func() uint64
	PutArchiveFn func(context.Context, string, string, io.Reader) (int, int64, error)
	LogFn        func(context.Context, string) (fleet.Log, error)
	ConsoleFn    func(context.Context, string, bool, int) (io.ReadCloser, error)
	FactsFn      func(context.Context) (fleet.HostFacts, error)
	OrphansFn    func(context.Context) ([]fleet.Orphan, error)
	RemoveFn     func(context.Context, instance.ID) error
	LacksFn      func(*loadouts.Resolved) []fleet.FieldError
}

func (f *fakeFleet) Create(ctx context.Context, req fleet.CreateRequest) (fleet.Operation, error) {
	if f.CreateFn != nil {
		return f.CreateFn(ctx, req)
	}
	return sampleOperation(), nil
}

func (f *fakeFleet) Get(ctx context.Context, ref string) (fleet.View, error) {
	if f.GetFn != nil {
		return f.GetFn(ctx, ref)
	}
	return sampleView(), nil
}

func (f *fakeFleet) List(ctx context.Context, filter fleet.Filter) (fleet.Page, error) {
	if f.ListFn != nil {
		return f.ListFn(ctx, filter)
	}
	return fleet.Page{Views: []fleet.View{sampleView()}, Total: 1}, nil
}

func (f *fakeFleet) SetLabels(ctx context.Context, ref string, labels map[string]string, generation int64) (fleet.View, error) {
	if f.SetLabelsFn != nil {
		return f.SetLabelsFn(ctx, ref, labels, generation)
	}
	v := sampleView()
	v.Labels = labels
	v.Generation++
	return v, nil
}

func (f *fakeFleet) Renew(ctx context.Context, ref string, ttl time.Duration) (fleet.View, error) {
	if f.RenewFn != nil {
		return f.RenewFn(ctx, ref, ttl)
	}
	v := sampleView()
	v.ExpiresAt = sampleTime().Add(ttl)
	return v, nil
}

func (f *fakeFleet) Delete(ctx context.Context, ref string, generation int64) (fleet.Operation, error) {
	if f.DeleteFn != nil {
		return f.DeleteFn(ctx, ref, generation)
	}
	return sampleOperation(), nil
}

func (f *fakeFleet) Act(ctx context.Context, ref string, a fleet.Action, o fleet.ActOptions) (fleet.Operation, error) {
	if f.ActFn != nil {
		return f.ActFn(ctx, ref, a, o)
	}
	return sampleOperation(), nil
}

func (f *fakeFleet) Operation(ctx context.Context, id string) (fleet.Operation, error) {
	if f.OperationFn != nil {
		return f.OperationFn(ctx, id)
	}
	return sampleOperation(), nil
}

func (f *fakeFleet) Operations(ctx context.Context, filter fleet.OperationFilter) (fleet.OperationPage, error) {
	if f.OperationsFn != nil {
		return f.OperationsFn(ctx, filter)
	}
	return fleet.OperationPage{Operations: []fleet.Operation{sampleOperation()}}, nil
}

func (f *fakeFleet) CancelOperation(ctx context.Context, id string) (fleet.Operation, error) {
	if f.CancelFn != nil {
		return f.CancelFn(ctx, id)
	}
	op := sampleOperation()
	op.Canceling = true
	return op, nil
}

func (f *fakeFleet) Events(ctx context.Context, after uint64, filter fleet.EventFilter, limit int) ([]fleet.Event, error) {
	if f.EventsFn != nil {
		return f.EventsFn(ctx, after, filter, limit)
	}
	return []fleet.Event{sampleEvent(after + 1)}, nil
}

func (f *fakeFleet) Follow(ctx context.Context, after uint64, filter fleet.EventFilter) (<-chan fleet.Event, error) {
	if f.FollowFn != nil {
		return f.FollowFn(ctx, after, filter)
	}
	ch := make(chan fleet.Event, 1)
	ch <- sampleEvent(after + 1)
	close(ch)
	return ch, nil
}

func (f *fakeFleet) LastEvent() uint64 {
	if f.LastEventFn != nil {
		return f.LastEventFn()
	}
	return 41
}

func (f *fakeFleet) Console(ctx context.Context, ref string, follow bool, lines int) (io.ReadCloser, error) {
	if f.ConsoleFn != nil {
		return f.ConsoleFn(ctx, ref, follow, lines)
	}
	return io.NopCloser(strings.NewReader("Linux boots\nlogin:")), nil
}

func (f *fakeFleet) Orphans(ctx context.Context) ([]fleet.Orphan, error) {
	if f.OrphansFn != nil {
		return f.OrphansFn(ctx)
	}
	return []fleet.Orphan{{Provider: "libvirt", ID: sampleID, Running: true, Note: "no instance knows it", Since: sampleTime()}}, nil
}

func (f *fakeFleet) RemoveOrphan(ctx context.Context, id instance.ID) error {
	if f.RemoveFn != nil {
		return f.RemoveFn(ctx, id)
	}
	return nil
}

func (f *fakeFleet) Watch(ctx context.Context, id string) (<-chan fleet.Operation, error) {
	if f.WatchFn != nil {
		return f.WatchFn(ctx, id)
	}
	op := sampleOperation()
	op.State, op.EndedAt = fleet.OperationSucceeded, op.UpdatedAt
	ch := make(chan fleet.Operation, 1)
	ch <- op
	close(ch)
	return ch, nil
}

func (f *fakeFleet) PutArchive(ctx context.Context, ref, path string, tar io.Reader) (int, int64, error) {
	if f.PutArchiveFn != nil {
		return f.PutArchiveFn(ctx, ref, path, tar)
	}
	n, err := io.Copy(io.Discard, tar)
	return 1, n, err
}

func (f *fakeFleet) Log(ctx context.Context, ref string) (fleet.Log, error) {
	if f.LogFn != nil {
		return f.LogFn(ctx, ref)
	}
	return fleet.Log{
		State: "running", Console: "Linux boots\nlogin:", Hypervisor: "qemu says nothing\n",
		Facts: map[string]string{"pid": "42", "accelerator": "tcg"},
	}, nil
}

func (f *fakeFleet) Facts(ctx context.Context) (fleet.HostFacts, error) {
	if f.FactsFn != nil {
		return f.FactsFn(ctx)
	}
	return fleet.HostFacts{
		Host: "host-1", Version: "1.2.3", StateDir: "/var/lib/agentic-sandbox", Instances: 1,
		Providers: []fleet.Provider{{
			Name: "libvirt", Kind: "vm", Default: true, Available: true, Accelerator: "tcg",
			AcceleratorReason: "KVM did not run a guest", Vsock: "vhost-user-vsock", Versions: map[string]string{"qemu": "7.2.0"},
			Operations: []string{"instance.start"},
		}},
		Images: []fleet.Image{{Name: "minimal", Ref: "minimal@sha256:" + digest, Size: 123, Packages: 2, BuiltAt: sampleTime()}},
		Checks: []fleet.Check{{Name: "kvm", Status: "warning", Detail: "not usable", Remedy: "modprobe kvm"}},
	}, nil
}

func (f *fakeFleet) Lacks(_ context.Context, l *loadouts.Resolved) []fleet.FieldError {
	if f.LacksFn != nil {
		return f.LacksFn(l)
	}
	return nil
}

const (
	sampleID    = "0190b2a4-0000-7000-8000-000000000001"
	operationID = "0190b2a4-0000-7000-8000-00000000000a"
	digest      = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func sampleTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC) }

func sampleView() fleet.View {
	return fleet.View{
		ID: sampleID, Name: "demo", Phase: instance.Running, Loadout: "agentic-dev", LoadoutHash: "sha256:" + digest,
		ImageRef: "qcow2://images/debian-12-agentic-dev@sha256:" + digest, Kind: "vm", Provider: "libvirt",
		Accelerator: "tcg", AcceleratorReason: "KVM did not run a guest", Vsock: "vhost-user-vsock",
		Capabilities: []string{"instance.start"}, CPUs: 2, Memory: 1 << 30, Labels: map[string]string{"team": "blue"},
		Workspace: "/workspace", Runners: []string{"echo"},
		Guest: &fleet.Guest{
			AgentVersion: "1.2.3", Kernel: "6.1.0", OS: "Debian GNU/Linux 12", Containment: "cgroup2",
			AnsweredAt: sampleTime(), BootTime: 2200 * time.Millisecond,
		},
		CreatedAt: sampleTime(), UpdatedAt: sampleTime(), Generation: 7, Host: "host-1",
	}
}

func sampleOperation() fleet.Operation {
	return fleet.Operation{
		ID: operationID, Kind: "instance.create", Instance: sampleID, Name: "demo", State: fleet.OperationRunning,
		Phase: "boot", Percent: 60, CreatedAt: sampleTime(), UpdatedAt: sampleTime(),
	}
}

func sampleEvent(seq uint64) fleet.Event {
	return fleet.Event{
		Seq: seq, At: sampleTime(), Type: fleet.EventPhase, Instance: sampleID, Name: "demo", Phase: instance.Running,
		Operation: operationID, Reason: "boot", Message: "the agent has answered",
	}
}

// admin stands in for auth.Require.
func admin(next http.Handler) http.Handler { return as(auth.ScopeAdmin, next) }

func as(scope auth.Scope, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := auth.Principal{Name: "tester", Scopes: []auth.Scope{scope}}
		next.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	})
}

func config(f *fakeFleet, log io.Writer) management.Config {
	c := management.Config{
		Instances: f, Machines: f, Operations: f, Events: f, Guests: f, Host: f, BaseURL: "http://sandbox.test/", MaxArchive: 1 << 20,
		Heartbeat: time.Hour,
	}
	if log != nil {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return c
}

// serve starts a server on the fake.
func serve(t *testing.T, f *fakeFleet) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(admin(management.New(config(f, nil))))
	t.Cleanup(s.Close)
	return s
}
