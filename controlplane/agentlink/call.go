package agentlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// call says what one unary call is.
type call struct {
	what    string // "start run", for errors
	special meanings
	// sameBoot refuses to repeat the call on a machine that was booted anew.
	sameBoot bool
}

// invoke makes a call and repeats it on the next connection when one breaks.
// Every call of the contract is idempotent, so that is safe.
func invoke[R any](ctx context.Context, l *Link, c call, f func(context.Context, agentv1.AgentClient) (R, error)) (R, error) {
	var zero R
	cctx, cancel := context.WithTimeout(ctx, l.opts.CallTimeout)
	defer cancel()
	b := newBackoff(l.opts.MaxBackoff)
	var nonce []byte
	connected := false
	for {
		s, err := l.session(cctx)
		switch {
		case err != nil && cctx.Err() != nil:
			return zero, ended(ctx, c.what, connected)
		case err != nil:
			return zero, fmt.Errorf("cannot %s: %w", c.what, err)
		}
		if c.sameBoot && nonce != nil && !bytes.Equal(nonce, s.hello.GetBootNonce()) {
			return zero, lostRun(c.what, "the machine was booted anew")
		}
		nonce, connected = s.hello.GetBootNonce(), true
		r, err := f(cctx, s.client)
		switch {
		case err == nil:
			return r, nil
		case cctx.Err() != nil:
			return zero, ended(ctx, c.what, true)
		case status.Code(err) == codes.DeadlineExceeded:
			// The agent knows the deadline and may find it past a moment
			// before we do. One that says so early is not answering either.
			<-cctx.Done()
			return zero, ended(ctx, c.what, true)
		case !isLost(err):
			return zero, statusFault(c.what, err, c.special)
		}
		s.kill()
		if b.wait(cctx) != nil {
			return zero, ended(ctx, c.what, false)
		}
	}
}

func lostRun(what, why string) error {
	return fault(instance.Guest, CodeRunLost, "", fmt.Errorf("cannot %s: %s: %w", what, why, ErrRunLost))
}

// StartRun starts a process, or answers the state of the run of that id.
func (l *Link) StartRun(ctx context.Context, runID string, spec *agentv1.RunSpec) (*agentv1.RunState, error) {
	what := fmt.Sprintf("start run %q", runID)
	req := &agentv1.StartRunRequest{RunId: runID, Spec: spec}
	if n := proto.Size(req); n > agentv1.MaxMessage {
		return nil, fault(instance.Caller, CodeInvalid, "pass large data as a file or as input",
			fmt.Errorf("cannot %s: request has %d bytes, at most %d are allowed", what, n, agentv1.MaxMessage))
	}
	c := call{what: what, sameBoot: true, special: meanings{
		codes.AlreadyExists: func(msg string) error {
			return fault(instance.Caller, CodeRunExists, "", fmt.Errorf("cannot %s: there is a different run of that id: %s", what, msg))
		},
		codes.FailedPrecondition: func(msg string) error {
			return fault(instance.Guest, CodeRunNotStarted, "check the program and its permissions in the machine",
				fmt.Errorf("cannot %s: %s", what, msg))
		},
	}}
	st, err := invoke(ctx, l, c, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.RunState, error) {
		return a.StartRun(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return st, checkState(st, runID)
}

// CancelRun starts the kill ladder of a run and does not wait for its end.
// A grace of 0 means the run's own. ErrRunLost: the agent does not know it.
func (l *Link) CancelRun(ctx context.Context, runID string, grace time.Duration) error {
	what := fmt.Sprintf("cancel run %q", runID)
	req := &agentv1.CancelRunRequest{RunId: runID}
	if grace > 0 {
		req.Grace = durationpb.New(grace)
	}
	c := call{what: what, special: meanings{
		codes.NotFound: func(string) error { return lostRun(what, "the agent does not know it") },
	}}
	_, err := invoke(ctx, l, c, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.CancelRunResponse, error) {
		return a.CancelRun(ctx, req)
	})
	return err
}

// ReleaseRun makes the agent forget a run that has ended. A run it does not
// know is released already.
func (l *Link) ReleaseRun(ctx context.Context, runID string) error {
	what := fmt.Sprintf("release run %q", runID)
	c := call{what: what, special: meanings{
		codes.NotFound: func(string) error { return nil },
		codes.FailedPrecondition: func(msg string) error {
			return fault(instance.Caller, CodeRunRunning, "cancel it first", fmt.Errorf("cannot %s: it has not ended: %s", what, msg))
		},
	}}
	_, err := invoke(ctx, l, c, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.ReleaseRunResponse, error) {
		return a.ReleaseRun(ctx, &agentv1.ReleaseRunRequest{RunId: runID})
	})
	return err
}

// ListRuns lists the runs the agent knows, ended ones included.
func (l *Link) ListRuns(ctx context.Context) ([]*agentv1.RunState, error) {
	r, err := invoke(ctx, l, call{what: "list runs"}, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.ListRunsResponse, error) {
		return a.ListRuns(ctx, &agentv1.ListRunsRequest{})
	})
	if err != nil {
		return nil, err
	}
	if n := len(r.GetRuns()); n > agentv1.MaxRuns {
		return nil, lie("%d runs, at most %d are allowed", n, agentv1.MaxRuns)
	}
	seen := make(map[string]bool, len(r.GetRuns()))
	for _, st := range r.GetRuns() {
		if err := checkState(st, ""); err != nil {
			return nil, err
		}
		if seen[st.GetRunId()] {
			return nil, lie("run %s is listed twice", guestText(st.GetRunId()))
		}
		seen[st.GetRunId()] = true
	}
	return r.GetRuns(), nil
}

// Stats asks for a snapshot of the machine as the guest sees it.
func (l *Link) Stats(ctx context.Context) (*agentv1.StatsResponse, error) {
	s, err := invoke(ctx, l, call{what: "get stats"}, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.StatsResponse, error) {
		return a.Stats(ctx, &agentv1.StatsRequest{})
	})
	if err != nil {
		return nil, err
	}
	return s, checkStats(s)
}

// PowerOff asks the guest to end the machine in order. It returns once the
// guest has agreed, or is gone already; the machine's end is the driver's to
// tell.
func (l *Link) PowerOff(ctx context.Context) error {
	_, err := invoke(ctx, l, call{what: "power off"}, func(ctx context.Context, a agentv1.AgentClient) (*agentv1.PowerOffResponse, error) {
		return a.PowerOff(ctx, &agentv1.PowerOffRequest{})
	})
	if errors.Is(err, vm.ErrGone) {
		return nil
	}
	return err
}
