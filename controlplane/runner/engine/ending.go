package engine

import (
	"context"
	"errors"
	"fmt"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// ending is how a task ends.
type ending struct {
	state   task.State
	outcome task.Outcome
	text    string // for a human; empty for none
	cause   error  // for our log
}

// infrastructure is the end of a task whose command could not be dispatched, or
// whose end cannot be known. Details of this host stay in its log.
func infrastructure(reason task.Reason, err error) ending {
	text := map[task.Reason]string{
		task.ReasonDispatch:    "the command could not be started",
		task.ReasonRunLost:     "the machine was restarted or has lost the command; how it ended cannot be known",
		task.ReasonMachineGone: "the machine no longer exists; how the command ended cannot be known",
		task.ReasonUnreachable: "the machine did not answer; how the command ended cannot be known",
		task.ReasonProtocol:    "the agent in the machine broke the protocol; how the command ended cannot be known",
	}[reason]
	var f *instance.Fault
	if errors.As(err, &f) {
		if f.Blame == instance.Host {
			text += " (" + f.Code + ")"
		} else {
			text += ": " + f.Error()
		}
	}
	return ending{
		state:   task.Failed,
		outcome: task.Outcome{FailKind: task.Infrastructure, Reason: reason},
		text:    text, cause: err,
	}
}

// exitEnding maps the end of a command to the end of its task: exit code 0
// completes it, everything else the command did is a failure of the
// application, its own deadline and limits included, and what the command had
// no part in is a failure of the infrastructure.
func exitEnding(x *agentv1.Exited, overflow bool, limit uint64, cancelled bool) ending {
	o := task.Outcome{
		FailKind: task.Application, Signal: x.GetSignal(),
		StdoutBytes: x.GetStdoutBytes(), StderrBytes: x.GetStderrBytes(),
	}
	failed := func(r task.Reason, format string, args ...any) ending {
		o.Reason = r
		return ending{state: task.Failed, outcome: o, text: fmt.Sprintf(format, args...)}
	}
	switch x.GetCause() {
	case agentv1.Exited_CAUSE_EXITED, agentv1.Exited_CAUSE_SIGNALED:
		code := x.GetCode()
		o.ExitCode = &code
	case agentv1.Exited_CAUSE_UNSPECIFIED, agentv1.Exited_CAUSE_TIMEOUT, agentv1.Exited_CAUSE_CANCELED,
		agentv1.Exited_CAUSE_OOM, agentv1.Exited_CAUSE_LOST:
	}
	if overflow {
		return failed(task.ReasonOutputLimit, "the command wrote more than %d bytes and was ended; the output up to there is kept", limit)
	}
	switch x.GetCause() {
	case agentv1.Exited_CAUSE_EXITED:
		if x.GetCode() == 0 {
			o.FailKind, o.Reason = "", task.ReasonExit
			return ending{state: task.Completed, outcome: o}
		}
		return failed(task.ReasonExit, "the command exited with code %d", x.GetCode())
	case agentv1.Exited_CAUSE_SIGNALED:
		return failed(task.ReasonSignal, "the command was ended by signal %d", x.GetSignal())
	case agentv1.Exited_CAUSE_TIMEOUT:
		return failed(task.ReasonTimeout, "the command did not end within its timeout and was ended")
	case agentv1.Exited_CAUSE_OOM:
		return failed(task.ReasonOOM, "the command was ended because it used more memory than it may")
	case agentv1.Exited_CAUSE_CANCELED:
		if cancelled {
			o.FailKind, o.Reason = "", task.ReasonCanceled
			return ending{state: task.Canceled, outcome: o, text: "canceled on request; the command has ended"}
		}
		o.FailKind = task.Infrastructure
		return failed(task.ReasonCanceled, "the machine ended the command, which nobody had canceled; it may have been stopped")
	case agentv1.Exited_CAUSE_LOST, agentv1.Exited_CAUSE_UNSPECIFIED:
	}
	o.FailKind = task.Infrastructure
	return failed(task.ReasonRunLost, "the guest cannot say how the command ended")
}

// finish stores how the task ended and reports whether it is stored.
func (w *worker) finish(ctx context.Context, end ending) bool {
	out := &output{w: w, p: w.run.Progress}
	err := w.retry(ctx, "store output", func() error {
		err := out.flush(ctx)
		if errors.Is(err, task.ErrConflict) { // a write that seemed to fail did not
			r, err := w.e.cfg.Runs.Run(ctx, w.run.TaskID)
			if err != nil {
				return err
			}
			out.p = r.Progress
			return out.flush(ctx)
		}
		return err
	})
	if err != nil {
		return false
	}
	if end.outcome.StdoutBytes+end.outcome.StderrBytes == 0 {
		end.outcome.StdoutBytes, end.outcome.StderrBytes = out.p.Received[task.Stdout], out.p.Received[task.Stderr]
	}
	t := task.Transition{Status: task.Status{State: end.state}}
	err = w.retry(ctx, "end the task", func() (err error) {
		if t.Ends, err = w.ends(ctx); err != nil {
			return err
		}
		if t.Metadata, err = t.Metadata.Set(adaptercommand.URI, end.outcome); err != nil {
			return err
		}
		if t.Status.Message, err = w.says(end.text); err != nil {
			return err
		}
		return w.tryMove(ctx, t)
	})
	if err != nil {
		return false
	}
	w.e.cfg.Log.InfoContext(ctx, "task has ended", "task", w.rec.ID, "instance", w.run.InstanceID,
		"state", end.state, "fail_kind", end.outcome.FailKind, "reason", end.outcome.Reason, "cause", end.cause)
	return true
}

// move changes the task's status, however long it takes to be stored.
func (w *worker) move(ctx context.Context, t task.Transition) error {
	return w.retry(ctx, "change the task", func() error { return w.tryMove(ctx, t) })
}

func (w *worker) tryMove(ctx context.Context, t task.Transition) error {
	return w.change(ctx, t, func(ctx context.Context, t task.Transition) (task.Record, error) {
		return w.e.cfg.Journal.Move(ctx, w.rec.ID, t)
	})
}

// change has a change of the task's status stored and shows it.
func (w *worker) change(
	ctx context.Context, t task.Transition, store func(context.Context, task.Transition) (task.Record, error),
) error {
	t.Version = w.rec.Version
	t.Status.Timestamp = task.Stamp(w.e.cfg.Now())
	rec, err := store(ctx, t)
	if errors.Is(err, task.ErrConflict) { // a write that seemed to fail did not
		if now, rerr := w.e.cfg.Reader.Task(ctx, task.System(), w.rec.ID, task.View{Inline: -1}); rerr == nil {
			w.rec.Version = now.Version
		}
	}
	if err != nil {
		return err
	}
	w.rec = rec
	w.notify()
	return nil
}
