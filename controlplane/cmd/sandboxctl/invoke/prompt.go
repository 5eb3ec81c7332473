package invoke

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

// ExtensionHITLPrompt lets a command ask while it runs.
const ExtensionHITLPrompt = "https://agentic-sandbox.aiwg.io/extensions/hitl-prompt/v1"

// Prompt is what a task asks.
type Prompt struct {
	ID       string `json:"prompt_id"`
	Text     string `json:"prompt"`
	Deadline string `json:"deadline,omitempty"`
}

// Prompt returns what the task waits to be answered, if it does.
func (t *Task) Prompt() (Prompt, bool) {
	var p Prompt
	if t == nil || t.Status.State != InputRequired || t.Status.Message == nil {
		return p, false
	}
	raw, ok := t.Status.Message.Metadata[ExtensionHITLPrompt]
	if !ok || json.Unmarshal(raw, &p) != nil {
		return p, false
	}
	return p, p.ID != ""
}

// NewReply makes the message that answers a prompt of a task with a line.
func NewReply(t *Task, promptID, text string) (Message, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Message{}, fmt.Errorf("cannot make message: %w", err)
	}
	raw, err := json.Marshal(map[string]any{"prompt_id": promptID, "payload": map[string]string{"text": text}})
	if err != nil {
		return Message{}, fmt.Errorf("cannot make message: %w", err)
	}
	return Message{
		MessageID: id.String(), TaskID: t.ID, ContextID: t.ContextID, Role: "ROLE_USER", Parts: []Part{{Text: &text}},
		Metadata: map[string]json.RawMessage{"hitl_response_for": raw},
	}, nil
}

// Deliver sends a message and returns the task as it is then, without waiting
// for what comes of it.
func (c *Client) Deliver(ctx context.Context, m Message) (*Task, json.RawMessage, error) {
	var answer struct {
		Task *Task `json:"task"`
	}
	body := map[string]any{"message": m, "configuration": map[string]any{"returnImmediately": true}}
	raw, err := c.document(ctx, http.MethodPost, "/message:send", body, &answer)
	if err != nil {
		return nil, nil, err
	}
	if answer.Task == nil {
		return nil, nil, fmt.Errorf("cannot read answer: %w", errNoTask)
	}
	return answer.Task, raw, nil
}

// Reply sends a message to the task that is being followed and follows it on.
// What Output has got already does not come again.
func (f *Follower) Reply(ctx context.Context, m Message) (Result, error) {
	f.final = false
	return f.Send(ctx, m)
}
