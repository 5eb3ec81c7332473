// Package adaptercommand is the runner of adapter-command/v1: it checks the
// envelope of a message against every rule of the extension and prepares the
// one command the extension allows.
//
// An envelope that is unsupported or unsafe is refused with the rules it
// broke; it never becomes another runner's work.
package adaptercommand

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// URI is the extension's identifier and the key of its envelope in
// Message.metadata.
const URI = extensions.AdapterCommand

// Environment of the command.
const (
	EnvMode       = "AIWG_A2A_ADAPTER_MODE"
	EnvMessage    = "AIWG_A2A_MESSAGE"
	EnvTaskID     = "AIWG_A2A_TASK_ID"
	EnvInstanceID = "AIWG_A2A_INSTANCE_ID"
)

// Runner is the adapter command runner.
type Runner struct{}

// Name implements runner.Runner.
func (Runner) Name() string { return "adapter-command" }

// Claims implements runner.Runner. Every spelling of the extension's name is
// claimed, so that a wrong version, or an envelope in the wrong place, is
// refused instead of being echoed.
func (Runner) Claims(req runner.Request) bool { return Claims(req.Message, req.Metadata) }

// Claims reports whether a message, or what was sent beside it, has an envelope
// of this extension, whatever its version and place.
func Claims(m task.Message, beside task.Metadata) bool {
	return strangeKey(m.Metadata) != "" || strangeKey(beside) != "" || strangePart(m.Parts) >= 0
}

// strangePart is the first part with an envelope in its metadata; -1 for none.
func strangePart(parts []task.Part) int {
	return slices.IndexFunc(parts, func(p task.Part) bool { return strangeKey(p.Metadata) != "" })
}

func strangeKey(m task.Metadata) string {
	if _, ok := m[URI]; ok {
		return URI
	}
	for k := range m {
		if named(k) {
			return k
		}
	}
	return ""
}

// named reports whether a key has the extension's name in it, in any spelling:
// adapter-command, adapter_command, adapterCommand.
func named(key string) bool {
	return strings.Contains(strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(key)), "adaptercommand")
}

// Prepare implements runner.Runner.
func (Runner) Prepare(req runner.Request) (*runner.Command, error) {
	raw, ok := req.Message.Metadata[URI]
	part := strangePart(req.Message.Parts)
	switch {
	case part >= 0:
		return nil, refuse(fmt.Sprintf("message.parts[%d].metadata", part), "the envelope belongs in message.metadata, not in a part's")
	case strangeKey(req.Metadata) != "":
		return nil, refuse("metadata", "the envelope belongs in message.metadata, not beside the message")
	case !ok:
		return nil, refuse("message.metadata", "unsupported version of the extension: the envelope's key must be "+URI)
	}
	for k := range req.Message.Metadata {
		if k != URI && named(k) {
			return nil, refuse("message.metadata", "must not hold two envelopes: the only key is "+URI)
		}
	}
	env, violations := parse(raw, req.Machine.Workspace, slices.Contains(req.Extensions, extensions.HITLPrompt))
	if len(violations) > 0 {
		return nil, &runner.Refusal{Kind: runner.Invalid, Message: refusal, Violations: violations}
	}
	text, err := runner.Text(req.Message)
	if err != nil {
		return nil, err
	}
	if strings.ContainsRune(text, 0) {
		return nil, refuse("message.parts", "text must not contain NUL, it becomes "+EnvMessage)
	}
	vars := make(map[string]string, len(req.Machine.Env)+4)
	maps.Copy(vars, req.Machine.Env)
	vars[EnvMode] = env.Mode
	vars[EnvMessage] = text
	vars[EnvTaskID] = req.TaskID
	vars[EnvInstanceID] = req.Machine.ID.String()
	size := 0
	for k, v := range vars {
		size += len(k) + len(v) + 2
	}
	if size > agentv1.MaxArgBytes {
		return nil, refuse("message.parts", "text does not fit into the command's environment beside the loadout's")
	}
	return &runner.Command{
		Spec: &agentv1.RunSpec{
			Argv: env.Command, Env: vars, Root: req.Machine.Workspace, WorkingDir: env.WorkingDir,
			User: req.Machine.User, Timeout: durationpb.New(time.Duration(env.TimeoutSeconds) * time.Second),
			Stdin: env.TextLine, // and nothing to read at first: what it asks is answered
		},
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}

const refusal = "cannot run the adapter command"

func refuse(field, description string) *runner.Refusal {
	return &runner.Refusal{Kind: runner.Invalid, Message: refusal, Violations: []runner.Violation{{Field: field, Description: description}}}
}
