// Package engine carries tasks out: it stores a task before anything happens,
// runs its command in a guest, appends what the command writes to the task's
// log, and brings every task to one true end, across restarts of this process.
//
// It knows runners by what they prepare, guests by four calls and the store by
// its interfaces; it knows no protocol towards the outside and no driver.
//
//	Submit ── submitted ── (guest answers) ── working ── StartRun ── FollowRun ── end
//	Resume ──────────────── same place ────────────────── attach ─────┘
//
// A run with a script needs no guest: the worker performs it (script.go).
//
// A command is started at most once: that it may have been is stored before
// the guest is asked, and from then on it is attached to. It is started later
// only if the guest of the same boot says that it never was.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Guest is what the engine asks of a machine.
type Guest interface {
	StartRun(ctx context.Context, runID string, spec *agentv1.RunSpec) (*agentv1.RunState, error)
	FollowRun(ctx context.Context, runID string, o agentlink.FollowOptions) (*agentv1.Exited, error)
	CancelRun(ctx context.Context, runID string, grace time.Duration) error
	ReleaseRun(ctx context.Context, runID string) error
}

var _ Guest = (*agentlink.Link)(nil)

// Guests finds the guest of an instance.
type Guests interface {
	// Guest waits, within bounds of its own, until the machine answers. The
	// error wraps vm.ErrGone when it never will again.
	Guest(ctx context.Context, id instance.ID) (Guest, error)
}

// Errors of Submit.
var (
	// ErrBusy: the machine has as many unfinished tasks as it may have.
	ErrBusy = errors.New("too many unfinished tasks")
	// ErrClosed: the engine takes no more work.
	ErrClosed = errors.New("engine is closed")
)

// Config says what an engine works with. The first five are required.
type Config struct {
	Journal task.Journal
	Runs    task.Runs
	Reader  task.Reader
	Guests  Guests
	// Runners are asked in order; the first that claims a request gets it.
	Runners []runner.Runner

	// Prompts keeps what commands ask. Nil: commands that read replies are
	// refused.
	Prompts prompt.Store

	Log *slog.Logger
	Now func() time.Time
	// MaxUnfinished bounds the unfinished tasks of one machine. Default 32.
	MaxUnfinished int
	// OutputLimit bounds the output stored for one task, in bytes. Default
	// 256 MiB. A command that writes more is cancelled and its task fails.
	OutputLimit uint64
	// Slack is how long after its own deadline, or after a cancellation, a
	// command may take to be known to have ended. Default 2 minutes.
	Slack time.Duration
	// PromptQuiet is how long a command may write nothing before its last line
	// can be a question. Default 300 ms.
	PromptQuiet time.Duration
	// DeliverWait is how long Reply waits for the guest to take an answer.
	// Default 10 s.
	DeliverWait time.Duration
}

// Engine carries out tasks. Safe for concurrent use.
type Engine struct {
	cfg  Config
	ctx  context.Context //nolint:containedctx // the life of its goroutines, not of a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	workers    map[string]*worker // by task id; all unfinished tasks
	unfinished map[instance.ID]int
}

// New makes an engine whose work ends with ctx or Close. Call Resume before
// the first Submit.
func New(ctx context.Context, cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxUnfinished <= 0 {
		cfg.MaxUnfinished = 32
	}
	if cfg.OutputLimit == 0 {
		cfg.OutputLimit = 256 << 20
	}
	if cfg.Slack <= 0 {
		cfg.Slack = 2 * time.Minute
	}
	if cfg.PromptQuiet <= 0 {
		cfg.PromptQuiet = 300 * time.Millisecond
	}
	if cfg.DeliverWait <= 0 {
		cfg.DeliverWait = 10 * time.Second
	}
	ctx, stop := context.WithCancel(ctx)
	return &Engine{cfg: cfg, ctx: ctx, stop: stop, workers: map[string]*worker{}, unfinished: map[instance.ID]int{}}
}

// Submission asks for a task.
type Submission struct {
	// Scope is that of who asks, who will own the task. One that continues must
	// be within it.
	Scope task.Scope
	// Continues is the id of a task that waits for a message, which this is;
	// empty: a task is made.
	Continues string
	// TaskID is the id that the task is to have, of nobody's yet; empty: any.
	TaskID string
	// ContextID continues a conversation; empty begins one.
	ContextID  string
	Message    task.Message
	Metadata   task.Metadata // of the request, beside the message
	Machine    runner.Machine
	Extensions []string // activated
}

// Result is what becomes of a submission.
type Result struct {
	Task task.Record
	// Message is the whole answer, if it is not nil: there is no task.
	Message *task.Message
}

// Submit stores a task and starts to carry it out. A *runner.Refusal says why
// not; then no task was made. A message that continues a task is in its history
// when Submit returns, and the task has gone on; of several at once one does
// that, the others get ErrNotWaiting.
func (e *Engine) Submit(ctx context.Context, s Submission) (Result, error) {
	if s.Continues != "" {
		return e.proceed(ctx, s)
	}
	ids, err := newIDs(3)
	if err != nil {
		return Result{}, err
	}
	if s.TaskID != "" {
		ids[0] = s.TaskID
	}
	n := task.New{
		ID: ids[0], ContextID: s.ContextID, InstanceID: s.Machine.ID, Tenant: s.Scope.TenantOrDefault(), Owner: s.Scope.Owner,
		Message: s.Message, At: e.cfg.Now(),
	}
	if n.ContextID == "" {
		n.ContextID = ids[1]
	}
	n.Message.TaskID, n.Message.ContextID = n.ID, n.ContextID
	name, cmd, err := e.prepare(runner.Request{
		TaskID: n.ID, ContextID: n.ContextID, Message: n.Message, Metadata: s.Metadata,
		Machine: s.Machine, Extensions: s.Extensions,
	})
	if err != nil {
		return Result{}, err
	}
	if cmd.Script != nil && len(cmd.Script.Reply) > 0 {
		m, err := direct(s, ids[1], cmd.Script.Reply)
		return Result{Message: m}, err
	}
	n.Run = task.Run{
		TaskID: n.ID, InstanceID: n.InstanceID, RunID: ids[2], Runner: name,
		Stdin: cmd.Stdin, Artifacts: cmd.Artifacts, State: task.Submitted,
	}
	if err := encode(cmd, &n.Run); err != nil {
		return Result{}, err
	}
	w := newWorker(e, n.Run)
	if err := e.admit(w, false); err != nil {
		return Result{}, err
	}
	rec, err := e.cfg.Journal.Create(ctx, n)
	if err != nil {
		e.dismiss(w)
		return Result{}, err
	}
	e.launch(w)
	return Result{Task: rec}, nil
}

// encode gives a run what it is to do.
func encode(cmd *runner.Command, r *task.Run) (err error) {
	if cmd.Script != nil {
		r.Script, err = json.Marshal(cmd.Script)
	} else {
		r.Spec, err = proto.Marshal(cmd.Spec)
	}
	if err != nil {
		return fmt.Errorf("cannot encode what runner %q prepared: %w", r.Runner, err)
	}
	return nil
}

func (e *Engine) prepare(req runner.Request) (string, *runner.Command, error) {
	for _, r := range e.cfg.Runners {
		if !r.Claims(req) {
			continue
		}
		cmd, err := e.prepareBy(r, req)
		return r.Name(), cmd, err
	}
	return "", nil, &runner.Refusal{Kind: runner.Unsupported, Message: "no runner takes this message"}
}

// prepareBy has a runner prepare a request.
func (e *Engine) prepareBy(r runner.Runner, req runner.Request) (*runner.Command, error) {
	if !slices.Contains(req.Machine.Runners, r.Name()) {
		return nil, &runner.Refusal{
			Kind:    runner.Unsupported,
			Message: fmt.Sprintf("the loadout of this machine does not allow the runner %q", r.Name()),
		}
	}
	cmd, err := r.Prepare(req)
	switch {
	case err != nil:
		return nil, err
	case cmd.Script != nil:
		if err := cmd.Script.Check(); err != nil {
			return nil, fmt.Errorf("cannot use the script of runner %q: %w", r.Name(), err)
		}
	case cmd.Spec.GetStdin() && cmd.Stdin == nil && e.cfg.Prompts == nil:
		return nil, &runner.Refusal{Kind: runner.Unsupported, Message: "commands that ask for input are not carried out here"}
	}
	return cmd, nil
}

func newIDs(n int) ([]string, error) {
	ids := make([]string, n)
	for i := range ids {
		u, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("cannot make id: %w", err)
		}
		ids[i] = u.String()
	}
	return ids, nil
}

// Resume takes up every unfinished task where it was left, and lets guests
// forget the runs of finished ones. It returns once that is under way.
func (e *Engine) Resume(ctx context.Context) error {
	runs, err := e.cfg.Runs.OpenRuns(ctx)
	if err != nil {
		return fmt.Errorf("cannot resume tasks: %w", err)
	}
	for _, r := range runs {
		w := newWorker(e, r)
		if r.State.Terminal() {
			e.wg.Go(func() { w.release(e.ctx) })
			continue
		}
		if r.CancelRequested {
			w.requestCancel()
		}
		if err := e.admit(w, true); err != nil {
			return fmt.Errorf("cannot resume task %q: %w", r.TaskID, err)
		}
		e.launch(w)
	}
	return nil
}

// admit makes room for a worker; regardless of the bound if it is there already.
func (e *Engine) admit(w *worker, regardless bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := w.run.InstanceID
	switch {
	case e.closed:
		return ErrClosed
	case !regardless && e.unfinished[id] >= e.cfg.MaxUnfinished:
		return fmt.Errorf("cannot take a task for instance %q: it has %d: %w", id, e.unfinished[id], ErrBusy)
	}
	e.unfinished[id]++
	e.workers[w.run.TaskID] = w
	e.wg.Add(1) // under the lock, so that Close waits for it
	return nil
}

func (e *Engine) launch(w *worker) {
	go func() {
		defer e.dismiss(w)
		w.work(e.ctx)
	}()
}

func (e *Engine) dismiss(w *worker) {
	e.mu.Lock()
	delete(e.workers, w.run.TaskID)
	if e.unfinished[w.run.InstanceID]--; e.unfinished[w.run.InstanceID] == 0 {
		delete(e.unfinished, w.run.InstanceID)
	}
	e.mu.Unlock()
	w.notify()
	close(w.done)
	e.wg.Done()
}

func (e *Engine) worker(taskID string) *worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.workers[taskID]
}

// Changed returns a channel that is closed when the task's log grows after
// the call: ask first, then read, then wait. For a task that is not being
// carried out it is nil.
func (e *Engine) Changed(taskID string) <-chan struct{} {
	if w := e.worker(taskID); w != nil {
		return w.watch()
	}
	return nil
}

// Done is closed when the engine stops; readers of logs should end.
func (e *Engine) Done() <-chan struct{} { return e.ctx.Done() }

// Cancel asks for the end of the command of a task in scope and waits, as long as ctx lets
// it, until the guest has confirmed it. The record says how the task ended, or
// that it has not yet. Cancelling a canceled task again changes nothing;
// task.ErrTerminal is returned for one that ended otherwise before.
func (e *Engine) Cancel(ctx context.Context, s task.Scope, taskID string) (task.Record, error) {
	view := task.View{History: -1, Inline: -1}
	err := e.cfg.Journal.RequestCancel(ctx, s, taskID)
	if errors.Is(err, task.ErrTerminal) {
		rec, rerr := e.cfg.Reader.Task(ctx, s, taskID, view)
		if rerr != nil || rec.Status.State == task.Canceled {
			return rec, rerr
		}
	}
	if err != nil {
		return task.Record{}, err
	}
	if w := e.worker(taskID); w != nil {
		w.requestCancel()
		select {
		case <-w.done:
		case <-ctx.Done():
		}
	}
	return e.cfg.Reader.Task(context.WithoutCancel(ctx), s, taskID, view)
}

// Close stops following commands and waits for the engine's goroutines. The
// commands go on; Resume of a later engine takes them up.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
	e.wg.Wait()
}
