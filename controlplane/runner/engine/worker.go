package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

const (
	releaseTimeout = time.Minute
	startTimeout   = 30 * time.Second
	minPause       = 50 * time.Millisecond
	maxPause       = 2 * time.Second
)

// worker carries out one task. Only its goroutine changes the task.
type worker struct {
	e    *Engine
	run  task.Run
	spec agentv1.RunSpec
	rec  task.Record

	digests digests // of what is stored; with the output's sink while that may be called

	cancelOnce sync.Once
	cancel     chan struct{} // closed when cancellation was requested
	killOnce   sync.Once
	killed     chan struct{} // closed when the command must end for a reason of ours
	done       chan struct{}

	stage *stage // of a script; nil for a command

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the log grows
	dialog  *dialog       // nil while the run takes no replies
}

func newWorker(e *Engine, r task.Run) *worker {
	return &worker{
		e: e, run: r, cancel: make(chan struct{}), killed: make(chan struct{}),
		done: make(chan struct{}), changed: make(chan struct{}), digests: digests{}, stage: newStage(r),
	}
}

func (w *worker) requestCancel() { w.cancelOnce.Do(func() { close(w.cancel) }) }

func (w *worker) cancelled() bool {
	select {
	case <-w.cancel:
		return true
	default:
		return false
	}
}

func (w *worker) watch() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *worker) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// work brings the task from where it is to its end, or returns early when ctx
// ends, which leaves the task to the next engine.
func (w *worker) work(ctx context.Context) {
	var err error
	err = w.retry(ctx, "read the task", func() error {
		w.rec, err = w.e.cfg.Reader.Task(ctx, task.System(), w.run.TaskID, task.View{Inline: -1})
		return err
	})
	if err != nil {
		return
	}
	if w.stage != nil {
		w.perform(ctx)
		return
	}
	end := w.carryOut(ctx)
	if ctx.Err() != nil || end.state == "" {
		return
	}
	if w.finish(ctx, end) {
		w.release(ctx)
	}
}

// carryOut returns how the task's command ended; nothing useful if ctx did.
func (w *worker) carryOut(ctx context.Context) ending {
	if err := proto.Unmarshal(w.run.Spec, &w.spec); err != nil {
		return infrastructure(task.ReasonDispatch, fmt.Errorf("cannot decode stored command: %w", err))
	}
	if !w.run.Dispatched {
		if end := w.dispatch(ctx); end != nil {
			return *end
		}
	}
	return w.follow(ctx)
}

// dispatch starts the command. Nil means that the guest may have started it.
func (w *worker) dispatch(ctx context.Context) *ending {
	g, err := w.guestUnlessCancelled(ctx)
	switch {
	case ctx.Err() != nil:
		return &ending{}
	case w.cancelled():
		return &ending{state: task.Canceled, outcome: task.Outcome{Reason: task.ReasonCanceled}, text: "canceled before it was started"}
	case err != nil:
		end := infrastructure(task.ReasonDispatch, fmt.Errorf("cannot reach the machine: %w", err))
		if errors.Is(err, vm.ErrGone) {
			end.outcome.Reason = task.ReasonMachineGone
		}
		return &end
	}
	boot := bootOf(g)
	if w.move(ctx, task.Transition{Status: task.Status{State: task.Working}, Dispatched: true, Boot: boot}) != nil {
		return &ending{} // only the end of ctx, or of the task, stops it
	}
	w.run.Dispatched, w.run.Boot = true, boot
	return w.startRun(ctx, g)
}

// startRun asks the guest to start the command. Nil means that it may have.
func (w *worker) startRun(ctx context.Context, g Guest) *ending {
	// The end of this engine does not cut the call off: whether the command
	// was started should be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if _, err := g.StartRun(ctx, w.run.RunID, &w.spec); err != nil && notStarted(err) {
		end := infrastructure(task.ReasonDispatch, err)
		return &end
	}
	// Any other error leaves open whether the command runs: the guest knows.
	return nil
}

// bootOf names the boot of the guest, if it can tell.
func bootOf(g Guest) []byte {
	if l, ok := g.(interface{ Hello() *agentv1.HelloResponse }); ok {
		return l.Hello().GetBootNonce()
	}
	return nil
}

// neverStarted reports whether a lost command was never started: the guest
// that does not know it is still the one it was dispatched to. That happens
// when this process died between noting the dispatch and asking for it.
func (w *worker) neverStarted(g Guest) bool {
	return g != nil && len(w.run.Boot) > 0 && w.run.Progress.AfterSeq == 0 && bytes.Equal(bootOf(g), w.run.Boot)
}

// guestUnlessCancelled waits for the machine to answer or the task to be
// cancelled.
func (w *worker) guestUnlessCancelled(ctx context.Context) (Guest, error) {
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-w.cancel:
			stop()
		case <-ctx.Done():
		}
	}()
	defer func() { stop(); <-watched }()
	return w.e.cfg.Guests.Guest(ctx, w.run.InstanceID)
}

// notStarted reports whether an error of StartRun proves that nothing runs.
func notStarted(err error) bool {
	var f *instance.Fault
	if !errors.As(err, &f) {
		return false
	}
	switch f.Code {
	case agentlink.CodeRunNotStarted, agentlink.CodeInvalid, agentlink.CodeRunExists, agentlink.CodeBusy:
		return true
	}
	return false
}

var errOverdue = errors.New("the command's end could not be learned in time")

// follow stores the output of the command until its end is known.
func (w *worker) follow(ctx context.Context) ending {
	fctx, stop := context.WithCancelCause(ctx)
	d, end := w.converse(ctx, fctx)
	defer end()
	overdue := time.AfterFunc(max(w.left(d), 0)+w.e.cfg.Slack, func() { stop(errOverdue) })
	defer overdue.Stop()
	out := &output{w: w, p: w.run.Progress, d: d}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		w.killWhenAsked(fctx, overdue)
	}()
	defer func() { stop(nil); <-killed }()
	if out.p.Overflow {
		w.kill()
	}
	pause := newPause()
	started := false // here
	for {
		g, exited, err := w.attach(fctx, out)
		w.run.Progress = out.p
		switch {
		case err == nil:
			return exitEnding(exited, out.p.Overflow, w.e.cfg.OutputLimit, w.cancelled())
		case ctx.Err() != nil:
			return ending{}
		case errors.Is(err, agentlink.ErrRunLost) && !started && w.neverStarted(g):
			started = true
			if end := w.startRun(fctx, g); end != nil {
				return *end
			}
			continue
		case errors.Is(err, agentlink.ErrRunLost):
			return infrastructure(task.ReasonRunLost, err)
		case errors.Is(err, vm.ErrGone):
			return infrastructure(task.ReasonMachineGone, err)
		case fctx.Err() != nil:
			return infrastructure(task.ReasonUnreachable, fmt.Errorf("%w: %w", errOverdue, err))
		case hasCode(err, agentlink.CodeProtocol, agentlink.CodeOutputGone):
			return infrastructure(task.ReasonProtocol, err)
		}
		w.e.cfg.Log.WarnContext(ctx, "cannot follow a command, trying again", "task", w.run.TaskID, "error", err)
		pause.wait(fctx)
		// What was stored is asked of the store: a write that failed here may
		// have reached it.
		if r, err := w.e.cfg.Runs.Run(fctx, w.run.TaskID); err == nil {
			out.p = r.Progress
		}
	}
}

// left is how long the command may still take by its own deadline. A clock that
// was set back lengthens nothing.
func (w *worker) left(d *dialog) time.Duration {
	timeout := w.spec.GetTimeout().AsDuration()
	deadline := w.rec.Status.Timestamp.Add(timeout)
	if d != nil {
		deadline = d.deadline
	}
	return min(deadline.Sub(w.e.cfg.Now()), timeout) + w.grace()
}

func (w *worker) attach(ctx context.Context, out *output) (Guest, *agentv1.Exited, error) {
	g, err := w.e.cfg.Guests.Guest(ctx, w.run.InstanceID)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot reach the machine: %w", err)
	}
	o := agentlink.FollowOptions{AfterSeq: out.p.AfterSeq, Sink: out.take}
	if w.run.Stdin != nil {
		// From the start: what the guest has taken already is dropped.
		o.Stdin = bytes.NewReader(w.run.Stdin)
	}
	if out.d != nil {
		o.Stdin, o.Taken = out.d.attach(g), out.d.took
		defer out.d.detach()
	}
	exited, err := g.FollowRun(ctx, w.run.RunID, o)
	return g, exited, err
}

func (w *worker) grace() time.Duration {
	if w.spec.GetKillGrace() != nil {
		return w.spec.GetKillGrace().AsDuration()
	}
	return agentv1.DefaultKillGrace
}

// kill makes killWhenAsked act without a request of the caller's.
func (w *worker) kill() { w.killOnce.Do(func() { close(w.killed) }) }

// killWhenAsked asks the guest to end the command once somebody wants it to,
// until the guest has agreed. That it has ended, only the guest can say.
func (w *worker) killWhenAsked(ctx context.Context, overdue *time.Timer) {
	select {
	case <-ctx.Done():
		return
	case <-w.cancel:
	case <-w.killed:
	}
	overdue.Reset(w.grace() + w.e.cfg.Slack)
	pause := newPause()
	for ctx.Err() == nil {
		g, err := w.e.cfg.Guests.Guest(ctx, w.run.InstanceID)
		if err == nil {
			err = g.CancelRun(ctx, w.run.RunID, 0)
		}
		if err == nil || errors.Is(err, agentlink.ErrRunLost) || errors.Is(err, vm.ErrGone) {
			return
		}
		w.e.cfg.Log.WarnContext(ctx, "cannot cancel a command, trying again", "task", w.run.TaskID, "error", err)
		pause.wait(ctx)
	}
}

// release lets the guest forget the run.
func (w *worker) release(ctx context.Context) {
	rctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if w.run.Dispatched {
		g, err := w.e.cfg.Guests.Guest(rctx, w.run.InstanceID)
		if err == nil {
			err = g.ReleaseRun(rctx, w.run.RunID)
		}
		if err != nil && !errors.Is(err, vm.ErrGone) {
			// The next engine tries again.
			w.e.cfg.Log.DebugContext(ctx, "cannot release a command", "task", w.run.TaskID, "error", err)
			return
		}
	}
	if err := w.e.cfg.Journal.Released(ctx, w.run.TaskID); err != nil && ctx.Err() == nil {
		w.e.cfg.Log.WarnContext(ctx, "cannot note the release of a command", "task", w.run.TaskID, "error", err)
	}
}

// retry repeats what must not fail for good, such as storing how a task ended,
// until it succeeds, the task turns out to have ended, or ctx ends.
func (w *worker) retry(ctx context.Context, what string, f func() error) error {
	pause := newPause()
	for {
		err := f()
		if err == nil || ctx.Err() != nil || errors.Is(err, task.ErrTerminal) || errors.Is(err, task.ErrNotFound) {
			return err
		}
		w.e.cfg.Log.ErrorContext(ctx, "cannot "+what+", trying again", "task", w.run.TaskID, "error", err)
		pause.wait(ctx)
	}
}

// pause grows from one wait to the next.
type pause struct{ next time.Duration }

func newPause() *pause { return &pause{next: minPause} }

func (p *pause) wait(ctx context.Context) {
	t := time.NewTimer(p.next)
	defer t.Stop()
	p.next = min(2*p.next, maxPause)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func hasCode(err error, codes ...string) bool {
	var f *instance.Fault
	if !errors.As(err, &f) {
		return false
	}
	return slices.Contains(codes, f.Code)
}
