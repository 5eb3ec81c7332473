// Package runner says what turns a message into work: a Runner checks a message
// and prepares one bounded command for a guest, or a script that needs none, or
// refuses with the rules that were broken.
//
// Runners are pure. They reach no guest, store nothing and know no protocol
// but the part of the message that is theirs.
package runner

import (
	"fmt"
	"strings"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// MaxText bounds the text of a message that is given to a command, in bytes.
const MaxText = 64 << 10

// Machine is what a runner may know of the machine it prepares work for.
type Machine struct {
	ID instance.ID
	// Workspace is the absolute directory work happens in.
	Workspace string
	// User runs the commands; empty for the agent's own.
	User string
	// Env is the loadout's environment, given to every command.
	Env map[string]string
	// Runners are the names of those the loadout allows; the others refuse.
	Runners []string
}

// Request is one message that asks for work.
type Request struct {
	TaskID    string
	ContextID string
	Message   task.Message
	// Metadata came beside the message, not in it.
	Metadata task.Metadata
	Machine  Machine
	// Extensions are the URIs that were activated for the request.
	Extensions []string
}

// Command is what is to be done for a message: one bounded command and where
// its output goes, or a script. Exactly one of Spec and Script is set.
type Command struct {
	Spec *agentv1.RunSpec
	// Script is performed by the engine, in no guest.
	Script *Script
	// Stdin is the whole input; nil for none. A command whose Spec has an input
	// and that is given none here is asked for it while it runs.
	Stdin []byte
	// Artifacts name the artifact of task.Stdout and task.Stderr.
	Artifacts [2]string
}

// Runner turns messages into commands.
type Runner interface {
	// Name is the name loadouts allow the runner by.
	Name() string
	// Claims reports whether the request is meant for this runner, even if it
	// breaks its rules: what is claimed is never given to another one.
	Claims(req Request) bool
	// Prepare checks the request. The error is a *Refusal.
	Prepare(req Request) (*Command, error)
}

// RefusalKind says what is wrong with a refused request.
type RefusalKind int

// Kinds of refusals.
const (
	// Invalid: the request breaks rules; Violations name them.
	Invalid RefusalKind = iota + 1
	// Unsupported: this machine does not do that.
	Unsupported
	// ContentType: the parts of the message are of a kind that is not taken.
	ContentType
)

// Refusal is why a request is not carried out. It is the caller's fault.
type Refusal struct {
	Kind       RefusalKind
	Message    string
	Violations []Violation
}

// Violation is one broken rule of one field.
type Violation struct {
	Field       string
	Description string
}

func (r *Refusal) Error() string {
	if len(r.Violations) == 0 {
		return r.Message
	}
	rules := make([]string, 0, len(r.Violations))
	for _, v := range r.Violations {
		rules = append(rules, v.Field+": "+v.Description)
	}
	return fmt.Sprintf("%s: %s", r.Message, strings.Join(rules, "; "))
}

// Refuse makes a refusal for one broken rule.
func Refuse(message, field, format string, args ...any) *Refusal {
	return &Refusal{Kind: Invalid, Message: message, Violations: []Violation{{Field: field, Description: fmt.Sprintf(format, args...)}}}
}

// Text joins the text parts of a message by newlines and refuses other parts
// and too much text.
func Text(m task.Message) (string, error) {
	texts := make([]string, 0, len(m.Parts))
	size := 0
	for i, p := range m.Parts {
		if p.Text == nil {
			return "", &Refusal{
				Kind: ContentType, Message: "cannot take the message: only text parts are taken",
				Violations: []Violation{{Field: fmt.Sprintf("message.parts[%d]", i), Description: "is not a text part"}},
			}
		}
		size += len(*p.Text) + 1
		texts = append(texts, *p.Text)
	}
	if size-1 > MaxText {
		return "", Refuse("cannot take the message", "message.parts", "have %d bytes of text, at most %d are taken", size-1, MaxText)
	}
	return strings.Join(texts, "\n"), nil
}
