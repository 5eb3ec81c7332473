// Package push tells webhooks what happens to tasks: an outbox of A2A's push
// notifications.
//
// It reads the log of a task at the pace of each webhook, by a cursor of its
// own that is stored, so that nothing is lost when the process dies: every
// event arrives at least once and in order. It never holds up the task or a
// stream, since it only reads. It decides which addresses may be reached
// (Guard), because the address is chosen by a client.
//
// It knows no A2A JSON (Config.Format makes what is sent), no HTTP surface and
// no database; who may see a task has been found out before.
//
//	Create ── guard ── store ── worker: log ── format ── POST ── cursor
//	Start ─────────────────────────┘
package push

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/share"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// FromNow begins behind the newest event; but with the last event of a task
// that has ended, so that nobody who comes just too late waits for ever.
const FromNow = -1

// Store keeps webhooks. A method that has returned nil has reached the disk.
// Those that a caller asks for take its scope; a task outside of it is none.
type Store interface {
	// Put stores a webhook and returns it with its serial and cursor. One with
	// the same task and id is replaced, and the cursor taken over. A new one
	// begins behind the event after, or as FromNow says.
	// task.ErrNotFound if there is no such task, ErrTooMany if it has max.
	Put(ctx context.Context, in task.Scope, h Hook, after int64, limit int) (Hook, error)
	// Hooks lists the webhooks of a task, oldest first.
	Hooks(ctx context.Context, in task.Scope, taskID string) ([]Hook, error)
	// Delete removes a webhook; none to remove is no error.
	Delete(ctx context.Context, in task.Scope, taskID, id string) error
	// Active lists the webhooks that deliveries are due to, of all tenants.
	Active(ctx context.Context) ([]Hook, error)
	// Save stores the progress of a registration. ErrGone if it is no more.
	Save(ctx context.Context, serial int64, p Progress) error
}

// Errors to be asked for with errors.Is.
var (
	// ErrTooMany: the task has as many webhooks as it may have.
	ErrTooMany = errors.New("too many webhooks")
	// ErrFull: the principal has as many webhooks that events are due to as it may.
	ErrFull = errors.New("too many webhooks wait for events")
	// ErrGone: the registration was deleted or replaced.
	ErrGone = errors.New("webhook is gone")
)

// Log is the log of tasks.
type Log interface {
	Task(ctx context.Context, in task.Scope, id string, v task.View) (task.Record, error)
	Events(ctx context.Context, in task.Scope, id string, after uint64) ([]task.Event, error)
}

// Tasks says when the log grows.
type Tasks interface {
	// Changed returns a channel that is closed when the log of a task grows
	// after the call; nil if nobody works on the task.
	Changed(taskID string) <-chan struct{}
}

// Body is what is sent of one event.
type Body struct {
	Data        []byte
	ContentType string
}

// Format makes what is sent of an event in the form of a protocol version. rec
// is the task without history and artifacts, as it was when the worker looked.
// A Body without data skips the event.
type Format func(ctx context.Context, version string, rec task.Record, e task.Event) (Body, error)

// Config says what a service works with. The first five are required.
type Config struct {
	Store  Store
	Log    Log
	Tasks  Tasks
	Format Format
	Guard  *Guard

	// RootCAs are who webhooks' certificates are trusted by; the system's when nil.
	RootCAs *x509.CertPool
	Logger  *slog.Logger
	Limits  Limits
	// Now and After are the clock; After's channel delivers once, after d.
	Now   func() time.Time
	After func(d time.Duration) <-chan time.Time
	// Jitter returns numbers in [0, 1) that spread retries.
	Jitter func() float64
}

// Limits bound what webhooks may cost. Zero values mean the defaults.
type Limits struct {
	// PerTask bounds the webhooks of one task. Default 16.
	PerTask int
	// Active bounds those of the tasks of one principal that deliveries are due
	// to, each of which costs memory until it has them or is given up. Default 4096.
	Active int
	// Timeout bounds one try, from dialing to the end of the answer. Default 15 s.
	Timeout time.Duration
	// FirstRetry is the pause after the first failure; it doubles with each
	// up to MaxRetry. Defaults 1 s and 5 min.
	FirstRetry, MaxRetry time.Duration
	// MaxTries and MaxAge end the tries of one event, whichever comes first.
	// Defaults 50 and 4 h.
	MaxTries int
	MaxAge   time.Duration
	// PerOwner and InFlight bound the deliveries at one time, for the tasks of
	// one principal and for all. Defaults 16 and 64.
	PerOwner, InFlight int
}

func (l *Limits) fill() {
	n := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	d := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	n(&l.PerTask, 16)
	n(&l.Active, 4096)
	n(&l.MaxTries, 50)
	n(&l.PerOwner, 16)
	n(&l.InFlight, 64)
	d(&l.Timeout, 15*time.Second)
	d(&l.FirstRetry, time.Second)
	d(&l.MaxRetry, 5*time.Minute)
	d(&l.MaxAge, 4*time.Hour)
}

// Service delivers to webhooks. Safe for concurrent use.
type Service struct {
	cfg  Config
	post *poster
	gate *share.Gate
	ctx  context.Context //nolint:containedctx // the life of its goroutines, not of a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	// changing holds the order in which webhooks are stored and workers
	// started for them, so that the newest of both is the same one.
	changing sync.Mutex
	mu       sync.Mutex
	closed   bool
	workers  map[key]*worker
	held     map[share.Owner]int // workers, by who owns their tasks
}

type key struct{ task, id string }

func (h Hook) key() key { return key{h.TaskID, h.ID} }

// New makes a service whose work ends with ctx or Close. Call Start once the
// tasks are carried out again.
func New(ctx context.Context, cfg Config) *Service {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.After == nil {
		cfg.After = time.After
	}
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	cfg.Limits.fill()
	ctx, stop := context.WithCancel(ctx)
	return &Service{
		cfg: cfg, ctx: ctx, stop: stop, post: newPoster(cfg.Guard, cfg.RootCAs, cfg.Limits.Timeout),
		gate: share.NewGate(cfg.Limits.PerOwner, cfg.Limits.InFlight), workers: map[key]*worker{}, held: map[share.Owner]int{},
	}
}

// Start takes up the deliveries that an earlier service left.
func (s *Service) Start(ctx context.Context) error {
	hooks, err := s.cfg.Store.Active(ctx)
	if err != nil {
		return fmt.Errorf("cannot take up push notifications: %w", err)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	for _, h := range hooks {
		if s.running(h) {
			continue // made since
		}
		rec, err := s.cfg.Log.Task(ctx, task.System(), h.TaskID, task.View{Inline: -1})
		if errors.Is(err, task.ErrNotFound) {
			continue // and the webhook with it
		}
		if err != nil {
			return fmt.Errorf("cannot take up push notifications: %w", err)
		}
		s.launch(h, ownerOf(rec))
	}
	return nil
}

func ownerOf(rec task.Record) share.Owner { return share.Owner{Tenant: rec.Tenant, Name: rec.Owner} }

// Close stops deliveries and waits for the service's goroutines. What was not
// delivered is by the next service.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	s.post.close()
}

// Check says with a *Refusal what is wrong with a registration. Create checks
// too; this is for who must know before there is a task.
func (s *Service) Check(ctx context.Context, r Registration) error {
	if err := r.check(); err != nil {
		return err
	}
	return s.cfg.Guard.CheckURL(ctx, r.URL)
}

// Room returns ErrTooMany if the task has no room for one more webhook, of that
// id or, if it is empty, of any, and ErrFull if who asks has none. It is for who
// must know before a webhook comes with something that cannot be taken back;
// Create decides. The task is empty if it is to be made.
func (s *Service) Room(ctx context.Context, in task.Scope, taskID, id string) error {
	if s.full(share.Owner{Tenant: in.TenantOrDefault(), Name: in.Owner}) {
		return ErrFull
	}
	if taskID == "" {
		return nil
	}
	hooks, err := s.cfg.Store.Hooks(ctx, in, taskID)
	if err != nil {
		return fmt.Errorf("cannot count webhooks of task %q: %w", taskID, err)
	}
	for _, h := range hooks {
		if h.ID == id {
			return nil // it is replaced
		}
	}
	if len(hooks) >= s.cfg.Limits.PerTask {
		return ErrTooMany
	}
	return nil
}

// Create registers a webhook for a task, in place of one with the same id.
// What it is told begins behind the event after: 0 for everything, or FromNow.
// The secrets are not in what is returned.
func (s *Service) Create(ctx context.Context, in task.Scope, taskID string, r Registration, after int64) (Hook, error) {
	if err := s.Check(ctx, r); err != nil {
		return Hook{}, err
	}
	if r.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Hook{}, fmt.Errorf("cannot make id of webhook: %w", err)
		}
		r.ID = id.String()
	}
	h := Hook{
		TaskID: taskID, ID: r.ID, Version: r.Version, URL: r.URL, Token: r.Token,
		Scheme: r.Scheme, Credentials: r.Credentials, CreatedAt: s.cfg.Now(),
	}
	rec, err := s.cfg.Log.Task(ctx, in, taskID, task.View{Inline: -1})
	if err != nil {
		return Hook{}, err
	}
	owner := ownerOf(rec)
	s.changing.Lock()
	defer s.changing.Unlock()
	if !s.running(h) && s.full(owner) {
		return Hook{}, ErrFull
	}
	h, err = s.cfg.Store.Put(ctx, in, h, after, s.cfg.Limits.PerTask)
	if err != nil {
		return Hook{}, err
	}
	s.launch(h, owner)
	return h.public(), nil
}

// List returns the webhooks of a task, oldest first, without their secrets.
func (s *Service) List(ctx context.Context, in task.Scope, taskID string) ([]Hook, error) {
	hooks, err := s.cfg.Store.Hooks(ctx, in, taskID)
	for i := range hooks {
		hooks[i] = hooks[i].public()
	}
	return hooks, err
}

// Delete removes a webhook. None to remove is no error. After it has returned
// no delivery begins.
func (s *Service) Delete(ctx context.Context, in task.Scope, taskID, id string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if _, err := s.cfg.Log.Task(ctx, in, taskID, task.View{Inline: -1}); errors.Is(err, task.ErrNotFound) {
		return nil // and what there is goes on
	} else if err != nil {
		return err
	}
	if err := s.cfg.Store.Delete(ctx, in, taskID, id); err != nil {
		return err
	}
	s.mu.Lock()
	w := s.workers[key{taskID, id}]
	s.mu.Unlock()
	if w != nil {
		w.stop()
		<-w.done // it is doing nothing that would not end at once
	}
	return nil
}

func (s *Service) running(h Hook) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers[h.key()] != nil
}

// full reports whether an owner has as many webhooks to be told as it may.
func (s *Service) full(owner share.Owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[owner] >= s.cfg.Limits.Active
}

// launch starts a worker for a webhook, behind the one it replaces. Once the
// service is closed it does not: the webhook is stored, and up to the next one.
func (s *Service) launch(h Hook, owner share.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	old := s.workers[h.key()]
	if old != nil {
		old.stop()
	}
	ctx, stop := context.WithCancel(s.ctx)
	w := &worker{
		s: s, hook: h, p: h.Progress.resumed(s.cfg.Now()), saved: h.Progress.Delivered,
		stop: stop, done: make(chan struct{}), owner: owner,
	}
	s.workers[h.key()] = w
	s.held[owner]++
	s.wg.Go(func() {
		defer s.dismiss(w)
		if old != nil {
			<-old.done
		}
		w.work(ctx)
	})
}

func (s *Service) dismiss(w *worker) {
	w.stop()
	s.mu.Lock()
	if s.workers[w.hook.key()] == w {
		delete(s.workers, w.hook.key())
	}
	if s.held[w.owner]--; s.held[w.owner] == 0 {
		delete(s.held, w.owner)
	}
	s.mu.Unlock()
	close(w.done)
}
