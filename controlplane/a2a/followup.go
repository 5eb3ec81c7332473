package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// followUp takes a message to a task that asks for no answer of a particular
// form: the task goes on with it, if it waits.
func (c *call) followUp(ctx context.Context, rec task.Record, req sendRequest) (task.Record, *fault) {
	if f := c.nameMessage(ctx, &req.message); f != nil {
		return rec, f
	}
	_, err := c.cfg.Tasks.Submit(ctx, engine.Submission{
		Scope: c.caller.scope(), Continues: rec.ID, Message: req.message, Metadata: req.metadata,
		Machine: c.agent.machine(), Extensions: c.extensions,
	})
	switch {
	case errors.Is(err, engine.ErrNotWaiting):
		return rec, c.refuseContinuation(ctx, req.message)
	case err != nil:
		return rec, c.explain(ctx, "continue a task", err)
	}
	return c.continued(ctx, rec, req)
}

// continued is a task after a message to it; before is how it was.
func (c *call) continued(ctx context.Context, before task.Record, req sendRequest) (task.Record, *fault) {
	v := task.View{History: -1, Inline: c.cfg.Limits.Inline, Consistent: true} // a stream may begin with it
	rec, err := c.cfg.Store.Task(context.WithoutCancel(ctx), c.caller.scope(), before.ID, v)
	if err != nil {
		return rec, c.explain(ctx, "read a task", err)
	}
	return rec, c.addPush(ctx, rec.ID, req.push, int64(before.LastSeq)) //nolint:gosec // a count
}

// followedUp returns the task that an earlier process continued with a message
// and died before it could answer; empty if the task did not go on with it. The
// history of a task has a message from the moment the task goes on with it.
func (c *call) followedUp(ctx context.Context, fl *flight, raw json.RawMessage) string {
	if fl == nil || !fl.earlier {
		return ""
	}
	req, f := c.decodeSend(raw)
	if f != nil || req.message.TaskID == "" {
		return ""
	}
	rec, f := c.find(ctx, req.message.TaskID, task.View{History: -1, Inline: -1})
	if f != nil {
		return ""
	}
	taken := func(turn task.Message) bool {
		return turn.Role == task.User && strings.EqualFold(turn.MessageID, req.message.MessageID)
	}
	if slices.IndexFunc(rec.History, taken) < 1 { // the first has made the task
		return ""
	}
	return rec.ID
}

// nameMessage gives a message that has no id one.
func (c *call) nameMessage(ctx context.Context, m *task.Message) *fault {
	if m.MessageID != "" {
		return nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return c.internal(ctx, "make a message id", err)
	}
	m.MessageID = id.String()
	return nil
}
