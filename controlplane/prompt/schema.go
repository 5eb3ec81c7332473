package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the work of a validation. A schema's nodes are counted as often as
// they are referred to, so what is allowed is also fast: regular expressions
// take linear time, and every node meets every value of a payload at most once.
const (
	maxNodes      = 4096
	maxWork       = 1 << 20 // nodes of the schema times values of the payload
	maxViolations = 32
	maxMessage    = 256
)

// Schema is a compiled response schema.
type Schema struct {
	s     *jsonschema.Schema
	nodes int
}

// Compile checks a response schema against the bounds of the extension: JSON
// Schema (draft 2020-12 unless it says otherwise) of an object, no larger and
// no deeper than allowed, that refers to nothing outside itself.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > MaxSchema {
		return nil, fmt.Errorf("has %d bytes, at most %d are taken", len(raw), MaxSchema)
	}
	if depth(raw) > MaxDepth {
		return nil, fmt.Errorf("is nested deeper than %d", MaxDepth)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, errors.New("must be valid JSON")
	}
	root, ok := doc.(map[string]any)
	if !ok || root["type"] != "object" {
		return nil, errors.New(`must be an object with "type": "object"`)
	}
	c := counter{root: root}
	if err := c.count(root, 0); err != nil {
		return nil, err
	}
	const at = "urn:response-schema"
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(at, doc); err != nil {
		return nil, errors.New("must be a JSON Schema")
	}
	s, err := compiler.Compile(at)
	if err != nil {
		return nil, fmt.Errorf("must be a JSON Schema: %.200q", err.Error())
	}
	return &Schema{s: s, nodes: c.nodes}, nil
}

var draftForm = regexp.MustCompile(`^https?://json-schema\.org/draft[-/0-9a-z]{1,32}#?$`)

// noLoader keeps a schema from fetching anything.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errors.New("schemas outside are not loaded") }

// counter counts the nodes of a schema as a validation may meet them.
type counter struct {
	root  any
	nodes int
}

func (c *counter) count(v any, deep int) error {
	if c.nodes++; c.nodes > maxNodes || deep > 4*MaxDepth {
		return errors.New("is too large with its references, or refers to itself")
	}
	switch v := v.(type) {
	case map[string]any:
		for k, m := range v {
			switch k {
			case "$dynamicRef", "$recursiveRef", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary":
				if _, ok := m.(string); ok || k == "$vocabulary" {
					return fmt.Errorf("must not use %s", k)
				}
			case "$schema":
				if s, _ := m.(string); !draftForm.MatchString(s) {
					return errors.New("must be of a published draft of JSON Schema")
				}
				continue
			case "$ref":
				ref, ok := m.(string)
				if !ok {
					break
				}
				target, err := c.resolve(ref)
				if err != nil {
					return err
				}
				if err := c.count(target, deep+1); err != nil {
					return err
				}
				continue
			}
			if err := c.count(m, deep+1); err != nil {
				return err
			}
		}
	case []any:
		for _, m := range v {
			if err := c.count(m, deep+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *counter) resolve(ref string) (any, error) {
	if !strings.HasPrefix(ref, "#/") || strings.Contains(ref, "%") {
		return nil, errors.New("may refer only to its own parts, by a JSON pointer such as #/$defs/x")
	}
	v := c.root
	for seg := range strings.SplitSeq(ref[2:], "/") {
		seg = strings.NewReplacer("~1", "/", "~0", "~").Replace(seg)
		switch at := v.(type) {
		case map[string]any:
			v = at[seg]
		case []any:
			i, err := strconv.Atoi(seg)
			if err != nil || i < 0 || i >= len(at) {
				return nil, errors.New("refers to a part it does not have")
			}
			v = at[i]
		default:
			return nil, errors.New("refers to a part it does not have")
		}
	}
	if v == nil {
		return nil, errors.New("refers to a part it does not have")
	}
	return v, nil
}

// Check validates a payload. The error is *Invalid.
func (s *Schema) Check(payload json.RawMessage) error {
	fail := func(keyword, text string) error {
		return &Invalid{Violations: []Violation{{Keyword: keyword, Message: text}}}
	}
	if len(payload) > MaxPayload {
		return fail("maxLength", fmt.Sprintf("has %d bytes, at most %d are taken", len(payload), MaxPayload))
	}
	if depth(payload) > MaxDepth {
		return fail("maxDepth", fmt.Sprintf("is nested deeper than %d", MaxDepth))
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fail("type", "must be valid JSON")
	}
	if n := values(v); n*s.nodes > maxWork {
		return fail("maxItems", fmt.Sprintf("has %d values, too many for this schema", n))
	}
	err = s.s.Validate(v)
	if err == nil {
		return nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return fail("type", "cannot be checked")
	}
	return flatten(ve)
}

// flatten lists the leaves of a validation's errors.
func flatten(ve *jsonschema.ValidationError) *Invalid {
	e := &Invalid{}
	for _, u := range ve.BasicOutput().Errors {
		if u.Error == nil || len(u.Errors) > 0 || len(e.Violations) >= maxViolations {
			continue
		}
		keyword := u.KeywordLocation[strings.LastIndexByte(u.KeywordLocation, '/')+1:]
		text := strings.ToValidUTF8(u.Error.String(), "")
		if len(text) > maxMessage {
			text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
		}
		e.Violations = append(e.Violations, Violation{Path: u.InstanceLocation, Keyword: keyword, Message: text})
	}
	if len(e.Violations) == 0 {
		e.Violations = []Violation{{Keyword: "schema", Message: "the payload breaks the schema"}}
	}
	return e
}

// depth is how deep objects and lists are nested in JSON.
func depth(raw []byte) int {
	deepest, at, inString, escaped := 0, 0, false, false
	for _, b := range raw {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = b == '\\', b != '"'
		case b == '"':
			inString = true
		case b == '{' || b == '[':
			at++
			deepest = max(deepest, at)
		case b == '}' || b == ']':
			at--
		}
	}
	return deepest
}

// values counts the values in decoded JSON.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, m := range v {
			n += values(m)
		}
	case []any:
		for _, m := range v {
			n += values(m)
		}
	}
	return n
}
