package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Reply is a decoded answer to a prompt.
type Reply struct {
	PromptID string
	Payload  json.RawMessage
}

// Violation is one rule that a payload breaks.
type Violation struct {
	Path    string `json:"path"` // JSON pointer into the payload
	Keyword string `json:"keyword"`
	Message string `json:"message"`
}

// Invalid is the error of a payload that breaks its prompt's schema.
type Invalid struct{ Violations []Violation }

func (e *Invalid) Error() string {
	if len(e.Violations) == 0 {
		return "the payload is not what the prompt asks for"
	}
	v := e.Violations[0]
	return fmt.Sprintf("the payload is not what the prompt asks for: %q breaks %s: %s", v.Path, v.Keyword, v.Message)
}

// ParseReply reads the value of ResponseKey. What is in the payload is left to
// the schema of the prompt.
func ParseReply(raw json.RawMessage) (Reply, error) {
	if len(raw) > MaxPayload+1024 {
		return Reply{}, fmt.Errorf("must not have more than %d bytes", MaxPayload)
	}
	fields, err := closed(raw, "prompt_id", "payload")
	if err != nil {
		return Reply{}, err
	}
	var id *string
	if json.Unmarshal(fields["prompt_id"], &id) != nil || id == nil || *id == "" {
		return Reply{}, errors.New("must have the member prompt_id, a string")
	}
	r := Reply{PromptID: *id, Payload: fields["payload"]}
	if r.Payload == nil {
		return Reply{}, errors.New("must have the member payload")
	}
	return r, nil
}

// Text returns the line of a text-line payload, which the prompt's schema has
// been asked about before. The error is *Invalid.
func Text(payload json.RawMessage) (string, error) {
	fail := func(path, keyword, message string) (string, error) {
		return "", &Invalid{Violations: []Violation{{Path: path, Keyword: keyword, Message: message}}}
	}
	fields, err := closed(payload, "text")
	if err != nil {
		return fail("", "additionalProperties", err.Error())
	}
	var text *string
	if json.Unmarshal(fields["text"], &text) != nil || text == nil {
		return fail("/text", "type", "must be a string")
	}
	if len(*text) > MaxText {
		return fail("/text", "maxLength", fmt.Sprintf("has %d bytes, at most %d are taken", len(*text), MaxText))
	}
	for _, r := range *text {
		if unicode.IsControl(r) {
			return fail("/text", "pattern", fmt.Sprintf("must not contain control characters, has %U", r))
		}
		if r == utf8.RuneError {
			return fail("/text", "pattern", "must be valid Unicode")
		}
	}
	return *text, nil
}
