// Package echo answers a text message with the same text, carried through a
// real process in the guest: it proves the whole way there and back and is the
// default of a machine that has nothing better to do.
//
// It knows nothing of the guest but that cat exists.
package echo

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
)

// timeout is generous: the process does nothing, but its machine may be busy.
const timeout = time.Minute

// Runner is the echo runner.
type Runner struct{}

// Name implements runner.Runner.
func (Runner) Name() string { return "echo" }

// Claims implements runner.Runner: any message that nobody else claims.
func (Runner) Claims(runner.Request) bool { return true }

// Prepare implements runner.Runner. The text goes to the process's input, so
// that nothing in it can be taken for a command or an option.
func (Runner) Prepare(req runner.Request) (*runner.Command, error) {
	text, err := runner.Text(req.Message)
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, runner.Refuse("cannot echo the message", "message.parts", "must have text")
	}
	return &runner.Command{
		Spec: &agentv1.RunSpec{
			Argv: []string{"cat"}, Root: "/", WorkingDir: "/", User: req.Machine.User,
			Stdin: true, Timeout: durationpb.New(timeout),
		},
		Stdin:     []byte(text),
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}
