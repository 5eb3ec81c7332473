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
	codeEnded        = "machine.ended"    // nobody knows how
	codeKilled       = "machine.killed"   // the hypervisor was
	codePanicked     = "machine.panicked" // the guest's kernel
	codePoweredOff   = "machine.powered_off"
	codeLost         = "machine.lost"
	codeUnresponsive = "machine.unresponsive" // the hypervisor does not answer
	codeNoAnswer     = "agent.no_answer"      // never
	codeSilent       = "agent.silent"         // not any more
)

// diagnoseTimeout bounds the gathering of a console tail for a fault.
const diagnoseTimeout = 5 * time.Second

func consoleOf(ctx context.Context, m vm.Instance) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnoseTimeout)
	defer cancel()
	return m.Diagnose(ctx).Console
}

func machineEnded(ctx context.Context, m vm.Instance, r Record, exit vm.Exit) error {
	code, blame := codeEnded, instance.Guest
	switch exit.Reason {
	case vm.ExitPowerOff, vm.ExitDestroyed:
		code = codePoweredOff
	case vm.ExitPanic:
		code = codePanicked
	case vm.ExitKilled:
		code, blame = codeKilled, instance.Host
	case vm.ExitUnknown:
	}
	err := fmt.Errorf("the machine ended: %s", exit.Reason)
	if exit.Detail != "" {
		err = fmt.Errorf("the machine ended: %s (%s)", exit.Reason, exit.Detail)
	}
	return &instance.Fault{
		Blame: blame, Code: code, Console: consoleOf(ctx, m), Err: err,
		Hint: fmt.Sprintf("start it again with `sandboxctl start %s`; `sandboxctl logs %s` shows the end of its console", r.Name, r.Name),
	}
}

func noAnswer(ctx context.Context, m vm.Instance, r Record, after time.Duration, last error) error {
	return &instance.Fault{
		Blame: instance.Guest, Code: codeNoAnswer,
		Hint:    fmt.Sprintf("%s; `sandboxctl logs %s` shows the end of its console", raiseTimeout, r.Name),
		Console: consoleOf(ctx, m),
		Err:     fmt.Errorf("the agent did not answer within %s: %w", after, last),
	}
}

const raiseTimeout = "raise readiness.setup_timeout_seconds in the loadout if it needs longer"

// nothingLeft changes what is to be done about the failure of a create that
// has been undone: its machine is gone, and the end of its console is with the
// operation alone.
func nothingLeft(err error, operation string) error {
	var f *instance.Fault
	if operation == "" || !errors.As(err, &f) || f.Console == "" {
		return err
	}
	const form = "%s; `sandboxctl ops show %s` shows the end of its console"
	after := *f
	switch f.Code {
	case codeNoAnswer:
		after.Hint = fmt.Sprintf(form, raiseTimeout, operation)
	case codeEnded, codeKilled, codePanicked, codePoweredOff:
		after.Hint = fmt.Sprintf(form, "nothing is left of it, make it anew", operation)
	}
	return &after
}

// silentFault is that of a running machine whose agent does not answer.
func silentFault(r Record, after time.Duration, console string, last error) error {
	err := fmt.Errorf("the machine runs, but its agent has not answered for %s", after)
	if last != nil {
		err = fmt.Errorf("%w: %v", err, last)
	}
	return &instance.Fault{
		Blame: instance.Guest, Code: codeSilent, Console: console, Err: err,
		Hint: fmt.Sprintf("it may be busy or have hung: `sandboxctl logs %s` shows its console, "+
			"`sandboxctl stop --force %s` and then `sandboxctl start %s` begin it anew", r.Name, r.Name, r.Name),
	}
}

// hung is the fault of something that the hypervisor did not do in time.
func hung(ctx context.Context, m vm.Instance, r Record, verb string, err error) error {
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("cannot %s %q: %w", verb, r.Name, err)
	}
	return &instance.Fault{
		Blame: instance.Host, Code: codeUnresponsive, Console: consoleOf(ctx, m),
		Hint: fmt.Sprintf("cut its power with `sandboxctl stop --force %s`", r.Name),
		Err:  fmt.Errorf("cannot %s %q: its hypervisor does not answer: %w", verb, r.Name, err),
	}
}

func bootFault(ctx context.Context, m vm.Instance, err error) error {
	var f *instance.Fault
	if errors.As(err, &f) {
		return err
	}
	return &instance.Fault{
		Blame: instance.Host, Code: "machine.start", Console: consoleOf(ctx, m), Err: err,
		Hint: "`sandboxctl doctor` says what the provider lacks",
	}
}

// Lost is the fault of an instance whose machine and disk are not there.
func Lost(r Record) error {
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
func stepFault(ctx context.Context, err error) error {
	var step *converge.StepError
	if !errors.As(err, &step) {
		return err
	}
	if ctx.Err() != nil {
		return &instance.Fault{Blame: instance.Caller, Code: CodeCanceled, Err: fmt.Errorf("cancelled during step %q", step.Step)}
	}
	if errors.Is(step.Err, converge.ErrDetached) {
		return step
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
