package a2a

import (
	"context"
	"encoding/json"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// A reply to a prompt makes no task, so its reservation says nothing of whether
// it was delivered before its process died. The task does: its history has what
// was answered, and its status what still waits.

// madeBy returns the task that was made of a message, or moved on by it; empty
// if neither has happened.
func (c *call) madeBy(ctx context.Context, fl *flight, known idempotency.Reservation, raw json.RawMessage) (string, *fault) {
	id, f := c.taskOf(ctx, known)
	if f == nil && id == "" {
		id = c.delivered(ctx, fl, raw)
	}
	if f == nil && id == "" {
		id = c.followedUp(ctx, fl, raw)
	}
	return id, f
}

// delivered returns the task of a reply that an earlier process delivered and
// could not answer; empty for every other message.
func (c *call) delivered(ctx context.Context, fl *flight, raw json.RawMessage) string {
	rec, reply, m, ok := c.earlierReply(ctx, fl, raw)
	if !ok {
		return ""
	}
	for i, turn := range rec.History {
		if turn.Role != task.User || i == 0 || promptOf(&rec.History[i-1]) != reply.PromptID {
			continue
		}
		// After a death in the middle of the delivery, the turn has the prompt's id.
		if strings.EqualFold(turn.MessageID, m.MessageID) || turn.MessageID == reply.PromptID {
			return rec.ID
		}
	}
	return ""
}

// unsettled turns the refusal of a reply whose prompt still waits into one that
// passes: it may be this very reply that has the prompt, and is on its way.
func (c *call) unsettled(ctx context.Context, fl *flight, raw json.RawMessage, f *fault) *fault {
	if f == nil || f.reason != reasonNotCurrent {
		return f
	}
	rec, reply, _, ok := c.earlierReply(ctx, fl, raw)
	if !ok || rec.Status.State != task.InputRequired || promptOf(rec.Status.Message) != reply.PromptID {
		return f
	}
	return errNotDelivered("it is not known yet whether the answer has been delivered; send it again")
}

// earlierReply reads a reply that was reserved before, and the task it is for.
func (c *call) earlierReply(ctx context.Context, fl *flight, raw json.RawMessage) (
	rec task.Record, reply prompt.Reply, m task.Message, ok bool,
) {
	if fl == nil || !fl.earlier {
		return rec, reply, m, false
	}
	req, f := c.decodeSend(raw)
	if f != nil || req.message.TaskID == "" {
		return rec, reply, m, false
	}
	reply, err := prompt.ParseReply(req.message.Metadata[prompt.ResponseKey])
	if err != nil {
		return rec, reply, m, false
	}
	rec, f = c.find(ctx, req.message.TaskID, task.View{History: -1, Inline: -1})
	return rec, reply, req.message, f == nil
}

// promptOf is the id of the prompt that a message asks; empty if it asks none.
func promptOf(m *task.Message) string {
	if m == nil {
		return ""
	}
	var e struct {
		ID string `json:"prompt_id"`
	}
	if json.Unmarshal(m.Metadata[prompt.URI], &e) != nil {
		return ""
	}
	return e.ID
}
