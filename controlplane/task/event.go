package task

import (
	"time"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Event is one entry of a task's log. Exactly one of Status and Chunk is set.
// Sequence numbers start at 1 and have no gaps; an event is stored before
// anybody can see it.
type Event struct {
	Seq    uint64
	Status *StatusEvent
	Chunk  *Chunk
}

// StatusEvent is a change of status.
type StatusEvent struct {
	Status   Status
	Metadata Metadata
}

// Chunk is the next bytes of an artifact. A text chunk ends on the border of a
// character, so that each can be shown by itself.
type Chunk struct {
	ArtifactID string
	Name       string
	Offset     uint64 // of Data in the artifact, in bytes
	Data       []byte
	// Form says which part Data is the content of; nil for output, whose bytes
	// say it.
	Form *Form
	// Last closes the artifact; Size and SHA256 are set. Without a Form, Data
	// is empty.
	Last   bool
	Size   uint64
	SHA256 string // lower-case hexadecimal
}

// Part is the chunk as content: what its form says; without one, text when it
// is UTF-8, raw bytes otherwise.
func (c Chunk) Part() Part {
	switch {
	case c.Form != nil:
		return c.Form.part(c.Data)
	case utf8.Valid(c.Data):
		return TextPart(string(c.Data))
	}
	return Part{Raw: c.Data, MediaType: "application/octet-stream"}
}

// Form is a part without its content.
type Form struct {
	Kind      Kind   `json:"kind"`
	Filename  string `json:"filename,omitempty"`
	MediaType string `json:"mediaType,omitempty"`
}

// Kind is the member of a part that has its content.
type Kind string

// The kinds of parts.
const (
	KindText Kind = "text"
	KindRaw  Kind = "raw"
	KindURL  Kind = "url"
	KindData Kind = "data"
)

// Content takes a part apart: what it holds, as bytes, and its form. The form
// is nil for a part that does not have exactly one kind of content.
func Content(p Part) (data []byte, form *Form) {
	kinds := 0
	form = &Form{Filename: p.Filename, MediaType: p.MediaType}
	take := func(there bool, kind Kind, content []byte) {
		if there {
			kinds++
			form.Kind, data = kind, content
		}
	}
	take(p.Raw != nil, KindRaw, p.Raw)
	take(p.Data != nil, KindData, p.Data)
	if p.Text != nil {
		take(true, KindText, []byte(*p.Text))
	}
	if p.URL != nil {
		take(true, KindURL, []byte(*p.URL))
	}
	if kinds != 1 {
		return nil, nil
	}
	return data, form
}

func (f Form) part(data []byte) Part {
	p := Part{Filename: f.Filename, MediaType: f.MediaType}
	s := string(data)
	switch f.Kind {
	case KindText:
		p.Text = &s
	case KindURL:
		p.URL = &s
	case KindData:
		p.Data = data
	case KindRaw:
		p.Raw = data
	}
	return p
}

// New is a task to be made: its first record, the message that asked for it
// and the run that will carry it out.
type New struct {
	ID         string
	ContextID  string
	InstanceID instance.ID
	Tenant     string // empty for the default tenant
	Owner      string
	Message    Message
	Metadata   Metadata
	Run        Run
	At         time.Time
}

// Streams of a run, as indexes.
const (
	Stdout = iota
	Stderr
	streams
)

// Run is the durable side of a command in a guest, or of a script.
type Run struct {
	TaskID     string
	InstanceID instance.ID
	RunID      string // known to the guest, lower-case UUID
	Runner     string
	Spec       []byte // agentv1.RunSpec in protobuf wire form
	// Script, a runner.Script in JSON, is performed instead of Spec. Nil: none.
	// Progress.AfterSeq counts the steps of it that have been performed.
	Script []byte
	Stdin  []byte // whole input; nil for none
	// Artifacts name the artifact of each stream.
	Artifacts [streams]string
	// Dispatched is set, durably, before the guest is first asked to start the
	// run; from then on it is attached to. It is started again only while the
	// guest of that very boot says that it never knew it.
	Dispatched      bool
	Boot            []byte // names the guest's boot at dispatch; nil if unknown
	CancelRequested bool
	// Released is set when the guest has forgotten the run.
	Released bool
	State    State // of the task
	Progress Progress
}

// Progress is how far the output of a run has been stored. It changes in the
// same transaction as the chunks it speaks of.
type Progress struct {
	AfterSeq uint64 // newest sequence number of the guest that is stored, or steps of a script
	// Received counts the bytes taken from each stream, Carry included.
	Received [streams]uint64
	// Carry holds the first bytes of a character whose rest has not come.
	Carry [streams][]byte
	// Overflow is set once output beyond the task's bound was refused.
	Overflow bool
}

// Transition is a change of a task's status.
type Transition struct {
	// Version is the version of the task the writer saw.
	Version  uint64
	Status   Status
	Metadata Metadata // merged into Task.metadata and shown on the event
	// Dispatched marks the run as dispatched, to the guest's Boot, in the same
	// transaction.
	Dispatched bool
	Boot       []byte
	// Ends close artifacts before the status changes.
	Ends []Chunk
	// Step, if not 0, is how many steps of the run's script have been performed
	// with this one.
	Step uint64
	// Script, if not nil, replaces the script of the run, to be performed from
	// its first step.
	Script []byte
	// Turns are added to the history.
	Turns []Message
}

// Filter selects tasks for a list, within its scope.
type Filter struct {
	InstanceID instance.ID
	ContextID  string
	State      State
	Since      time.Time // status timestamp at or after
	// After continues a list behind this place.
	After *Place
	Limit int
	// Bytes, if not 0, bounds what the tasks of a page hold together, as JSON:
	// the page ends early, but not before its first task.
	Bytes int
}

// Place is a position in a list, which goes from the newest status timestamp
// to the oldest and, within one, from the greatest id to the least.
type Place struct {
	StatusMillis int64
	ID           string
}

// Page is one page of a list.
type Page struct {
	Tasks []Record
	Next  *Place // nil at the end
	Total int
}

// View says how much of a task a reader wants.
type View struct {
	// History bounds the messages, newest kept; negative for all.
	History int
	// Inline bounds the bytes inlined per artifact; negative leaves the
	// artifacts out.
	Inline int
	// Consistent has a task that does not fit end where the first of its
	// artifacts must: it is shown as it was at that event, its LastSeq, and the
	// events behind that one bring all the rest, once.
	Consistent bool
}
