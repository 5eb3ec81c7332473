package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Errors of Reply, beside prompt.ErrNotCurrent, prompt.ErrRestricted and
// *prompt.Invalid.
var (
	// ErrUnreachable: the machine does not answer now; the prompt waits on.
	ErrUnreachable = errors.New("the machine does not answer now")
	// ErrUndelivered: the command was not given the answer; the prompt waits on.
	ErrUndelivered = errors.New("the answer could not be delivered")
	// ErrUnconfirmed: the answer is on its way, and the machine has not said
	// that it has it. The task moves on once it has.
	ErrUnconfirmed = errors.New("the machine has not confirmed the answer yet")
)

// Reply answers the prompt of a task.
type Reply struct {
	Scope      task.Scope // of who answers
	InstanceID instance.ID
	TaskID     string
	ContextID  string // empty for the task's own
	PromptID   string
	Payload    json.RawMessage
	// Message is what carried the reply, for the task's history.
	Message task.Message
}

// Reply delivers an answer to exactly the command that asks. Nil means that
// the guest has taken its bytes, and the task has moved on. Only a run that
// this process follows can be answered, and a prompt only once.
func (e *Engine) Reply(ctx context.Context, r Reply) error {
	w := e.worker(r.TaskID)
	if w == nil {
		return prompt.ErrNotCurrent
	}
	d := w.talk()
	if d == nil {
		return prompt.ErrNotCurrent
	}
	y, err := d.claim(ctx, r)
	if err != nil {
		return err
	}
	limit := time.NewTimer(e.cfg.DeliverWait)
	defer limit.Stop()
	select {
	case <-y.done:
		return y.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnconfirmed, ctx.Err())
	case <-limit.C:
		return d.retract(y)
	}
}

// claim takes the current prompt for a reply and hands the answer over.
func (d *dialog) claim(ctx context.Context, r Reply) (*delivery, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.cur
	switch {
	case d.over != nil:
		return nil, d.over
	case q == nil, q.delivery != nil, q.stale, r.PromptID != q.PromptID, r.InstanceID != q.InstanceID,
		r.ContextID != "" && r.ContextID != q.ContextID:
		return nil, prompt.ErrNotCurrent
	case !d.live, !connected(d.guest):
		return nil, ErrUnreachable
	}
	err := q.envelope.CheckTextLine(d.w.e.cfg.Now())
	switch {
	case errors.Is(err, prompt.ErrRestricted):
		return nil, err
	case err != nil: // its deadline, which the guest enforces, has passed
		return nil, prompt.ErrNotCurrent
	}
	if err := q.schema.Check(r.Payload); err != nil {
		return nil, err
	}
	text, err := prompt.Text(r.Payload)
	if err != nil {
		return nil, err
	}
	answer := []byte(text + "\n")
	// Whether it was claimed must be known, whoever stops waiting.
	if err := d.w.e.cfg.Prompts.Claim(context.WithoutCancel(ctx), r.Scope, q.Ref, answer, d.seen); err != nil {
		return nil, err
	}
	m := r.Message
	m.TaskID, m.ContextID = q.TaskID, q.ContextID
	q.Answer, q.reply, q.delivery = answer, &m, newDelivery()
	d.detector.Forget()
	d.add(answer)
	return q.delivery, nil
}

// connected reports whether a guest can be spoken to right now, if it can tell.
func connected(g Guest) bool {
	l, ok := g.(interface{ Connected() bool })
	return g != nil && (!ok || l.Connected())
}

// retract takes an answer back that nobody took in time: if it has not left,
// the prompt waits again.
func (d *dialog) retract(y *delivery) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-y.done:
		return y.err
	default: // so it is that of the current prompt
	}
	q := d.cur
	if uint64(d.given) > q.Start {
		return ErrUnconfirmed
	}
	err := d.w.e.cfg.Prompts.Restore(context.WithoutCancel(d.ctx), q.Ref)
	if err != nil && !errors.Is(err, prompt.ErrNotCurrent) {
		return ErrUnconfirmed // it stays claimed and goes out with the next attachment
	}
	d.log = d.log[:q.Start]
	q.Answer, q.reply, q.delivery = nil, nil, nil
	if err != nil {
		d.cur = nil
		return err
	}
	return ErrUndelivered
}
