package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Codes of the faults of a machine.
const (
	codeEnded      = "machine.ended"
	codePoweredOff = "machine.powered_off"
	codeNoAnswer   = "agent.no_answer"
	codeLost       = "machine.lost"
)

// diagnoseTimeout bounds the gathering of a console tail for a fault.
const diagnoseTimeout = 5 * time.Second

func consoleOf(ctx context.Context, m vm.Instance) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnoseTimeout)
	defer cancel()
	return m.Diagnose(ctx).Console
}

func machineEnded(ctx context.Context, m vm.Instance, exit vm.Exit) error {
	code := codeEnded
	if exit.Reason == vm.ExitPowerOff || exit.Reason == vm.ExitDestroyed {
		code = codePoweredOff
	}
	err := fmt.Errorf("the machine ended: %s", exit.Reason)
	if exit.Detail != "" {
		err = fmt.Errorf("the machine ended: %s (%s)", exit.Reason, exit.Detail)
	}
	return &instance.Fault{
		Blame: instance.Guest, Code: code, Hint: "the end of its console says more: `sandboxctl logs`",
		Console: consoleOf(ctx, m), Err: err,
	}
}

func noAnswer(ctx context.Context, m vm.Instance, after time.Duration, last error) error {
	return &instance.Fault{
		Blame: instance.Guest, Code: codeNoAnswer,
		Hint:    "look at its console, or raise readiness.setup_timeout_seconds in the loadout",
		Console: consoleOf(ctx, m),
		Err:     fmt.Errorf("the agent did not answer within %s: %w", after, last),
	}
}

func bootFault(ctx context.Context, m vm.Instance, err error) error {
	var f *instance.Fault
	if errors.As(err, &f) {
		return err
	}
	return &instance.Fault{Blame: instance.Host, Code: "machine.start", Console: consoleOf(ctx, m), Err: err}
}

func lost(r Record) error {
	return &instance.Fault{
		Blame: instance.Host, Code: codeLost,
		Hint: fmt.Sprintf("remove it with `sandboxctl rm %s`", r.Name),
		Err:  fmt.Errorf("the machine of %q is gone, its disk too", r.Name),
	}
}

func unsupported(r Record, what string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "instance.unsupported",
		Err: fmt.Errorf("cannot %s %q: provider %q cannot do that", what, r.Name, r.Provider),
	}
}

// stepFault makes the failure of a step readable: which step, whose fault.
func stepFault(err error) error {
	var step *converge.StepError
	if !errors.As(err, &step) {
		return err
	}
	if errors.Is(step.Err, context.Canceled) {
		return &instance.Fault{Blame: instance.Caller, Code: CodeCanceled, Err: fmt.Errorf("cancelled during step %q", step.Step)}
	}
	f := *instance.AsFault(step.Err)
	f.Err = fmt.Errorf("step %q failed: %w", step.Step, f.Err)
	if step.UndoErr != nil {
		f.Err = fmt.Errorf("%w; and not all of it could be undone: %w", f.Err, step.UndoErr)
	}
	return &f
}

func guestOf(h *agentv1.HelloResponse, now time.Time, boot time.Duration) *Guest {
	g := &Guest{
		AgentVersion: printable(h.GetAgentVersion()),
		Kernel:       printable(h.GetKernel()),
		OS:           printable(h.GetOsRelease()),
		Containment:  printable(h.GetContainment()),
		AnsweredAt:   now,
		BootTime:     boot,
	}
	for i, m := range h.GetBootMarks() {
		if i == maxMarks {
			break
		}
		g.Marks = append(g.Marks, Mark{Name: printable(m.GetName()), Since: m.GetSinceKernel().AsDuration()})
	}
	return g
}

// maxMarks and maxWord bound what is kept of a guest's word about itself.
const (
	maxMarks = 32
	maxWord  = 128
)

// printable keeps printable ASCII and bounds the length: the guest wrote it,
// and it ends up on terminals and in logs.
func printable(s string) string {
	if len(s) > maxWord {
		s = s[:maxWord]
	}
	b := []byte(s)
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}
