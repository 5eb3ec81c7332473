package a2a

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// decodeSend03 reads the params of message/send and the body of message:send
// of 0.3. Both spellings of 0.3 are understood on both bindings, since clients
// mix them, and what 1.0 shares with them comes in with that; messageId may be
// left out, as in the example of adapter-command/v1.
func decodeSend03(raw json.RawMessage) (sendRequest, *fault) {
	d := &decoder{}
	o := d.object("", raw)
	if f := d.fault(); f != nil {
		return sendRequest{}, errBroken(rpcInvalidParams, "the request must be a JSON object with the member message")
	}
	req := sendRequest{history: -1, metadata: o.metadata()}
	if raw, ok := o.get("message"); ok {
		req.message = d.message03(raw)
	} else if raw, ok := o.get("request"); ok { // its name in the proto file, which ProtoJSON takes as well
		req.message = d.message03(raw)
	} else {
		d.fail("message", "is required")
	}
	if raw, ok := o.get("configuration"); ok {
		c := d.object("configuration", raw)
		req.history = c.count("historyLength")
		c.texts("acceptedOutputModes")
		if blocking, ok := c.flag("blocking"); ok {
			req.immediately = !blocking
		} else { // 1.0's name, from who named no version
			var said bool
			req.immediately, said = c.flag("returnImmediately")
			req.unsaid = !said
		}
		for _, name := range []string{"pushNotificationConfig", "pushNotification", "taskPushNotificationConfig"} {
			if p := c.inlinePush03(name); p != nil {
				req.push = p
			}
		}
	}
	return req, d.fault()
}

// decodeSend reads a SendMessageRequest in the version of the request. In the
// proto file of 0.3 a value of false is not written: a configuration that does
// not say whether to wait says no.
func (c *call) decodeSend(raw json.RawMessage) (sendRequest, *fault) {
	req, f := decodeSend(raw, c.version)
	if c.proto03 && req.unsaid {
		req.immediately = true
	}
	return req, f
}

func (d *decoder) message03(raw json.RawMessage) task.Message {
	o := d.object("message", raw)
	m := task.Message{
		MessageID: o.id("messageId"), ContextID: o.id("contextId"), TaskID: o.id("taskId"), Role: task.User,
		Metadata: o.metadata(), Extensions: o.texts("extensions"), ReferenceTaskIDs: o.texts("referenceTaskIds"),
	}
	if kind, _ := o.text("kind"); kind != "" && kind != "message" {
		d.fail(o.at("kind"), "must be message")
	}
	switch role, _ := o.text("role"); role {
	case "user", string(task.User):
	case "":
		d.fail(o.at("role"), "is required")
	default:
		d.fail(o.at("role"), "must be user")
	}
	name := "parts"
	if _, ok := o.get(name); !ok {
		if _, ok := o.get("content"); ok {
			name = "content"
		}
	}
	parts := o.list(name)
	switch {
	case len(parts) == 0:
		d.fail(o.at(name), "must have at least one part")
	case len(parts) > maxParts:
		d.fail(o.at(name), "must not have more than %d parts", maxParts)
	default:
		for i, raw := range parts {
			m.Parts = append(m.Parts, d.part03(fmt.Sprintf("message.%s[%d]", name, i), raw))
		}
	}
	return m
}

// part03 reads a part: with kind, it has the one member of that kind; without,
// it is of the proto spelling, whose text parts are those of 1.0.
func (d *decoder) part03(path string, raw json.RawMessage) task.Part {
	o := d.object(path, raw)
	kind, _ := o.text("kind")
	file, hasFile := o.get("file")
	data, hasData := o.get("data")
	if kind == "" {
		switch inner, nested := protoData(data); {
		case hasFile && !hasData:
			kind = "file"
		case nested && !hasFile:
			kind, data = "data", inner
		case !hasFile:
			return d.part(path, raw)
		}
	}
	p := task.Part{Metadata: o.metadata()}
	_, hasText := o.get("text")
	members := 0
	for _, has := range []bool{hasText, hasFile, hasData} {
		if has {
			members++
		}
	}
	switch {
	case members != 1:
		d.fail(path, "must have exactly one of text, file and data")
	case kind == "text" && hasText:
		s, _ := o.text("text")
		p.Text = &s
	case kind == "file" && hasFile:
		d.file03(d.object(o.at("file"), file), &p)
	case kind == "data" && hasData:
		if data = bytes.TrimSpace(data); data[0] != '{' {
			d.fail(o.at("data"), "must be an object")
		}
		p.Data, p.Metadata = newData(data, p.Metadata)
	default:
		d.fail(o.at("kind"), "must be text, file or data and name the member that is there")
	}
	return p
}

// newData undoes what oldData did to a value that is no object.
func newData(data json.RawMessage, meta task.Metadata) (json.RawMessage, task.Metadata) {
	var m map[string]json.RawMessage
	if string(meta[wrappedMark]) != "true" || json.Unmarshal(data, &m) != nil || len(m) != 1 || m[wrappedValue] == nil {
		return data, meta
	}
	delete(meta, wrappedMark)
	if len(meta) == 0 {
		meta = nil
	}
	return m[wrappedValue], meta
}

// protoData is what the proto spelling has in data.data.
func protoData(raw json.RawMessage) (json.RawMessage, bool) {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || len(m) != 1 {
		return nil, false
	}
	inner := bytes.TrimSpace(m["data"])
	return inner, len(inner) > 0 && inner[0] == '{'
}

func (d *decoder) file03(o object, p *task.Part) {
	p.Filename, _ = o.text("name")
	p.MediaType, _ = o.text("mimeType")
	found := 0
	for _, name := range []string{"bytes", "fileWithBytes"} {
		if s, ok := o.text(name); ok {
			found++
			b, err := fromBase64(s)
			if err != nil {
				d.fail(o.at(name), "must be base64")
			}
			p.Raw = b
		}
	}
	for _, name := range []string{"uri", "fileWithUri"} {
		if s, ok := o.text(name); ok {
			found++
			p.URL = &s
		}
	}
	if found != 1 {
		d.fail(o.path, "must have exactly one of bytes and uri")
	}
}

// list03 gives the filters of a list in 0.3 the names of 1.0.
func list03(o object) {
	if since, ok := o.get("lastUpdatedAfter"); ok {
		o.m["statusTimestampAfter"] = since
	}
	if string(o.m["status"]) == `"TASK_STATE_CANCELLED"` {
		o.m["status"] = json.RawMessage(quote(string(task.Canceled)))
	}
}

func toBase64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
