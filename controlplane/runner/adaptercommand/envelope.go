package adaptercommand

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
)

// What v1 of the extension allows.
const (
	adapter        = "sandbox-agent-runner"
	program        = "node"
	script         = ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs"
	requestFlag    = "--request"
	adapterPrefix  = ".aiwg/ops/adapters/sandbox-agent-runner/"
	runsPrefix     = ".aiwg/ops/runs/"
	defaultTimeout = 300
	minTimeout     = 1
	maxTimeout     = 900
	textLine       = "text-line"
)

// envelope is a checked envelope with its defaults filled in.
type envelope struct {
	Mode           string
	Command        []string
	WorkingDir     string
	TimeoutSeconds int
	// TextLine: the command may ask, and a line of text answers it.
	TextLine bool
}

// checker collects the rules an envelope breaks.
type checker struct {
	fields     map[string]json.RawMessage
	violations []runner.Violation
}

func (c *checker) fail(field, format string, args ...any) {
	at := fmt.Sprintf("message.metadata[%q]", URI)
	if field != "" {
		at += "." + field
	}
	c.violations = append(c.violations, runner.Violation{Field: at, Description: fmt.Sprintf(format, args...)})
}

// parse checks an envelope against every rule and reports all it breaks.
// prompts says whether hitl-prompt/v1 was activated.
func parse(raw json.RawMessage, workspace string, prompts bool) (envelope, []runner.Violation) {
	c := &checker{}
	if err := c.split(raw); err != nil {
		c.fail("", "%v", err)
		return envelope{}, c.violations
	}
	for _, name := range slices.Sorted(maps.Keys(c.fields)) {
		switch name {
		case "adapter", "mode", "command", "working_dir", "timeout_seconds", "input_mode":
		default:
			c.fail(clip(name), "is not a field of the envelope")
		}
	}
	var e envelope
	if a, ok := c.text("adapter", true); ok && a != adapter {
		c.fail("adapter", "must be %q, the only adapter there is", adapter)
	}
	if m, ok := c.text("mode", true); ok && m != "plan" && m != "assess" {
		c.fail("mode", `must be "plan" or "assess"`)
	} else {
		e.Mode = m
	}
	e.Command = c.command()
	e.WorkingDir = c.workingDir(workspace)
	e.TimeoutSeconds = c.timeout()
	e.TextLine = c.inputMode(prompts)
	return e, c.violations
}

// split takes the object apart and refuses a field that is there twice: two
// readers could disagree on which one counts.
func (c *checker) split(raw json.RawMessage) error {
	c.fields = map[string]json.RawMessage{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return errors.New("must be an object")
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return errors.New("must be valid JSON")
		}
		name, _ := tok.(string)
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return errors.New("must be valid JSON")
		}
		if _, twice := c.fields[name]; twice {
			return fmt.Errorf("must not have field %s twice", clip(name))
		}
		c.fields[name] = v
	}
	if _, err := dec.Token(); err != nil {
		return errors.New("must be valid JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("must be one JSON object")
	}
	return nil
}

func (c *checker) text(field string, required bool) (string, bool) {
	raw, ok := c.fields[field]
	if !ok {
		if required {
			c.fail(field, "is required")
		}
		return "", false
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		c.fail(field, "must be a string")
		return "", false
	}
	return *s, true
}

func (c *checker) command() []string {
	raw, ok := c.fields["command"]
	if !ok {
		c.fail("command", "is required")
		return nil
	}
	var argv []*string
	if err := json.Unmarshal(raw, &argv); err != nil || argv == nil {
		c.fail("command", "must be a list of strings")
		return nil
	}
	shape := []string{program, script, requestFlag}
	if len(argv) != len(shape)+1 {
		c.fail("command", "must be exactly: %s <relative-request-path>", strings.Join(shape, " "))
		return nil
	}
	out := make([]string, 0, len(argv))
	for i, s := range argv {
		field := fmt.Sprintf("command[%d]", i)
		switch {
		case s == nil:
			c.fail(field, "must be a string")
			return nil
		case i < len(shape) && *s != shape[i]:
			c.fail(field, "must be %q", shape[i])
		case i == len(shape):
			if rule := checkRequestPath(*s); rule != "" {
				c.fail(field, "%s", rule)
			}
		}
		out = append(out, *s)
	}
	return out
}

// checkRequestPath returns the rule a request path breaks. The rules are of
// the text alone. Nobody resolves links for this path, as the guest does for
// the working directory: the adapter opens it, as the machine's own user, and
// whoever could make such a link is inside the machine already.
func checkRequestPath(p string) string {
	if rule := checkPathText(p); rule != "" {
		return rule
	}
	if strings.HasPrefix(p, "/") {
		return "must be relative"
	}
	for seg := range strings.SplitSeq(p, "/") {
		switch seg {
		case "":
			return "must not have empty segments"
		case ".", "..":
			return "must not have segments . or .."
		}
	}
	for _, prefix := range []string{adapterPrefix, runsPrefix} {
		if strings.HasPrefix(p, prefix) { // and more follows: no segment is empty
			return ""
		}
	}
	return fmt.Sprintf("must stay under %s or %s", adapterPrefix, runsPrefix)
}

// checkPathText refuses characters that mean something to some reader of a
// path and nothing to another.
func checkPathText(p string) string {
	switch {
	case p == "":
		return "must not be empty"
	case len(p) > agentv1.MaxPath:
		return fmt.Sprintf("must not be longer than %d bytes", agentv1.MaxPath)
	case !utf8.ValidString(p):
		return "must be valid UTF-8"
	}
	for _, r := range p {
		switch {
		case r == 0:
			return "must not contain NUL"
		case r < ' ' || r == 0x7f:
			return "must not contain control characters"
		case r == '\\':
			return "must not contain backslashes"
		case r == '%':
			return "must not contain percent signs, it is taken literally and never decoded"
		case r > 0x7e:
			return "must be of printable ASCII characters"
		}
	}
	return ""
}

func (c *checker) workingDir(workspace string) string {
	dir, ok := c.text("working_dir", false)
	if !ok {
		return workspace
	}
	switch rule := checkPathText(dir); {
	case rule != "":
		c.fail("working_dir", "%s", rule)
	case !strings.HasPrefix(dir, "/"):
		c.fail("working_dir", "must be absolute")
	case path.Clean(dir) != dir && path.Clean(dir)+"/" != dir:
		c.fail("working_dir", "must not have empty segments or segments . or ..")
	case !under(path.Clean(dir), workspace):
		c.fail("working_dir", "must be %s or below it, the workspace of this machine", workspace)
	}
	return path.Clean(dir)
}

func under(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/")
}

func (c *checker) timeout() int {
	raw, ok := c.fields["timeout_seconds"]
	if !ok {
		return defaultTimeout
	}
	// Metadata is a Struct of protocol buffers, whose numbers are all doubles:
	// the SDK for Python writes 300 as 300.0.
	text, fraction, _ := strings.Cut(string(raw), ".")
	n, err := strconv.Atoi(text)
	if err != nil || strings.Trim(fraction, "0") != "" {
		c.fail("timeout_seconds", "must be an integer")
		return 0
	}
	if n < minTimeout || n > maxTimeout {
		c.fail("timeout_seconds", "must be between %d and %d", minTimeout, maxTimeout)
	}
	return n
}

// inputMode reports whether the command's prompts are to be answered by lines
// of text. Without the extension that says how, they could not be.
func (c *checker) inputMode(prompts bool) bool {
	mode, ok := c.text("input_mode", false)
	switch {
	case !ok:
		return false
	case mode != textLine:
		c.fail("input_mode", "must be %q, the only mode there is", textLine)
	case !prompts:
		c.fail("input_mode", "needs hitl-prompt/v1 to be activated: name %s in the header A2A-Extensions", extensions.HITLPrompt)
	}
	return true
}

// clip makes a name from outside fit for an error.
func clip(name string) string {
	const most = 64
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strconv.QuoteToASCII(name)
}
