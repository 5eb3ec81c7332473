package faults

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	life "agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	tasks "agentic-sandbox.aiwg.io/sandbox/controlplane/task"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// The clock of the host is nobody's to turn. So these tests alone put parts
// together by themselves, with a clock that jumps.

// jumping is a clock on the wall that somebody sets.
type jumping struct {
	mu  sync.Mutex
	now time.Time
}

func (c *jumping) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *jumping) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// noon is when the tests begin.
func noon() time.Time { return time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC) }

// shelf is an image store whose files nobody reads: processes have none.
type shelf struct{}

func (shelf) Lookup(images.Ref) (images.Manifest, error) {
	const digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	return images.Manifest{Name: "minimal", RootDisk: images.Blob{Digest: digest, VirtualSize: 1 << 20}}, nil
}
func (shelf) Ensure(context.Context, images.Ref) (store.Image, error) { return store.Image{}, nil }
func (shelf) List() ([]store.Item, error)                             { return nil, nil }

// flock is a fleet with a clock of its own.
type flock struct {
	*testing.T
	programs string
	dir      string
	clock    *jumping
	db       *sqlite.DB
	hosts    *host.Driver
	*fleet.Fleet
}

func (f *flock) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// reopen is the next daemon at some time.
func (f *flock) reopen(now time.Time) {
	f.Helper()
	f.close()
	f.clock.set(now)
	ctx := context.WithoutCancel(f.Context())
	var err error
	f.db, err = sqlite.Open(ctx, filepath.Join(f.dir, "db"))
	f.check(err)
	f.hosts, err = host.New(host.Config{StateDir: filepath.Join(f.dir, "m"), AgentBinary: filepath.Join(f.programs, "sandbox-agent")})
	f.check(err)
	f.Fleet = fleet.New(fleet.Config{
		Store: f.db.Fleet(), Keeper: f.db.Fleet(), Images: shelf{}, Drivers: map[string]vm.Driver{"host": f.hosts}, Default: "host",
		Catalog: catalog.Lookup, Tasks: f.db, Log: slog.New(slog.DiscardHandler), Version: "test", Host: "here", StateDir: f.dir, Now: f.clock.Now,
	})
	f.check(f.Start(ctx))
}

func (f *flock) close() {
	if f.Fleet == nil {
		return
	}
	f.Close()
	if err := errors.Join(f.hosts.Close(), f.db.Close()); err != nil {
		f.Error(err)
	}
	f.Fleet = nil
}

func (f *flock) make(name, more string, ttl time.Duration) {
	f.Helper()
	const text = "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: clock}\nruntime_options: {kind: host, provider: host}\n" +
		"image: minimal\nworkspace: {path: /workspace}\n"
	_, err := f.Create(f.Context(), fleet.CreateRequest{
		Name: name, TTL: ttl, Loadout: fleet.Source{Name: "clock.yaml", Data: []byte(text + more)},
	})
	f.check(err)
	f.become(name, life.Running)
}

// become waits for a phase; none is that of an instance that is gone.
func (f *flock) become(name string, want life.Phase) (v fleet.View) {
	f.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		v, _ = f.Get(context.WithoutCancel(f.Context()), name) // one that is gone has no phase
		if v.Phase == want {
			return v
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			f.Fatalf("%q is %q, want %q", name, v.Phase, want)
		}
	}
}

// TestClockOfLives jumps back and forth while instances live: each ends when
// its time has come by the clock, none before.
func TestClockOfLives(t *testing.T) {
	t.Parallel()
	programs, _ := built(t)
	dir, err := os.MkdirTemp("", "clk-") //nolint:usetesting // socket paths must stay short
	if err != nil {
		t.Fatal(err)
	}
	f := &flock{T: t, programs: programs, dir: dir, clock: &jumping{}}
	t.Cleanup(func() {
		for _, name := range []string{"mortal", "eternal", "idler"} {
			if _, err := f.Delete(context.WithoutCancel(t.Context()), name, 0); err == nil {
				f.become(name, "")
			}
		}
		f.close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	f.reopen(noon())
	f.make("mortal", "", time.Hour)
	f.make("eternal", "", 0)
	f.make("idler", "lifecycle: {idle: {timeout_seconds: 600, action: stop}}\n", 0)
	end := f.become("mortal", life.Running).ExpiresAt

	// Two days back, under a daemon and between two of them.
	past := noon().Add(-48 * time.Hour)
	f.clock.set(past)
	f.lives("mortal", "eternal", "idler")
	f.reopen(past)
	f.lives("mortal", "eternal", "idler")
	if now := f.become("mortal", life.Running).ExpiresAt; !now.Equal(end) || !end.Equal(noon().Add(time.Hour)) {
		t.Errorf("its end was %v and is %v", end, now)
	}
	if v, err := f.Renew(t.Context(), "eternal", time.Hour); err != nil || !v.ExpiresAt.Equal(past.Add(time.Hour)) {
		t.Errorf("renewed for an hour at %v it ends %v, %v", past, v.ExpiresAt, err)
	}
	if _, err := f.Renew(t.Context(), "eternal", 0); err != nil {
		t.Error(err)
	}

	// Idle is counted from where the clock is now, not from where it was.
	f.reopen(past.Add(time.Minute))
	f.lives("mortal", "eternal", "idler")
	f.clock.set(past.Add(12 * time.Minute))
	// A real clock goes on by itself, and the pause until then would be over; a
	// change has it looked at now.
	if _, err := f.SetLabels(t.Context(), "idler", nil, 0); err != nil {
		t.Error(err)
	}
	f.become("idler", life.Stopped)
	f.lives("mortal", "eternal")

	// Forward, past the end of one, while a daemon looks on.
	f.clock.set(noon().Add(61 * time.Minute))
	f.become("mortal", "")
	f.lives("eternal")
	f.reopen(noon().AddDate(20, 0, 0))
	f.lives("eternal")
	f.become("idler", life.Stopped)
	f.reopen(noon().AddDate(-20, 0, 0))
	f.lives("eternal")
}

// lives wants instances that run and take requests, after all that is due has
// been looked at: a change passes through the same queue. No machine is there
// that is none of theirs, and none is lost.
func (f *flock) lives(names ...string) {
	f.Helper()
	for _, name := range names {
		v, err := f.SetLabels(f.Context(), name, map[string]string{"seen": f.clock.Now().String()}, 0)
		if err != nil || v.Phase != life.Running {
			f.Errorf("at %v %q is %q: %v", f.clock.Now(), name, v.Phase, err)
		}
	}
	page, err := f.List(f.Context(), fleet.Filter{})
	f.check(err)
	found, err := f.hosts.List(f.Context())
	f.check(err)
	runs := map[life.ID]bool{}
	for _, m := range found {
		runs[m.ID] = m.Running
	}
	for _, v := range page.Views {
		running, there := runs[v.ID]
		if !there || running != (v.Phase == life.Running) {
			f.Errorf("at %v %q is %s, and its machine is there: %t, running: %t", f.clock.Now(), v.Name, v.Phase, there, running)
		}
		delete(runs, v.ID)
	}
	orphans, err := f.Orphans(f.Context())
	if err != nil || len(orphans) > 0 || len(runs) > 0 {
		f.Errorf("at %v there are the machines %v of nobody, known are %v, %v", f.clock.Now(), runs, orphans, err)
	}
}

// TestClockOfKeys jumps between a request and its repetition: it is known as
// long as the clock does not say that it is too old.
func TestClockOfKeys(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	const ttl = 24 * time.Hour
	for _, c := range []struct {
		jump  time.Duration
		known bool
	}{
		{0, true}, {-time.Minute, true}, {-48 * time.Hour, true}, {-20 * 365 * 24 * time.Hour, true},
		{ttl - time.Second, true}, {ttl, false}, {20 * 365 * 24 * time.Hour, false},
	} {
		name := c.jump.String()
		requests, messages := db.ManagementRequests(), db.Idempotency()
		ask := func(id string, at time.Time) [2]string {
			t.Helper()
			r, err := requests.Reserve(t.Context(), once.Key{Tenant: "t", Principal: "p", Name: name},
				once.Reservation{Hash: "h", OperationID: id}, at, once.Bounds{TTL: ttl, Entries: 1000})
			m, merr := messages.Reserve(t.Context(), idempotency.Key{Principal: "p", Instance: "i", MessageID: name},
				idempotency.Reservation{Hash: "h", TaskID: id}, at, idempotency.Bounds{TTL: ttl, Entries: 1000})
			if err != nil || merr != nil {
				t.Fatal(err, merr)
			}
			return [2]string{r.OperationID, m.TaskID}
		}
		ask("first", noon())
		want := "second"
		if c.known {
			want = "first"
		}
		if got := ask("second", noon().Add(c.jump)); got != [2]string{want, want} {
			t.Errorf("repeated %v later it is %v, want %q", c.jump, got, want)
		}
	}
}

// TestClockOfWebhooks jumps while a webhook waits for its next try: it is not
// waited for longer than the longest pause.
func TestClockOfWebhooks(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{-20 * 365 * 24 * time.Hour, -time.Hour, time.Hour} {
		p := newPost(t)
		s := p.serve(false)
		if _, err := s.Create(t.Context(), tasks.System(), "t", push.Registration{Version: "1.0", URL: p.hook.URL}, 0); err != nil {
			t.Fatal(err)
		}
		first := <-p.got // it failed, and the next try is a minute away
		for stored := false; !stored; {
			hooks, err := p.db.Webhooks().Hooks(t.Context(), tasks.System(), "t")
			if err != nil {
				t.Fatal(err)
			}
			stored = len(hooks) == 1 && hooks[0].Progress.Failures == 1
		}
		s.Close()
		p.clock.set(noon().Add(jump))
		p.mu.Lock()
		p.up, p.pauses = true, nil
		p.mu.Unlock()
		s = p.serve(true)
		if second := <-p.got; second != first || first == "" {
			t.Errorf("after a jump of %v came %s, want %s again", jump, second, first)
		}
		s.Close()
		p.mu.Lock()
		if len(p.pauses) > 0 && slices.Max(p.pauses) > longestPause {
			t.Errorf("after a jump of %v it waits %v", jump, p.pauses)
		}
		p.mu.Unlock()
	}
}

const longestPause = 2 * time.Minute

// post is one task, one webhook and who delivers to it.
type post struct {
	*testing.T
	clock *jumping
	db    *sqlite.DB
	hook  *httptest.Server
	got   chan string // keys of deliveries

	mu     sync.Mutex
	up     bool // the webhook
	pauses []time.Duration
}

func newPost(t *testing.T) *post {
	t.Helper()
	p := &post{T: t, clock: &jumping{now: noon()}, got: make(chan string, 64)}
	p.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.up {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		p.got <- r.Header.Get("Idempotency-Key")
	}))
	t.Cleanup(p.hook.Close)
	var err error
	if p.db, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := p.db.Create(t.Context(), tasks.New{
		ID: "t", ContextID: "c", InstanceID: "01900000-0000-7000-8000-000000000001", Owner: "o", At: noon(),
		Message: tasks.Message{MessageID: "m", Role: tasks.User, Parts: []tasks.Part{tasks.TextPart("hi")}},
		Run:     tasks.Run{RunID: "r", Runner: "echo", Spec: []byte("s"), Artifacts: [2]string{"stdout", "stderr"}},
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// serve starts to deliver. Pauses are over at once, or never.
func (p *post) serve(over bool) *push.Service {
	p.Helper()
	s := push.New(context.WithoutCancel(p.Context()), push.Config{
		Store: p.db.Webhooks(), Log: p.db, Tasks: still{}, Now: p.clock.Now,
		Guard: &push.Guard{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Format: func(context.Context, string, tasks.Record, tasks.Event) (push.Body, error) {
			return push.Body{Data: []byte("{}"), ContentType: "application/json"}, nil
		},
		After: func(d time.Duration) <-chan time.Time {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.pauses = append(p.pauses, d)
			ch := make(chan time.Time, 1)
			if over {
				ch <- p.clock.Now().Add(d)
			}
			return ch
		},
		Limits: push.Limits{FirstRetry: time.Minute, MaxRetry: longestPause},
	})
	if err := s.Start(p.Context()); err != nil {
		p.Fatal(err)
	}
	return s
}

// still is the log of tasks on which nobody works.
type still struct{}

func (still) Changed(string) <-chan struct{} { return nil }
