package push_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const patience = 2 * time.Minute

const anInstance = instance.ID("01900000-0000-7000-8000-000000000001")

func TestMain(m *testing.M) {
	if path := os.Getenv(senderEnv); path != "" {
		if err := send(context.Background(), path, os.Getenv(hookEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// tasks writes the logs of tasks and says that they grew.
type tasks struct {
	db *sqlite.DB

	mu      sync.Mutex
	changed map[string]chan struct{}
}

func (f *tasks) Changed(id string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed[id] == nil {
		f.changed[id] = make(chan struct{})
	}
	return f.changed[id]
}

func (f *tasks) notify(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.changed[id]; c != nil {
		close(c)
		delete(f.changed, id)
	}
}

func (f *tasks) create(ctx context.Context, id, owner string) error {
	_, err := f.db.Create(ctx, task.New{
		ID: id, ContextID: "ctx-" + id, InstanceID: anInstance, Owner: owner,
		Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart("hi")}},
		Run:     task.Run{RunID: "run-" + id, Runner: "echo", Spec: []byte("spec"), Artifacts: [2]string{"stdout", "stderr"}},
		At:      time.Now(),
	})
	return err
}

func (f *tasks) move(ctx context.Context, id string, s task.State) error {
	rec, err := f.db.Task(ctx, task.System(), id, task.View{Inline: -1})
	if err != nil {
		return err
	}
	_, err = f.db.Move(ctx, id, task.Transition{
		Version: rec.Version, Status: task.Status{State: s, Timestamp: task.Stamp(time.Now())},
	})
	f.notify(id)
	return err
}

// output appends a chunk; p is the progress so far and goes on.
func (f *tasks) output(ctx context.Context, id string, p *task.Progress, data string) error {
	c := task.Chunk{ArtifactID: "stdout", Offset: p.Received[0], Data: []byte(data)}
	p.AfterSeq++
	p.Received[0] += uint64(len(data))
	err := f.db.Output(ctx, id, []task.Chunk{c}, *p)
	f.notify(id)
	return err
}

// wire is what the test's Format sends.
type wire struct {
	Version string
	Task    string
	Seq     uint64
	State   task.State
	Data    string
}

func format(_ context.Context, version string, rec task.Record, e task.Event) (push.Body, error) {
	w := wire{Version: version, Task: rec.ID, Seq: e.Seq}
	if e.Status != nil {
		w.State = e.Status.Status.State
	} else {
		w.Data = string(e.Chunk.Data)
		if w.Data == "skip" {
			return push.Body{}, nil
		}
	}
	b, err := json.Marshal(w)
	return push.Body{Data: b, ContentType: "application/a2a+json"}, err
}

// flying is a clock on which every pause is over at once.
type flying struct {
	mu     sync.Mutex
	now    time.Time
	pauses []time.Duration
}

func (c *flying) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *flying) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.pauses = append(c.pauses, d)
	ch := make(chan time.Time, 1)
	ch <- c.now
	return ch
}

// rig is a service over a real database.
type rig struct {
	t     *testing.T
	path  string
	db    *sqlite.DB
	tasks *tasks
	clock *flying
	cfg   push.Config
	s     *push.Service
	log   *safeBuffer
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func loopback() *push.Guard {
	return &push.Guard{HTTP: true, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func newRig(t *testing.T, change func(*push.Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, path: filepath.Join(t.TempDir(), "db"), log: &safeBuffer{},
		clock: &flying{now: time.UnixMilli(1_700_000_000_000)},
	}
	r.cfg = push.Config{
		Format: format, Guard: loopback(), Now: r.clock.Now, After: r.clock.After,
		Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&r.cfg)
	}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	db, err := sqlite.Open(r.t.Context(), r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.db = db
	r.tasks = &tasks{db: db, changed: map[string]chan struct{}{}}
	r.cfg.Store, r.cfg.Log, r.cfg.Tasks = db.Webhooks(), db, r.tasks
	r.s = push.New(context.WithoutCancel(r.t.Context()), r.cfg)
	if err := r.s.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.s.Close()
	if err := r.db.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) task(id string) { r.t.Helper(); r.must(r.tasks.create(r.t.Context(), id, "alice")) }

func (r *rig) move(id string, s task.State) {
	r.t.Helper()
	r.must(r.tasks.move(r.t.Context(), id, s))
}

func (r *rig) hook(taskID, url string) push.Hook {
	r.t.Helper()
	h, err := r.s.Create(r.t.Context(), task.System(), taskID, push.Registration{Version: "1.0", URL: url}, 0)
	r.must(err)
	return h
}

// stored waits until the stored webhook is as wanted.
func (r *rig) stored(taskID string, wanted func(push.Progress) bool) push.Progress {
	r.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		hooks, err := r.db.Webhooks().Hooks(r.t.Context(), task.System(), taskID)
		r.must(err)
		if len(hooks) == 1 && wanted(hooks[0].Progress) {
			return hooks[0].Progress
		}
		select {
		case <-tick.C:
		case <-limit.C:
			r.t.Fatalf("webhook is %+v", hooks)
		}
	}
}

func (r *rig) done(taskID string) push.Progress {
	r.t.Helper()
	return r.stored(taskID, func(p push.Progress) bool { return p.State == push.Done })
}

// request is one delivery as a receiver had it.
type request struct {
	wire
	header http.Header
	status int
}

// receiver is a webhook that remembers what it got.
type receiver struct {
	url string
	// got has every request once it was answered.
	got chan request
}

// newReceiver answers as told; nil: with 204.
func newReceiver(t *testing.T, answer func(n int, w wire) int) *receiver {
	t.Helper()
	r := &receiver{got: make(chan request, 10_000)}
	var mu sync.Mutex
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var w wire
		if err != nil || json.Unmarshal(body, &w) != nil || req.Method != http.MethodPost {
			t.Errorf("webhook got %s %q: %v", req.Method, body, err)
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		status := http.StatusNoContent
		if answer != nil {
			status = answer(n, w)
		}
		r.got <- request{w, req.Header, status}
		if status == 0 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		rw.WriteHeader(status)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	t.Cleanup(srv.Close)
	r.url = srv.URL + "/hook?secret=in-the-query"
	return r
}

// next waits for a request.
func (r *receiver) next(t *testing.T) request {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case q := <-r.got:
		return q
	case <-limit.C:
		t.Fatal("nothing was delivered")
		return request{}
	}
}

// all returns what has come so far.
func (r *receiver) all() []request {
	var list []request
	for {
		select {
		case q := <-r.got:
			list = append(list, q)
		default:
			return list
		}
	}
}
