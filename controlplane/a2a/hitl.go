package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// hitlExtension is the entry of hitl-prompt/v1 on a card.
func hitlExtension() extension {
	return extension{
		URI:         extensions.HITLPrompt,
		Description: "Prompts of running commands, shown on input-required tasks and answered by a message to the task.",
	}
}

// continueTask takes a message to a task that exists. A reply to the task's
// prompt is delivered first: the task it answers with has moved on.
func (c *call) continueTask(ctx context.Context, req sendRequest) (task.Record, *fault) {
	m := req.message
	raw, isReply := m.Metadata[prompt.ResponseKey]
	rec, f := c.find(ctx, m.TaskID, task.View{Inline: -1})
	switch {
	case f != nil:
		return rec, f
	case m.ContextID != "" && m.ContextID != rec.ContextID:
		return rec, errField("message.contextId", "is not that of the task")
	case !isReply && waitsForReply(rec):
		return rec, errField("message.metadata."+prompt.ResponseKey,
			"is required: the task waits for the answer to the prompt in the metadata of its status message")
	case isReply && adaptercommand.Claims(m, req.metadata):
		return rec, errField("message.metadata", "must not have both an answer to a prompt and an adapter command")
	}
	if f := c.roomForPush(ctx, rec.ID, req.push); f != nil {
		return rec, f
	}
	if !isReply {
		return c.followUp(ctx, rec, req)
	}
	reply, err := prompt.ParseReply(raw)
	if err != nil {
		return rec, errField("message.metadata."+prompt.ResponseKey, err.Error())
	}
	if body, err := json.Marshal(m); err != nil || len(body) > maxReply {
		return rec, errField("message", fmt.Sprintf("must not have more than %d bytes when it answers a prompt", maxReply))
	}
	if f := c.nameMessage(ctx, &m); f != nil {
		return rec, f
	}
	err = c.cfg.Tasks.Reply(ctx, engine.Reply{
		Scope: c.caller.scope(), InstanceID: c.agent.ID, TaskID: rec.ID, ContextID: rec.ContextID,
		PromptID: reply.PromptID, Payload: reply.Payload, Message: m,
	})
	if err != nil {
		return rec, c.explainReply(ctx, err)
	}
	return c.continued(ctx, rec, req)
}

// maxReply bounds a message that answers a prompt, in bytes: all of them stay in
// the task's history, which whoever reads the task gets.
const maxReply = prompt.MaxPayload + 32<<10

// waitsForReply reports whether a task waits with a prompt of hitl-prompt/v1.
func waitsForReply(rec task.Record) bool {
	if rec.Status.State != task.InputRequired || rec.Status.Message == nil {
		return false
	}
	_, ok := rec.Status.Message.Metadata[prompt.URI]
	return ok
}

// explainReply maps the errors of a reply to faults.
func (c *call) explainReply(ctx context.Context, err error) *fault {
	var invalid *prompt.Invalid
	switch {
	case errors.As(err, &invalid):
		return errResponseInvalid(invalid)
	case errors.Is(err, prompt.ErrNotCurrent):
		return errPromptNotCurrent()
	case errors.Is(err, prompt.ErrRestricted):
		return errUnsupported(err.Error())
	case errors.Is(err, engine.ErrUnreachable), errors.Is(err, engine.ErrUndelivered):
		return errNotDelivered("the answer was not delivered, and the prompt still waits for it: the machine does not take it now")
	case errors.Is(err, engine.ErrUnconfirmed):
		return errNotDelivered("the answer is on its way, but the machine has not confirmed it; the task tells when it has")
	}
	return c.explain(ctx, "deliver a reply", err)
}

// Codes of hitl-prompt/v1.
const (
	codeNotCurrent      = "hitl_already_answered_or_unknown"
	codeResponseInvalid = "hitl_response_invalid"
	reasonNotCurrent    = "HITL_ALREADY_ANSWERED_OR_UNKNOWN"
)

func errPromptNotCurrent() *fault {
	return &fault{
		rpc: -32010, http: http.StatusConflict, status: "ABORTED", reason: reasonNotCurrent, domain: domainOwn,
		message: codeNotCurrent + ": the prompt is unknown, has been answered or is past; the task's status says what it asks now",
		meta:    map[string]string{"code": codeNotCurrent},
	}
}

func errResponseInvalid(e *prompt.Invalid) *fault {
	f := &fault{
		rpc: -32011, http: http.StatusUnprocessableEntity, status: invalidArgument, reason: "HITL_RESPONSE_INVALID", domain: domainOwn,
		message: codeResponseInvalid + ": " + e.Error(),
		meta:    map[string]string{"code": codeResponseInvalid},
		more: []any{map[string]any{
			"@type": extensions.HITLPrompt, "code": codeResponseInvalid, "validation_errors": e.Violations,
		}},
	}
	for _, v := range e.Violations {
		f.violations = append(f.violations, runner.Violation{
			Field: "message.metadata." + prompt.ResponseKey + ".payload" + v.Path, Description: v.Message,
		})
	}
	return f
}

func errNotDelivered(message string) *fault {
	return &fault{
		rpc: rpcInternal, http: http.StatusServiceUnavailable, rpcHTTP: http.StatusServiceUnavailable, status: "UNAVAILABLE",
		reason: "HITL_NOT_DELIVERED", domain: domainOwn, message: message, retryAfter: 1,
	}
}
