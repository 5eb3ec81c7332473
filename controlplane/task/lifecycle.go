package task

import "fmt"

// Terminal reports whether a task in this state can change no more.
func (s State) Terminal() bool {
	switch s {
	case Completed, Failed, Canceled, Rejected:
		return true
	case Submitted, Working, InputRequired, AuthRequired:
	}
	return false
}

// Interrupted reports whether the task waits for somebody outside.
func (s State) Interrupted() bool { return s == InputRequired || s == AuthRequired }

// Valid reports whether s is a state of the protocol.
func (s State) Valid() bool {
	switch s {
	case Submitted, Working, Completed, Failed, Canceled, InputRequired, Rejected, AuthRequired:
		return true
	}
	return false
}

// CheckMove reports whether a task may go from one state to another: nothing
// leaves a terminal state, and nothing returns to submitted. A task may be
// rejected at any time: at its start, or once it is known that it will not be
// done.
func CheckMove(from, to State) error {
	switch {
	case from.Terminal(): // first: it is the answer to every late writer
		return fmt.Errorf("cannot move task from %s to %s: %w", from, to, ErrTerminal)
	case !from.Valid():
		return fmt.Errorf("cannot move task from unknown state %q", from)
	case !to.Valid():
		return fmt.Errorf("cannot move task to unknown state %q", to)
	case to == Submitted:
		return fmt.Errorf("cannot move task from %s to %s: not a step of a task's life", from, to)
	}
	return nil
}

// FailKind says whose failure ended a task (adapter-command/v1, "Task State").
type FailKind string

// The two kinds of failure.
const (
	// Application: the command ran and did not succeed.
	Application FailKind = "application"
	// Infrastructure: the command could not be dispatched, or how it ended
	// cannot be known.
	Infrastructure FailKind = "infrastructure"
)

// Reason says in one word how a task ended.
type Reason string

// Reasons of an end.
const (
	ReasonExit        Reason = "exit"         // the command ended by itself
	ReasonSignal      Reason = "signal"       // by a signal not of our sending
	ReasonTimeout     Reason = "timeout"      // its own deadline passed
	ReasonOOM         Reason = "oom"          // its memory limit
	ReasonOutputLimit Reason = "output_limit" // it wrote more than is kept
	ReasonCanceled    Reason = "canceled"
	ReasonDispatch    Reason = "dispatch"     // it could not be started
	ReasonRunLost     Reason = "run_lost"     // the guest no longer knows it
	ReasonUnreachable Reason = "unreachable"  // the guest did not answer in time
	ReasonMachineGone Reason = "machine_gone" // the machine no longer exists
	ReasonProtocol    Reason = "protocol"     // the guest broke the link's rules
)

// Outcome is the machine-readable end of a task's command, shown in
// Task.metadata and in the metadata of the final status update under the URI of
// adapter-command/v1.
type Outcome struct {
	FailKind FailKind `json:"fail_kind,omitempty"`
	Reason   Reason   `json:"reason"`
	ExitCode *int32   `json:"exit_code,omitempty"`
	Signal   int32    `json:"signal,omitempty"`
	// Bytes of output the command wrote, as far as is known.
	StdoutBytes uint64 `json:"stdout_bytes"`
	StderrBytes uint64 `json:"stderr_bytes"`
}
