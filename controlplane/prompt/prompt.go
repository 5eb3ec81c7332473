// Package prompt holds what hitl-prompt/v1 says: the envelope in which a task
// asks for input, the reply that answers it, and the detector that finds a
// question in the output of a command.
//
// It is pure: it knows no task's life, no machine, no protocol's errors and no
// clock of its own. Store is what a store of prompts must do.
package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// URI is the extension's identifier and the key of the envelope in
// TaskStatus.message.metadata.
const URI = extensions.HITLPrompt

// ResponseKey is the key of a reply in Message.metadata.
const ResponseKey = "hitl_response_for"

// Bounds of an envelope and of a reply, in bytes if not said otherwise.
const (
	MaxPrompt   = 4096 // characters
	MaxSchema   = 64 << 10
	MaxDepth    = 32 // of a schema, of a payload
	MaxPayload  = 64 << 10
	MaxText     = 4096
	maxEnvelope = 2 * MaxSchema
)

// Any lets everybody answer; the only responder a text-line prompt may have.
const Any = "any"

// ErrRestricted refuses a prompt that only some may answer: who answers a
// text-line prompt is not authenticated as one of them.
var ErrRestricted = errors.New("prompts for restricted responders cannot be answered here")

// Envelope asks for input.
type Envelope struct {
	PromptID string `json:"prompt_id"`
	Prompt   string `json:"prompt"`
	// ResponseSchema is the JSON Schema of the reply's payload.
	ResponseSchema json.RawMessage `json:"response_schema"`
	// Deadline is when the command ends, answered or not; zero for none.
	Deadline time.Time `json:"deadline,omitzero"`
	// AllowedResponders is advisory in general; nil means Any.
	AllowedResponders []string `json:"allowed_responders,omitempty"`
}

// textSchema is the schema of a text-line payload. The characters of its
// pattern are there themselves, because not all dialects of regular
// expressions have the same escapes for them.
const textSchema = `{"type":"object","properties":{"text":{"type":"string","maxLength":4096,` +
	`"pattern":"^[^\u0000-\u001f\u007f-\u009f]*$"}},"required":["text"],"additionalProperties":false}`

// NewText makes the envelope of a prompt that a line of text answers.
func NewText(text string, deadline time.Time) (Envelope, error) {
	// Version 4: the published form of prompt_id does not allow version 7.
	id, err := uuid.NewRandom()
	if err != nil {
		return Envelope{}, fmt.Errorf("cannot make prompt id: %w", err)
	}
	if !deadline.IsZero() {
		deadline = deadline.UTC().Truncate(time.Second)
	}
	return Envelope{
		PromptID: id.String(), Prompt: text, ResponseSchema: json.RawMessage(textSchema),
		Deadline: deadline, AllowedResponders: []string{Any},
	}, nil
}

var (
	idForm        = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	responderForm = regexp.MustCompile(`^(any|specific:[!-~]{1,256}|consensus:[1-9][0-9]{0,3})$`)
)

// Check reports the first rule of the extension that the envelope breaks.
func (e Envelope) Check(now time.Time) error {
	switch n := utf8.RuneCountInString(e.Prompt); {
	case !idForm.MatchString(e.PromptID):
		return errors.New("prompt_id must be a lower-case UUID of version 1 to 5")
	case !utf8.ValidString(e.Prompt):
		return errors.New("prompt must be valid UTF-8")
	case n < 1 || n > MaxPrompt:
		return fmt.Errorf("prompt has %d characters, must have 1 to %d", n, MaxPrompt)
	case !e.Deadline.IsZero() && !e.Deadline.After(now):
		return errors.New("deadline must be in the future")
	case e.AllowedResponders != nil && len(e.AllowedResponders) == 0:
		return errors.New("allowed_responders must not be empty")
	}
	for _, r := range e.AllowedResponders {
		if !responderForm.MatchString(r) {
			return fmt.Errorf("allowed_responders must be any, specific:<id> or consensus:<n>, not %.80q", r)
		}
	}
	if _, err := Compile(e.ResponseSchema); err != nil {
		return fmt.Errorf("response_schema %w", err)
	}
	return nil
}

// CheckTextLine is Check for a prompt that is answered by a line of text.
func (e Envelope) CheckTextLine(now time.Time) error {
	if err := e.Check(now); err != nil {
		return err
	}
	if slices.ContainsFunc(e.AllowedResponders, func(r string) bool { return r != Any }) {
		return ErrRestricted
	}
	return nil
}

// ParseEnvelope reads an envelope and checks it.
func ParseEnvelope(raw json.RawMessage, now time.Time) (Envelope, error) {
	var e Envelope
	if len(raw) > maxEnvelope {
		return e, fmt.Errorf("envelope has %d bytes, at most %d are taken", len(raw), maxEnvelope)
	}
	fields, err := closed(raw, "prompt_id", "prompt", "response_schema", "deadline", "allowed_responders")
	if err != nil {
		return e, fmt.Errorf("envelope %w", err)
	}
	for _, name := range []string{"prompt_id", "prompt", "response_schema"} {
		if _, ok := fields[name]; !ok {
			return e, fmt.Errorf("%s is required", name)
		}
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, errors.New("envelope has a member of the wrong type")
	}
	return e, e.Check(now)
}

// closed takes an object apart that may have only these members, each once:
// two readers could disagree on which of two counts.
func closed(raw json.RawMessage, names ...string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	if !json.Valid(raw) {
		return nil, errors.New("must be valid JSON")
	}
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.New("must be an object")
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, errors.New("must be valid JSON")
		}
		name, _ := tok.(string)
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("must not have the member %s", clip(name))
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("must not have the member %s twice", clip(name))
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, errors.New("must be valid JSON")
		}
		fields[name] = v
	}
	return fields, nil
}

// clip makes a text from outside fit for an error.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%+q", s)
}
