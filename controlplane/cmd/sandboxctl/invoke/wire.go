// Package invoke speaks A2A 1.0 (HTTP+JSON) to one machine: it sends a
// message, follows the task's output as it comes, finds a task again after
// its stream broke, and bounds everything it reads. It knows no management
// API and prints nothing.
package invoke

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// The extensions a client of this system asks for.
const (
	ExtensionRuntime        = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	ExtensionAdapterCommand = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
)

// The states of a task that mean something here.
const (
	Completed     = "TASK_STATE_COMPLETED"
	Failed        = "TASK_STATE_FAILED"
	Canceled      = "TASK_STATE_CANCELED"
	Rejected      = "TASK_STATE_REJECTED"
	InputRequired = "TASK_STATE_INPUT_REQUIRED"
	AuthRequired  = "TASK_STATE_AUTH_REQUIRED"
)

// Terminal reports whether a task in this state has ended.
func Terminal(state string) bool {
	switch state {
	case Completed, Failed, Canceled, Rejected:
		return true
	}
	return false
}

// Part is one piece of content.
type Part struct {
	Text *string         `json:"text,omitempty"`
	Raw  []byte          `json:"raw,omitempty"` // base64 on the wire
	URL  string          `json:"url,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`
}

// Bytes is the part's content as it would be in a file.
func (p Part) Bytes() []byte {
	switch {
	case p.Text != nil:
		return []byte(*p.Text)
	case p.Raw != nil:
		return p.Raw
	case p.Data != nil:
		return p.Data
	}
	return []byte(p.URL)
}

// Message is one turn of a conversation.
type Message struct {
	MessageID string                     `json:"messageId"`
	ContextID string                     `json:"contextId,omitempty"`
	TaskID    string                     `json:"taskId,omitempty"`
	Role      string                     `json:"role"`
	Parts     []Part                     `json:"parts"`
	Metadata  map[string]json.RawMessage `json:"metadata,omitempty"`
}

// Text is all text of the message.
func (m *Message) Text() string {
	if m == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Text != nil {
			b.WriteString(*p.Text)
		}
	}
	return b.String()
}

// Status is where a task is.
type Status struct {
	State     string   `json:"state"`
	Message   *Message `json:"message,omitempty"`
	Timestamp string   `json:"timestamp,omitempty"`
}

// Artifact is one output of a task.
type Artifact struct {
	ArtifactID string `json:"artifactId"`
	Name       string `json:"name,omitempty"`
	Parts      []Part `json:"parts"`
}

// Task is one piece of work of a machine.
type Task struct {
	ID        string                     `json:"id"`
	ContextID string                     `json:"contextId,omitempty"`
	Status    Status                     `json:"status"`
	Artifacts []Artifact                 `json:"artifacts,omitempty"`
	Metadata  map[string]json.RawMessage `json:"metadata,omitempty"`
}

// Event is one frame of a stream: exactly one of the members beside ID is set.
type Event struct {
	// ID continues the stream after this event; empty if the server cannot.
	ID           string       `json:"-"`
	Task         *Task        `json:"task,omitempty"`
	Message      *Message     `json:"message,omitempty"`
	StatusUpdate *StatusEvent `json:"statusUpdate,omitempty"`
	Artifact     *Chunk       `json:"artifactUpdate,omitempty"`
}

// StatusEvent is a change of a task's status.
type StatusEvent struct {
	TaskID   string                     `json:"taskId"`
	Status   Status                     `json:"status"`
	Metadata map[string]json.RawMessage `json:"metadata,omitempty"`
}

// Chunk is the next piece of an artifact.
type Chunk struct {
	TaskID    string   `json:"taskId"`
	Artifact  Artifact `json:"artifact"`
	Append    bool     `json:"append"`
	LastChunk bool     `json:"lastChunk"`
	// Metadata says where the chunk stands in the artifact. Another server
	// than ours may leave it out.
	Metadata struct {
		Offset *int64 `json:"offset"`
		// TotalBytes and SHA256 come with the last chunk.
		TotalBytes *int64 `json:"total_bytes"`
		SHA256     string `json:"sha256"`
	} `json:"metadata"`
}

// Violation is one rule that a request broke.
type Violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// Error is what a machine's A2A address answered instead of a result.
type Error struct {
	HTTPStatus int
	// Reason is that of google.rpc.ErrorInfo, such as "TASK_NOT_FOUND"; empty
	// when the answer had none.
	Reason     string
	Status     string // such as "INVALID_ARGUMENT"
	Message    string
	Remedy     string
	Violations []Violation
}

// Error says what was refused and which rules were broken.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	if e.Message == "" {
		fmt.Fprintf(&b, "HTTP status %d", e.HTTPStatus)
	}
	for _, v := range e.Violations {
		if !strings.Contains(e.Message, v.Field+": "+v.Description) {
			fmt.Fprintf(&b, "\n  %s: %s", v.Field, v.Description)
		}
	}
	return b.String()
}

// Refused reports whether the request itself was at fault, so that repeating
// it is useless.
func (e *Error) Refused() bool {
	switch e.HTTPStatus {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// parseError reads google.rpc.Status in JSON, and problem details, which
// stand before the A2A surface when there is no token.
func parseError(status int, body []byte) *Error {
	e := &Error{HTTPStatus: status}
	var doc struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
			Details []struct {
				Reason          string      `json:"reason"`
				FieldViolations []Violation `json:"fieldViolations"`
			} `json:"details"`
		} `json:"error"`
		Cause       string `json:"cause"`
		Detail      string `json:"detail"`
		Title       string `json:"title"`
		Code        string `json:"code"`
		Remediation string `json:"remediation"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return e
	}
	e.Status, e.Message, e.Remedy = doc.Error.Status, doc.Error.Message, doc.Remediation
	for _, d := range doc.Error.Details {
		if d.Reason != "" {
			e.Reason = d.Reason
		}
		e.Violations = append(e.Violations, d.FieldViolations...)
	}
	for _, text := range []string{doc.Cause, doc.Detail, doc.Title} {
		if e.Message == "" {
			e.Message = text
		}
	}
	if e.Reason == "" {
		e.Reason = doc.Code
	}
	return e
}

// Outcome says how the command of a task ended.
type Outcome struct {
	FailKind string `json:"fail_kind"`
	Reason   string `json:"reason"`
	ExitCode *int   `json:"exit_code"`
	Signal   int    `json:"signal"`
}

// Outcome reads how the command ended from the task's metadata.
func (t *Task) Outcome() (Outcome, bool) {
	var o Outcome
	raw, ok := t.Metadata[ExtensionAdapterCommand]
	if !ok || json.Unmarshal(raw, &o) != nil {
		return Outcome{}, false
	}
	return o, true
}
