package prompt_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// published is the form of prompt_id as the extension publishes it.
var published = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-5][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$`)

func TestNewText(t *testing.T) {
	e, err := prompt.NewText("Continue? [y/N]", now.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.CheckTextLine(now); err != nil {
		t.Error(err)
	}
	if !published.MatchString(e.PromptID) {
		t.Errorf("prompt_id %q is not of the published form", e.PromptID)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prompt.ParseEnvelope(raw, now); err != nil {
		t.Error(err)
	}
	var shown any
	if err := json.Unmarshal(raw, &shown); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join("..", "..", "api", "extensions", "hitl-prompt", "v1", "envelope.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(file)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("urn:envelope", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("urn:envelope")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(shown); err != nil {
		t.Errorf("the published schema refuses %s: %v", raw, err)
	}
}

func TestEnvelopeRules(t *testing.T) {
	base := func() map[string]any {
		return map[string]any{
			"prompt_id": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "prompt": "x", "response_schema": map[string]any{"type": "object"},
			"deadline": "2026-01-01T00:01:00Z", "allowed_responders": []any{"any"},
		}
	}
	nested := any("x")
	for range prompt.MaxDepth + 1 {
		nested = map[string]any{"not": nested}
	}
	for name, c := range map[string]struct {
		member string
		value  any // nil removes
		ok     bool
	}{
		"as it is":          {"prompt", "x", true},
		"no id":             {"prompt_id", nil, false},
		"version 7":         {"prompt_id", "01900000-0000-7000-8000-000000000001", false},
		"upper case":        {"prompt_id", "6BA7B810-9DAD-41D1-80B4-00C04FD430C8", false},
		"no prompt":         {"prompt", nil, false},
		"empty prompt":      {"prompt", "", false},
		"longest prompt":    {"prompt", strings.Repeat("ä", 4096), true},
		"too long prompt":   {"prompt", strings.Repeat("ä", 4097), false},
		"no schema":         {"response_schema", nil, false},
		"schema no object":  {"response_schema", true, false},
		"schema of string":  {"response_schema", map[string]any{"type": "string"}, false},
		"schema too large":  {"response_schema", map[string]any{"type": "object", "title": strings.Repeat("x", 64<<10)}, false},
		"schema too deep":   {"response_schema", map[string]any{"type": "object", "not": nested}, false},
		"schema is wrong":   {"response_schema", map[string]any{"type": "object", "required": 1}, false},
		"no deadline":       {"deadline", nil, true},
		"past deadline":     {"deadline", "2025-12-31T23:59:59Z", false},
		"odd deadline":      {"deadline", "tomorrow", false},
		"no responders":     {"allowed_responders", nil, true},
		"empty responders":  {"allowed_responders", []any{}, false},
		"odd responder":     {"allowed_responders", []any{"everybody"}, false},
		"some responders":   {"allowed_responders", []any{"any", "specific:bob"}, true},
		"consensus":         {"allowed_responders", []any{"consensus:2"}, true},
		"consensus of none": {"allowed_responders", []any{"consensus:0"}, false},
		"another member":    {"title", "Nice", false},
		"deadline now":      {"deadline", now.Format(time.RFC3339), false},
	} {
		e := base()
		if e[c.member] = c.value; c.value == nil {
			delete(e, c.member)
		}
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := prompt.ParseEnvelope(raw, now)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.member == "allowed_responders" && c.ok && c.value != nil {
			if err := got.CheckTextLine(now); !errors.Is(err, prompt.ErrRestricted) {
				t.Errorf("%s: %v on the route of text lines, want ErrRestricted", name, err)
			}
		}
	}
}

// TestCF5NoUIFields: an envelope is a closed object; nothing says how to show it.
func TestCF5NoUIFields(t *testing.T) {
	e, err := prompt.NewText("x", now.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"title", "label", "widget", "icon", "buttons", "html", "style", "placeholder"} {
		with := strings.Replace(string(raw), "{", fmt.Sprintf("{%q:%q,", field, "x"), 1)
		if _, err := prompt.ParseEnvelope(json.RawMessage(with), now); err == nil {
			t.Errorf("%s is taken", field)
		}
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil || len(m) != 5 {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestParseReply(t *testing.T) {
	for raw, ok := range map[string]bool{
		`{"prompt_id":"a","payload":{"text":"y"}}`:       true,
		`{"prompt_id":"a","payload":null}`:               true, // the schema's to refuse
		`{"prompt_id":"a"}`:                              false,
		`{"payload":{}}`:                                 false,
		`{"prompt_id":"","payload":{}}`:                  false,
		`{"prompt_id":1,"payload":{}}`:                   false,
		`{"prompt_id":null,"payload":{}}`:                false,
		`{"prompt_id":"a","payload":{},"x":1}`:           false,
		`{"prompt_id":"a","prompt_id":"b","payload":{}}`: false,
		`{"prompt_id":"a","payload":{},"payload":{}}`:    false,
		`[]`:   false,
		`"a"`:  false,
		`null`: false,
		``:     false,
		`{`:    false,
		`{"prompt_id":"a","payload":"` + strings.Repeat("x", 70000) + `"}`: false,
	} {
		if _, err := prompt.ParseReply(json.RawMessage(raw)); (err == nil) != ok {
			t.Errorf("%.80s: %v", raw, err)
		}
	}
}

// TestPayload checks each rule of a line of text, by the schema that clients
// see and by the decoder behind it.
func TestPayload(t *testing.T) {
	e, err := prompt.NewText("x", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := prompt.Compile(e.ResponseSchema)
	if err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]struct{ path, keyword string }{
		`{"text":"y"}`:         {},
		`{"text":""}`:          {},
		`{"text":"grüß 日本 😀"}`: {},
		`{"text":"` + strings.Repeat("x", 4096) + `"}`: {},
		`{"text":"` + strings.Repeat("x", 4097) + `"}`: {"/text", "maxLength"},
		`{"text":"` + strings.Repeat("ä", 2049) + `"}`: {"/text", "maxLength"}, // bytes count
		`{"text":"a\nb"}`:         {"/text", "pattern"},
		`{"text":"a\u0000"}`:      {"/text", "pattern"},
		`{"text":"\u001b[0m"}`:    {"/text", "pattern"},
		`{"text":"\t"}`:           {"/text", "pattern"},
		`{"text":"\u007f"}`:       {"/text", "pattern"},
		`{"text":"\u0085"}`:       {"/text", "pattern"},
		`{"text":"\ud800"}`:       {"/text", "pattern"},
		`{"text":1}`:              {"/text", "type"},
		`{"text":null}`:           {"/text", "type"},
		`{}`:                      {"", "required"},
		`{"text":"y","more":1}`:   {"", "additionalProperties"},
		`"y"`:                     {"", "type"},
		`null`:                    {"", "type"},
		`[]`:                      {"", "type"},
		`{"text":"y","text":"n"}`: {"", "additionalProperties"},
	} {
		err := s.Check(json.RawMessage(payload))
		text := ""
		if err == nil {
			text, err = prompt.Text(json.RawMessage(payload))
		}
		if want.keyword == "" {
			if err != nil || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%.60s: %v", payload, err)
			}
			continue
		}
		var invalid *prompt.Invalid
		if !errors.As(err, &invalid) || len(invalid.Violations) == 0 {
			t.Errorf("%.60s: %v", payload, err)
			continue
		}
		if v := invalid.Violations[0]; v.Path != want.path || v.Keyword != want.keyword || v.Message == "" {
			t.Errorf("%.60s breaks %+v, want %+v", payload, v, want)
		}
	}
}

// TestTextHasNoControls, also where nobody has asked the schema.
func TestTextHasNoControls(t *testing.T) {
	for c := range rune(0xa0) {
		payload, err := json.Marshal(map[string]string{"text": "a" + string(c)})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := prompt.Text(payload); (err == nil) == unicode.IsControl(c) {
			t.Errorf("%U: %q, %v", c, text, err)
		}
	}
}

// TestEnvelopeIsBounded: whatever it consists of.
func TestEnvelopeIsBounded(t *testing.T) {
	e, err := prompt.NewText("x", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for size, ok := range map[int]bool{2 * prompt.MaxSchema: true, 2*prompt.MaxSchema + 1: false} {
		padded := append([]byte(strings.Repeat(" ", size-len(raw))), raw...)
		if _, err := prompt.ParseEnvelope(padded, now); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestSchemasAreBounded: no schema costs more than its size suggests.
func TestSchemasAreBounded(t *testing.T) {
	var doubling strings.Builder
	doubling.WriteString(`{"type":"object","allOf":[{"$ref":"#/$defs/a0"}],"$defs":{`)
	for i := range 30 {
		fmt.Fprintf(&doubling, `"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	doubling.WriteString(`"a30":{"type":"object"}}}`)
	for name, schema := range map[string]string{
		"doubling":   doubling.String(),
		"cycle":      `{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}`,
		"itself":     `{"type":"object","properties":{"x":{"$ref":"#"}}}`,
		"remote":     `{"type":"object","$ref":"https://example.com/s.json"}`,
		"file":       `{"type":"object","$ref":"file:///etc/passwd"}`,
		"dynamic":    `{"type":"object","$dynamicRef":"#a"}`,
		"id":         `{"$id":"https://example.com/x","type":"object"}`,
		"metaschema": `{"$schema":"https://example.com/x","type":"object"}`,
		"dangling":   `{"type":"object","$ref":"#/$defs/b"}`,
		"regexp":     `{"type":"object","properties":{"x":{"pattern":"("}}}`,
		"wide":       `{"type":"object","enum":[` + strings.Repeat("1,", 5000) + `1]}`,
		"not json":   `{`,
	} {
		if _, err := prompt.Compile(json.RawMessage(schema)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	s, err := prompt.Compile(json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer","minimum":1}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(json.RawMessage(`{"a":1}`)); err != nil {
		t.Error(err)
	}
	var invalid *prompt.Invalid
	if err := s.Check(json.RawMessage(`{"a":0}`)); !errors.As(err, &invalid) || invalid.Violations[0].Keyword != "minimum" || invalid.Violations[0].Path != "/a" {
		t.Errorf("%v", err)
	}
	if err := s.Check(json.RawMessage(strings.Repeat("[", 100) + strings.Repeat("]", 100))); !errors.As(err, &invalid) {
		t.Errorf("a deep payload: %v", err)
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"prompt_id":"a","payload":{"text":"y"}}`))
	f.Add([]byte(`{"prompt_id":"a","payload":{"text":"\u0000"},"x":{}}`))
	e, err := prompt.NewText("x", time.Time{})
	if err != nil {
		f.Fatal(err)
	}
	s, err := prompt.Compile(e.ResponseSchema)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := prompt.ParseReply(raw)
		if err != nil || s.Check(r.Payload) != nil {
			return
		}
		text, err := prompt.Text(r.Payload)
		if err == nil && (len(text) > prompt.MaxText || strings.ContainsFunc(text, unicode.IsControl)) {
			t.Fatalf("%q goes to the command", text)
		}
	})
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"x":{"$ref":"#/$defs/y"}},"$defs":{"y":{}}}`), []byte(`{"x":1}`))
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		s, err := prompt.Compile(schema)
		if err != nil {
			return
		}
		var invalid *prompt.Invalid
		if err := s.Check(payload); err != nil && (!errors.As(err, &invalid) || len(invalid.Violations) == 0) {
			t.Fatalf("%v", err)
		}
	})
}
