package a2a

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Bounds of what a request may hold.
const (
	maxID         = 256 // bytes of an identifier
	maxParts      = 256
	maxViolations = 32
)

// decoder reads requests as ProtoJSON does: members by their camelCase or
// snake_case name, null as absent, unknown ones ignored. It collects the rules
// that are broken.
type decoder struct {
	violations []runner.Violation
}

func (d *decoder) fail(field, format string, args ...any) {
	v := runner.Violation{Field: field, Description: fmt.Sprintf(format, args...)}
	if len(d.violations) < maxViolations && !slices.Contains(d.violations, v) { // some members are looked at twice
		d.violations = append(d.violations, v)
	}
}

func (d *decoder) fault() *fault {
	if len(d.violations) == 0 {
		return nil
	}
	first := d.violations[0]
	return errInvalid("the request breaks a rule: "+first.Field+" "+first.Description, d.violations...)
}

// object is a JSON object at a path.
type object struct {
	d    *decoder
	path string
	m    map[string]json.RawMessage
}

func (d *decoder) object(path string, raw json.RawMessage) object {
	o := object{d: d, path: path}
	if err := json.Unmarshal(raw, &o.m); err != nil || o.m == nil {
		d.fail(path, "must be an object")
	}
	return o
}

func (o object) at(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// get returns a member that is there and not null. One that is there by both
// its names is refused, as ProtoJSON has it: readers differ on which one counts.
func (o object) get(name string) (json.RawMessage, bool) {
	raw, ok := o.m[name]
	if other := snake(name); other != name {
		second, twice := o.m[other]
		switch {
		case ok && twice:
			o.d.fail(o.at(name), "must not be there a second time, as %s", other)
		case twice:
			raw, ok = second, true
		}
	}
	return raw, ok && string(raw) != "null"
}

func snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (o object) text(name string) (string, bool) {
	raw, ok := o.get(name)
	if !ok {
		return "", false
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		o.d.fail(o.at(name), "must be a string")
		return "", false
	}
	return s, true
}

// id reads an identifier chosen by a client.
func (o object) id(name string) string {
	s, _ := o.text(name)
	if rule := checkID(s); rule != "" {
		o.d.fail(o.at(name), "%s", rule)
	}
	return s
}

func checkID(s string) string {
	if len(s) > maxID {
		return fmt.Sprintf("must not be longer than %d bytes", maxID)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return "must be printable"
		}
	}
	return ""
}

func (o object) flag(name string) (value, ok bool) {
	raw, ok := o.get(name)
	if !ok {
		return false, false
	}
	if json.Unmarshal(raw, &value) != nil {
		o.d.fail(o.at(name), "must be true or false")
	}
	return value, true
}

// count reads a number that is not negative; absent is -1. ProtoJSON allows
// integers as strings.
func (o object) count(name string) int {
	raw, ok := o.get(name)
	if !ok {
		return -1
	}
	s := string(raw)
	if u, err := strconv.Unquote(s); err == nil {
		s = u
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		o.d.fail(o.at(name), "must be an integer that is not negative")
		return -1
	}
	return int(n)
}

func (o object) metadata() task.Metadata {
	raw, ok := o.get("metadata")
	if !ok {
		return nil
	}
	var m task.Metadata
	if json.Unmarshal(raw, &m) != nil {
		o.d.fail(o.at("metadata"), "must be an object")
	}
	return m
}

func (o object) list(name string) []json.RawMessage {
	raw, ok := o.get(name)
	if !ok {
		return nil
	}
	var l []json.RawMessage
	if json.Unmarshal(raw, &l) != nil {
		o.d.fail(o.at(name), "must be a list")
	}
	return l
}

func (o object) texts(name string) []string {
	raw, ok := o.get(name)
	if !ok {
		return nil
	}
	var l []string
	if json.Unmarshal(raw, &l) != nil {
		o.d.fail(o.at(name), "must be a list of strings")
	}
	return l
}

// sendRequest is a SendMessageRequest.
type sendRequest struct {
	message     task.Message
	metadata    task.Metadata
	history     int // negative: all
	immediately bool
	unsaid      bool // of 0.3: there is a configuration that does not say whether to wait
	push        *inlinePush
}

func decodeSend(raw json.RawMessage, v version) (sendRequest, *fault) {
	if v == v03 {
		return decodeSend03(raw)
	}
	d := &decoder{}
	o := d.object("", raw)
	if f := d.fault(); f != nil {
		return sendRequest{}, errBroken(rpcInvalidParams, "the request must be a JSON object with the member message")
	}
	req := sendRequest{history: -1, metadata: o.metadata()}
	if raw, ok := o.get("message"); ok {
		req.message = d.message(raw)
	} else {
		d.fail("message", "is required")
	}
	if raw, ok := o.get("configuration"); ok {
		c := d.object("configuration", raw)
		req.history = c.count("historyLength")
		req.immediately, _ = c.flag("returnImmediately")
		c.texts("acceptedOutputModes")
		req.push = c.inlinePush("taskPushNotificationConfig")
	}
	return req, d.fault()
}

func (d *decoder) message(raw json.RawMessage) task.Message {
	o := d.object("message", raw)
	m := task.Message{
		MessageID: o.id("messageId"), ContextID: o.id("contextId"), TaskID: o.id("taskId"),
		Metadata: o.metadata(), Extensions: o.texts("extensions"), ReferenceTaskIDs: o.texts("referenceTaskIds"),
	}
	if m.MessageID == "" {
		d.fail(o.at("messageId"), "is required")
	}
	role, _ := o.text("role")
	switch {
	case role == string(task.User):
		m.Role = task.User
	case role == "":
		d.fail(o.at("role"), "is required")
	default:
		d.fail(o.at("role"), "must be %s", task.User)
	}
	parts := o.list("parts")
	switch {
	case len(parts) == 0:
		d.fail(o.at("parts"), "must have at least one part")
	case len(parts) > maxParts:
		d.fail(o.at("parts"), "must not have more than %d parts", maxParts)
	default:
		for i, raw := range parts {
			m.Parts = append(m.Parts, d.part(fmt.Sprintf("message.parts[%d]", i), raw))
		}
	}
	return m
}

func (d *decoder) part(path string, raw json.RawMessage) task.Part {
	o := d.object(path, raw)
	p := task.Part{Metadata: o.metadata()}
	p.Filename, _ = o.text("filename")
	p.MediaType, _ = o.text("mediaType")
	kinds := 0
	if s, ok := o.text("text"); ok {
		kinds++
		p.Text = &s
	}
	if s, ok := o.text("raw"); ok {
		kinds++
		b, err := fromBase64(s)
		if err != nil {
			d.fail(o.at("raw"), "must be base64")
		}
		p.Raw = b
	}
	if s, ok := o.text("url"); ok {
		kinds++
		p.URL = &s
	}
	if raw, ok := o.m["data"]; ok { // null is a value here
		kinds++
		p.Data = raw
	}
	if kinds != 1 {
		d.fail(path, "must have exactly one of text, raw, url and data")
	}
	return p
}

// fromBase64 takes both alphabets, padded or not, as ProtoJSON does. It never
// returns nil without an error.
func fromBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(s, "="))
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("cannot decode base64: %w", err)
	}
	return append([]byte{}, b...), nil
}
