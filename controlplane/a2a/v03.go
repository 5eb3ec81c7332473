package a2a

import (
	"bytes"
	"encoding/json"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// A2A 0.3 stands beside 1.0: a request of 0.3 is decoded into what 1.0 has
// (v03_decode.go), carried out by the same operations, and its answer is put
// into the form of 0.3 here. Tasks are kept in their 1.0 form only, so either
// version sees every task.
//
// 0.3 has two spellings of its own: that of its JSON schema on JSON-RPC (kind,
// lower-case states, parts) and that of its proto file on HTTP+JSON (content,
// TASK_STATE_CANCELLED).

// binding is how a request came in, and which spelling its answer has.
type binding int

const (
	jsonRPC binding = iota
	httpJSON
)

// addOld adds to an error of HTTP+JSON what clients of 0.3 look for. Its
// specification left the form open: the SDK for Go reads that of 1.0, the one
// for JavaScript the code of JSON-RPC, the one for Python the type.
func (f *fault) addOld(body map[string]any) {
	body["code"], body["message"], body["type"] = f.rpc, f.message, f.oldType()
}

func (f *fault) oldType() string {
	if f.domain != "" {
		switch f.rpc {
		case rpcInvalidParams:
			return "InvalidParamsError"
		case rpcInternal:
			return "InternalError"
		}
		return "InvalidRequestError"
	}
	var b strings.Builder
	for word := range strings.SplitSeq(f.reason, "_") {
		if word != "" {
			b.WriteString(word[:1] + strings.ToLower(word[1:]))
		}
	}
	return b.String() + "Error"
}

// Keys that translations to 0.3 use: its data parts hold objects only, so other
// values are wrapped and marked, as the SDKs do it.
const (
	wrappedValue = "value"
	wrappedMark  = "data_part_compat"
)

// oldPart is a part of 0.3. Which members are set depends on the binding.
type oldPart struct {
	Kind     string          `json:"kind,omitempty"`
	Text     *string         `json:"text,omitempty"`
	File     *oldFile        `json:"file,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
	Metadata task.Metadata   `json:"metadata,omitempty"`
}

type oldFile struct {
	Name          string  `json:"name,omitempty"`
	MimeType      string  `json:"mimeType,omitempty"`
	Bytes         *string `json:"bytes,omitempty"`
	URI           *string `json:"uri,omitempty"`
	FileWithBytes *string `json:"fileWithBytes,omitempty"`
	FileWithURI   *string `json:"fileWithUri,omitempty"`
}

type oldMessage struct {
	Kind             string        `json:"kind,omitempty"`
	MessageID        string        `json:"messageId"`
	ContextID        string        `json:"contextId,omitempty"`
	TaskID           string        `json:"taskId,omitempty"`
	Role             string        `json:"role"`
	Parts            []oldPart     `json:"parts,omitempty"`   // JSON-RPC
	Content          []oldPart     `json:"content,omitempty"` // HTTP+JSON
	Metadata         task.Metadata `json:"metadata,omitempty"`
	Extensions       []string      `json:"extensions,omitempty"`
	ReferenceTaskIDs []string      `json:"referenceTaskIds,omitempty"`
}

type oldStatus struct {
	State     string         `json:"state"`
	Message   *oldMessage    `json:"message,omitempty"`
	Timestamp task.Timestamp `json:"timestamp"`
}

type oldArtifact struct {
	ArtifactID  string        `json:"artifactId"`
	Name        string        `json:"name,omitempty"`
	Description string        `json:"description,omitempty"`
	Parts       []oldPart     `json:"parts"`
	Metadata    task.Metadata `json:"metadata,omitempty"`
	Extensions  []string      `json:"extensions,omitempty"`
}

type oldTask struct {
	Kind      string        `json:"kind,omitempty"`
	ID        string        `json:"id"`
	ContextID string        `json:"contextId"`
	Status    oldStatus     `json:"status"`
	Artifacts []oldArtifact `json:"artifacts,omitempty"`
	History   []oldMessage  `json:"history,omitempty"`
	Metadata  task.Metadata `json:"metadata,omitempty"`
}

type oldStatusUpdate struct {
	Kind      string    `json:"kind,omitempty"`
	TaskID    any       `json:"taskId"`
	ContextID any       `json:"contextId"`
	Status    oldStatus `json:"status"`
	Final     bool      `json:"final"`
	Metadata  any       `json:"metadata,omitempty"`
}

type oldArtifactUpdate struct {
	Kind      string      `json:"kind,omitempty"`
	TaskID    any         `json:"taskId"`
	ContextID any         `json:"contextId"`
	Artifact  oldArtifact `json:"artifact"`
	Append    any         `json:"append"`
	LastChunk any         `json:"lastChunk"`
	Metadata  any         `json:"metadata,omitempty"`
}

// shape gives an answer or an event of 1.0 the form of the request's version.
// What holds no noun of the protocol passes as it is.
func (c *call) shape(b binding, v any) any {
	if c.version != v03 {
		return v
	}
	switch v := v.(type) {
	case task.Task:
		return b.task(v)
	case task.Message:
		return b.message(v)
	case map[string]any:
		return b.wrapper(v)
	}
	return v
}

// wrapper translates what 1.0 names by a member. JSON-RPC of 0.3 has the object
// itself, with its kind.
func (b binding) wrapper(m map[string]any) any {
	named := func(name string, v any) any {
		if b == jsonRPC {
			return v
		}
		return map[string]any{name: v}
	}
	if t, ok := m["task"].(task.Task); ok {
		return named("task", b.task(t))
	}
	if msg, ok := m["message"].(task.Message); ok {
		return named("message", b.message(msg))
	}
	if u, ok := m["statusUpdate"].(map[string]any); ok {
		return named("statusUpdate", b.statusUpdate(u))
	}
	if u, ok := m["artifactUpdate"].(map[string]any); ok {
		return named("artifactUpdate", b.artifactUpdate(u))
	}
	if list, ok := m["tasks"].([]task.Task); ok {
		tasks := make([]oldTask, 0, len(list))
		for _, t := range list {
			tasks = append(tasks, b.task(t))
		}
		return map[string]any{"tasks": tasks, "nextPageToken": m["nextPageToken"]}
	}
	return m
}

func (b binding) kind(name string) string {
	if b == jsonRPC {
		return name
	}
	return ""
}

// state spells a state: "input-required" on JSON-RPC; on HTTP+JSON as in 1.0,
// but for the second L.
func (b binding) state(s task.State) string {
	switch {
	case b == httpJSON && s == task.Canceled:
		return "TASK_STATE_CANCELLED"
	case b == httpJSON:
		return string(s)
	case !s.Valid():
		return "unknown"
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(s), "TASK_STATE_")), "_", "-")
}

func (b binding) role(r task.Role) string {
	if b == httpJSON {
		return string(r)
	}
	return strings.ToLower(strings.TrimPrefix(string(r), "ROLE_"))
}

func (b binding) task(t task.Task) oldTask {
	old := oldTask{
		Kind: b.kind("task"), ID: t.ID, ContextID: t.ContextID, Status: b.status(t.Status), Metadata: t.Metadata,
	}
	for _, a := range t.Artifacts {
		old.Artifacts = append(old.Artifacts, b.artifact(a))
	}
	for _, m := range t.History {
		old.History = append(old.History, b.message(m))
	}
	return old
}

func (b binding) status(s task.Status) oldStatus {
	old := oldStatus{State: b.state(s.State), Timestamp: s.Timestamp}
	if s.Message != nil {
		m := b.message(*s.Message)
		old.Message = &m
	}
	return old
}

func (b binding) message(m task.Message) oldMessage {
	old := oldMessage{
		Kind: b.kind("message"), MessageID: m.MessageID, ContextID: m.ContextID, TaskID: m.TaskID, Role: b.role(m.Role),
		Metadata: m.Metadata, Extensions: m.Extensions, ReferenceTaskIDs: m.ReferenceTaskIDs,
	}
	if b == jsonRPC {
		old.Parts = b.parts(m.Parts)
	} else {
		old.Content = b.parts(m.Parts)
	}
	return old
}

func (b binding) artifact(a task.Artifact) oldArtifact {
	return oldArtifact{
		ArtifactID: a.ArtifactID, Name: a.Name, Description: a.Description, Parts: b.parts(a.Parts),
		Metadata: a.Metadata, Extensions: a.Extensions,
	}
}

func (b binding) parts(list []task.Part) []oldPart {
	old := make([]oldPart, 0, len(list))
	for _, p := range list {
		old = append(old, b.part(p))
	}
	return old
}

func (b binding) part(p task.Part) oldPart {
	old := oldPart{Metadata: p.Metadata}
	switch {
	case p.Text != nil:
		old.Kind, old.Text = b.kind("text"), p.Text
	case p.Data != nil:
		old.Kind = b.kind("data")
		old.Data, old.Metadata = oldData(p)
		if b == httpJSON {
			old.Data = wrap("data", old.Data)
		}
	default:
		old.Kind, old.File = b.kind("file"), b.file(p)
	}
	return old
}

func (b binding) file(p task.Part) *oldFile {
	f := &oldFile{Name: p.Filename, MimeType: p.MediaType}
	if p.URL != nil {
		if b == jsonRPC {
			f.URI = p.URL
		} else {
			f.FileWithURI = p.URL
		}
		return f
	}
	text := toBase64(p.Raw)
	if b == jsonRPC {
		f.Bytes = &text
	} else {
		f.FileWithBytes = &text
	}
	return f
}

// oldData is the content of a data part of 0.3, which must be an object.
func oldData(p task.Part) (json.RawMessage, task.Metadata) {
	if bytes.HasPrefix(bytes.TrimSpace(p.Data), []byte("{")) {
		return p.Data, p.Metadata
	}
	return wrap(wrappedValue, p.Data), p.Metadata.Merge(task.Metadata{wrappedMark: json.RawMessage("true")})
}

// wrap makes an object of one member; name needs no escaping.
func wrap(name string, v json.RawMessage) json.RawMessage {
	return json.RawMessage(`{"` + name + `":` + string(v) + `}`)
}

// statusUpdate says with final what 1.0 says by closing the stream.
func (b binding) statusUpdate(u map[string]any) any {
	s, _ := u["status"].(task.Status)
	return oldStatusUpdate{
		Kind: b.kind("status-update"), TaskID: u["taskId"], ContextID: u["contextId"], Status: b.status(s),
		Final: s.State.Terminal() || s.State.Interrupted(), Metadata: u["metadata"],
	}
}

func (b binding) artifactUpdate(u map[string]any) any {
	a, _ := u["artifact"].(task.Artifact)
	return oldArtifactUpdate{
		Kind: b.kind("artifact-update"), TaskID: u["taskId"], ContextID: u["contextId"], Artifact: b.artifact(a),
		Append: u["append"], LastChunk: u["lastChunk"], Metadata: u["metadata"],
	}
}
