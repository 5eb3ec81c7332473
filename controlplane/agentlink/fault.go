package agentlink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

var (
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("agent link is closed")
	// ErrRunLost says that the machine was booted anew or that the agent does
	// not know the run. How it ended will never be known.
	ErrRunLost = errors.New("run is lost")
	// ErrTakenOver says that somebody else attached to the run.
	ErrTakenOver = errors.New("run was taken over by another attachment")

	// errBroken says that one connection broke: the next one may do.
	errBroken = errors.New("connection to the agent broke")
)

// Codes of the faults this package returns (instance.Fault.Code).
const (
	CodeProtocol      = "agent.protocol_violation" // guest: it broke the contract or lied
	CodeUnresponsive  = "agent.unresponsive"       // guest: connected, but no answer in time
	CodeUnreachable   = "agent.unreachable"        // host: no connection in time
	CodeGone          = "machine.gone"             // guest: wraps vm.ErrGone
	CodeRefused       = "agent.refused"            // guest: it will not speak to us
	CodeWrongInstance = "agent.wrong_instance"     // guest: another machine answered
	CodeVersion       = "agent.version"            // guest: no common protocol version
	CodeInternal      = "agent.internal"           // guest: the agent failed
	CodeInvalid       = "agent.invalid_request"    // caller: the agent refused the request
	CodeBusy          = "agent.busy"               // host: a bound of the agent was reached
	CodeRunLost       = "run.lost"                 // guest
	CodeRunTakenOver  = "run.taken_over"           // host
	CodeRunExists     = "run.exists"               // caller: same id, other spec
	CodeRunNotStarted = "run.not_started"          // guest: no such program, not executable
	CodeRunRunning    = "run.running"              // caller: it has not ended yet
	CodeOutputGone    = "run.output_gone"          // caller: asked for acknowledged output
	CodeInput         = "run.input"                // caller: its Stdin could not be read
	CodeFileMissing   = "file.not_found"           // caller
	CodeFileTooLarge  = "file.too_large"           // caller
	CodeFileRefused   = "file.refused"             // guest: the agent could not do it
)

// maxGuestText bounds guest text that is quoted in an error.
const maxGuestText = 300

// guestText makes a string of the guest fit for an error: bounded and quoted.
func guestText(s string) string {
	if len(s) > maxGuestText {
		s = s[:maxGuestText] + "…"
	}
	return fmt.Sprintf("%q", s)
}

func fault(b instance.Blame, code, hint string, err error) *instance.Fault {
	return &instance.Fault{Blame: b, Code: code, Hint: hint, Err: err}
}

// lie is the fault of a guest that broke the contract.
func lie(format string, args ...any) error {
	return fault(instance.Guest, CodeProtocol, "the agent in the machine is broken or hostile; remove the machine",
		fmt.Errorf("agent broke the protocol: "+format, args...))
}

// isLost reports whether err means that the connection, not the call, failed.
// The caller has already excluded the end of its own context.
func isLost(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled:
		return true
	}
	return false
}

// Statuses that mean something else for one call than for the others.
type meanings map[codes.Code]func(msg string) error

// statusFault turns the answer of the agent into a fault. The text of the
// status comes from the guest and is only ever quoted.
func statusFault(what string, err error, special meanings) error {
	st := status.Convert(err)
	msg := guestText(st.Message())
	if f := special[st.Code()]; f != nil {
		return f(msg)
	}
	cause := fmt.Errorf("cannot %s: agent answered %s: %s", what, st.Code(), msg)
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		return fault(instance.Caller, CodeInvalid, "", cause)
	case codes.ResourceExhausted:
		if strings.Contains(st.Message(), "message larger than max") {
			return lie("its message is over the bound (%s)", msg)
		}
		return fault(instance.Host, CodeBusy, "release ended runs or wait for others", cause)
	default:
		return fault(instance.Guest, CodeInternal, "see the machine's console", cause)
	}
}

// ended explains a call that ended because a context did: the caller's own
// one is returned as it is, ours means that the guest did not answer.
func ended(ctx context.Context, what string, connected bool) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	if connected {
		return fault(instance.Guest, CodeUnresponsive, "the machine may hang; see its console",
			fmt.Errorf("cannot %s: agent did not answer in time", what))
	}
	return fault(instance.Host, CodeUnreachable, "see the machine's state and console",
		fmt.Errorf("cannot %s: no connection to the agent in time", what))
}
