package engine

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// patience is how long a script waits for a message before its task fails, so
// that nothing waits for ever for somebody who has gone.
const patience = 24 * time.Hour

// ErrNotWaiting is returned for a message to a task that does not wait for one.
var ErrNotWaiting = errors.New("the task does not wait for a message")

// stage is where messages reach the worker that performs a script.
type stage struct {
	turns chan *turn // holds the one that was taken

	mu    sync.Mutex
	waits bool // for a message
}

// turn is a message to a task that waits for one, and the script it brings.
type turn struct {
	message task.Message
	script  []byte
	done    chan struct{} // closed when rec and err are final
	rec     task.Record   // as the turn left it
	err     error
}

func (y *turn) end(err error) {
	y.err = err
	close(y.done)
}

func newStage(r task.Run) *stage {
	if r.Script == nil {
		return nil
	}
	return &stage{turns: make(chan *turn, 1), waits: r.State.Interrupted()}
}

// offer hands a turn over if the script waits for one: the first gets it.
func (s *stage) offer(y *turn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waits {
		return ErrNotWaiting
	}
	s.waits = false
	s.turns <- y // there is room: nobody offers until the worker waits again
	return nil
}

func (s *stage) wait(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = yes
}

// close refuses the turn that nobody will take any more.
func (s *stage) close(why error) {
	s.wait(false)
	select {
	case y := <-s.turns:
		y.end(why)
	default:
	}
}

// proceed takes a message to a task whose script waits for one. The runner that
// made the task says what the message means.
func (e *Engine) proceed(ctx context.Context, s Submission) (Result, error) {
	w := e.worker(s.Continues)
	if w == nil || w.stage == nil || w.run.InstanceID != s.Machine.ID {
		return Result{}, ErrNotWaiting
	}
	rec, err := e.cfg.Reader.Task(ctx, s.Scope, s.Continues, task.View{Inline: -1})
	if err != nil {
		return Result{}, err
	}
	i := slices.IndexFunc(e.cfg.Runners, func(r runner.Runner) bool { return r.Name() == w.run.Runner })
	if i < 0 {
		return Result{}, &runner.Refusal{Kind: runner.Unsupported, Message: "the task's runner is not offered any more"}
	}
	s.Message.TaskID, s.Message.ContextID = rec.ID, rec.ContextID
	cmd, err := e.prepareBy(e.cfg.Runners[i], runner.Request{
		TaskID: rec.ID, ContextID: rec.ContextID, Message: s.Message, Metadata: s.Metadata,
		Machine: s.Machine, Extensions: s.Extensions,
	})
	if err != nil {
		return Result{}, err
	}
	if cmd.Script == nil || len(cmd.Script.Steps) == 0 {
		return Result{}, &runner.Refusal{Kind: runner.Unsupported, Message: "the task waits for a message that continues it"}
	}
	y := &turn{message: s.Message, done: make(chan struct{})}
	if y.script, err = json.Marshal(cmd.Script); err != nil {
		return Result{}, fmt.Errorf("cannot encode script: %w", err)
	}
	if err := w.stage.offer(y); err != nil {
		return Result{}, err
	}
	select {
	case <-y.done:
		return Result{Task: y.rec}, y.err
	case <-ctx.Done(): // it was handed over, and is taken whoever waits
		return Result{}, fmt.Errorf("cannot wait for task %q to go on: %w", rec.ID, ctx.Err())
	}
}

// direct is the message that answers another one without a task.
func direct(s Submission, contextID string, parts []task.Part) (*task.Message, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("cannot make message id: %w", err)
	}
	if s.ContextID != "" {
		contextID = s.ContextID
	}
	return &task.Message{MessageID: id.String(), ContextID: contextID, Role: task.Agent, Parts: parts}, nil
}

// perform carries a script out, or returns early when ctx ends, which leaves
// the rest to the next engine.
func (w *worker) perform(ctx context.Context) {
	defer func() {
		why := ErrNotWaiting
		if ctx.Err() != nil {
			why = ErrClosed
		}
		w.stage.close(why)
	}()
	for ctx.Err() == nil && !w.rec.Status.State.Terminal() {
		if err := w.act(ctx); err != nil && ctx.Err() == nil {
			if errors.Is(err, task.ErrTerminal) || errors.Is(err, task.ErrNotFound) {
				return // somebody has removed it
			}
			w.e.cfg.Log.ErrorContext(ctx, "cannot perform a script", "task", w.run.TaskID, "step", w.run.Progress.AfterSeq, "error", err)
			_ = w.conclude(ctx, task.Failed, "the script could not be performed") // it tries until it can or ctx ends
		}
	}
	if ctx.Err() == nil {
		w.e.cfg.Log.InfoContext(ctx, "task has ended", "task", w.rec.ID, "instance", w.run.InstanceID, "state", w.rec.Status.State)
		w.release(ctx)
	}
}

// act does what is next.
func (w *worker) act(ctx context.Context) error {
	var s runner.Script
	if err := json.Unmarshal(w.run.Script, &s); err != nil {
		return fmt.Errorf("cannot decode stored script: %w", err)
	}
	n := w.run.Progress.AfterSeq
	switch {
	case w.cancelled():
		return w.conclude(ctx, task.Canceled, "canceled on request")
	case n >= uint64(len(s.Steps)):
		return w.listen(ctx)
	}
	step := s.Steps[n]
	switch {
	case step.Wait > 0 && !w.pass(ctx, step.Wait):
		return nil
	case step.Part != nil:
		return w.add(ctx, step, n+1)
	}
	message, err := w.says(step.Text)
	if err != nil {
		return err
	}
	// Before anybody can see that it waits: who sees it may answer at once.
	w.stage.wait(step.State.Interrupted())
	return w.advance(ctx, task.Transition{Status: task.Status{State: step.State, Message: message}, Step: n + 1})
}

// pass waits until d after the newest change of status, and reports whether it
// did: a request to cancel and the end of ctx cut it short. What has passed
// before a restart counts; a clock that was changed lengthens nothing.
func (w *worker) pass(ctx context.Context, d time.Duration) bool {
	left := w.rec.Status.Timestamp.Add(d).Sub(w.e.cfg.Now())
	t := time.NewTimer(max(0, min(left, d)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.cancel:
	case <-ctx.Done():
	}
	return false
}

// listen waits for a message that goes on with the task.
func (w *worker) listen(ctx context.Context) error {
	if !w.rec.Status.State.Interrupted() {
		return errors.New("the script has no end")
	}
	left := w.rec.Status.Timestamp.Add(patience).Sub(w.e.cfg.Now())
	limit := time.NewTimer(max(0, min(left, patience)))
	defer limit.Stop()
	defer w.stage.wait(false)
	select {
	case y := <-w.stage.turns:
		err := w.take(ctx, y)
		y.rec = w.rec
		y.end(err)
		return err
	case <-limit.C:
		return w.conclude(ctx, task.Failed, fmt.Sprintf("nobody answered within %s", patience))
	case <-w.cancel:
	case <-ctx.Done():
	}
	return nil
}

// take goes on with the script of a message.
func (w *worker) take(ctx context.Context, y *turn) error {
	turns := []task.Message{y.message}
	if asked := w.rec.Status.Message; asked != nil {
		turns = []task.Message{*asked, y.message}
	}
	return w.advance(ctx, task.Transition{Status: task.Status{State: task.Working}, Script: y.script, Turns: turns})
}

// conclude ends the task, and what is unfinished of its artifacts.
func (w *worker) conclude(ctx context.Context, state task.State, text string) error {
	message, err := w.says(text)
	if err != nil {
		return err
	}
	t := task.Transition{Status: task.Status{State: state, Message: message}}
	err = w.retry(ctx, "read artifacts", func() (err error) {
		t.Ends, err = w.endsOf(ctx, w.unfinished()...)
		return err
	})
	if err != nil {
		return err
	}
	return w.advance(ctx, t)
}

// unfinished names the artifacts whose last part has not been performed.
func (w *worker) unfinished() []string {
	var s runner.Script
	if json.Unmarshal(w.run.Script, &s) != nil {
		return nil
	}
	var open []string
	for _, step := range s.Steps[:min(w.run.Progress.AfterSeq, uint64(len(s.Steps)))] {
		if step.Part != nil && !step.Last {
			open = append(open, step.Artifact)
		}
	}
	return open
}

// advance changes the task's status, and what of its script is performed with
// it, exactly once however often it takes.
func (w *worker) advance(ctx context.Context, t task.Transition) error {
	before := w.rec.Version
	err := w.retry(ctx, "change the task", func() error {
		err := w.tryMove(ctx, t)
		if !errors.Is(err, task.ErrConflict) && !errors.Is(err, task.ErrTerminal) {
			return err
		}
		now, rerr := w.e.cfg.Reader.Task(ctx, task.System(), w.run.TaskID, task.View{Inline: -1})
		if rerr != nil || now.Version == before {
			return err
		}
		w.rec = now // a write that seemed to fail did not: nobody else moves the task
		w.notify()
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case t.Script != nil:
		w.run.Script, w.run.Progress.AfterSeq = t.Script, t.Step
	case t.Step != 0:
		w.run.Progress.AfterSeq = t.Step
	}
	return nil
}

// add stores the part of a step, the n-th.
func (w *worker) add(ctx context.Context, step runner.Step, n uint64) error {
	var conflict error
	err := w.retry(ctx, "store a part", func() error {
		run, err := w.e.cfg.Runs.Run(ctx, w.run.TaskID)
		if err != nil || run.Progress.AfterSeq >= n { // a write that seemed to fail did not
			return err
		}
		c, err := w.chunk(ctx, step)
		if err != nil {
			return err
		}
		p := w.run.Progress
		p.AfterSeq = n
		err = w.e.cfg.Journal.Output(context.WithoutCancel(ctx), w.run.TaskID, []task.Chunk{c}, p)
		if errors.Is(err, task.ErrConflict) { // and will be for ever
			conflict, err = err, nil
		}
		return err
	})
	if err = errors.Join(err, conflict); err != nil {
		return err
	}
	w.run.Progress.AfterSeq = n
	w.notify()
	return nil
}

// chunk is the part of a step at its place in the artifact.
func (w *worker) chunk(ctx context.Context, step runner.Step) (c task.Chunk, err error) {
	c = task.Chunk{ArtifactID: step.Artifact, Name: step.Artifact, Last: step.Last}
	c.Data, c.Form = task.Content(*step.Part)
	if c.Form == nil {
		return c, errors.New("the script has a part without content")
	}
	g, err := w.readBack(ctx, step.Artifact)
	if err != nil {
		return c, err
	}
	c.Offset = g.size
	if step.Last {
		g.sum.Write(c.Data)
		c.Size, c.SHA256 = c.Offset+uint64(len(c.Data)), hex.EncodeToString(g.sum.Sum(nil))
	}
	return c, nil
}

// says makes a message of the agent's; none of an empty text.
func (w *worker) says(text string) (*task.Message, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // none is an answer
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("cannot make message id: %w", err)
	}
	return &task.Message{
		MessageID: id.String(), ContextID: w.rec.ContextID, TaskID: w.rec.ID, Role: task.Agent,
		Parts: []task.Part{task.TextPart(text)},
	}, nil
}
