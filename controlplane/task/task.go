// Package task holds the nouns of one A2A task in their 1.0 form, the rules of
// its life, its event log and the interfaces its store must have.
//
// It knows no HTTP, no database and no machine: bindings present these nouns,
// a store keeps them, an engine moves them.
package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// State is the state of a task, spelled as on the wire.
type State string

// The states of A2A 1.0.
const (
	Submitted     State = "TASK_STATE_SUBMITTED"
	Working       State = "TASK_STATE_WORKING"
	Completed     State = "TASK_STATE_COMPLETED"
	Failed        State = "TASK_STATE_FAILED"
	Canceled      State = "TASK_STATE_CANCELED"
	InputRequired State = "TASK_STATE_INPUT_REQUIRED"
	Rejected      State = "TASK_STATE_REJECTED"
	AuthRequired  State = "TASK_STATE_AUTH_REQUIRED"
)

// Role is who sent a message.
type Role string

// The roles of A2A 1.0.
const (
	User  Role = "ROLE_USER"
	Agent Role = "ROLE_AGENT"
)

// Metadata maps keys (extension URIs, dotted names) to JSON values kept as
// they came.
type Metadata map[string]json.RawMessage

// Set stores v under key and returns the map, made if it was nil.
func (m Metadata) Set(key string, v any) (Metadata, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return m, fmt.Errorf("cannot set metadata %q: %w", key, err)
	}
	if m == nil {
		m = Metadata{}
	}
	m[key] = b
	return m, nil
}

// Merge returns m with every entry of more laid over it; m is not changed.
func (m Metadata) Merge(more Metadata) Metadata {
	if len(m) == 0 && len(more) == 0 {
		return nil
	}
	out := make(Metadata, len(m)+len(more))
	maps.Copy(out, m)
	maps.Copy(out, more)
	return out
}

// Part is one piece of content: exactly one of Text, Raw, URL and Data is set.
type Part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       []byte          `json:"raw,omitempty"` // base64 on the wire
	URL       *string         `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Metadata  Metadata        `json:"metadata,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
}

// TextPart makes a part of text.
func TextPart(s string) Part { return Part{Text: &s} }

// Message is one turn of the conversation.
type Message struct {
	MessageID        string   `json:"messageId"`
	ContextID        string   `json:"contextId,omitempty"`
	TaskID           string   `json:"taskId,omitempty"`
	Role             Role     `json:"role"`
	Parts            []Part   `json:"parts"`
	Metadata         Metadata `json:"metadata,omitempty"`
	Extensions       []string `json:"extensions,omitempty"`
	ReferenceTaskIDs []string `json:"referenceTaskIds,omitempty"`
}

// Status is the state of a task since Timestamp.
type Status struct {
	State     State     `json:"state"`
	Message   *Message  `json:"message,omitempty"`
	Timestamp Timestamp `json:"timestamp"`
}

// Artifact is one output of a task.
type Artifact struct {
	ArtifactID  string   `json:"artifactId"`
	Name        string   `json:"name,omitempty"`
	Description string   `json:"description,omitempty"`
	Parts       []Part   `json:"parts"`
	Metadata    Metadata `json:"metadata,omitempty"`
	Extensions  []string `json:"extensions,omitempty"`
}

// Task is a task as the protocol shows it.
type Task struct {
	ID        string     `json:"id"`
	ContextID string     `json:"contextId"`
	Status    Status     `json:"status"`
	Artifacts []Artifact `json:"artifacts,omitempty"`
	History   []Message  `json:"history,omitempty"`
	Metadata  Metadata   `json:"metadata,omitempty"`
}

// Record is a stored task and what the protocol does not show of it.
type Record struct {
	Task
	InstanceID instance.ID
	// Tenant and Owner, the principal that made the task, say who may see it.
	Tenant string
	Owner  string
	// Version counts changes of status; a writer names the one it saw.
	Version uint64
	// LastSeq is the newest event this record includes.
	LastSeq   uint64
	CreatedAt time.Time
	// StatusSeq is the newest change of status there is, when the record ends
	// before the newest event (View.Consistent); 0 otherwise.
	StatusSeq uint64
	// Cuts names the artifacts of which not all that is stored is inlined.
	Cuts []string
}

// Timestamp is a point in time, on the wire in UTC with milliseconds.
type Timestamp struct{ time.Time }

const stampLayout = "2006-01-02T15:04:05.000Z"

// Stamp cuts t to what a Timestamp can hold.
func Stamp(t time.Time) Timestamp { return Timestamp{t.UTC().Truncate(time.Millisecond)} }

// StampMillis is the timestamp ms milliseconds after the Unix epoch.
func StampMillis(ms int64) Timestamp { return Timestamp{time.UnixMilli(ms).UTC()} }

// MarshalJSON writes RFC 3339 with milliseconds and Z.
func (t Timestamp) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(stampLayout) + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 time.
func (t *Timestamp) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("cannot parse timestamp: %w", err)
	}
	p, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("cannot parse timestamp %q: %w", s, err)
	}
	*t = Stamp(p)
	return nil
}

// MarshalJSON writes a raw part even when it is empty, which omitempty would
// drop although presence says which kind the part is.
func (p Part) MarshalJSON() ([]byte, error) {
	type plain Part // without the method
	if p.Raw == nil || len(p.Raw) > 0 {
		return json.Marshal(plain(p)) //nolint:wrapcheck // the caller names the object
	}
	return json.Marshal(struct { //nolint:wrapcheck // the caller names the object
		Raw string `json:"raw"`
		plain
	}{plain: plain(p)})
}

// Errors of stores, to be asked for with errors.Is.
var (
	ErrNotFound = errors.New("no such task")
	// ErrConflict: the task changed since the writer looked.
	ErrConflict = errors.New("task has changed")
	// ErrTerminal: the task has ended and can change no more.
	ErrTerminal = errors.New("task has ended")
)
