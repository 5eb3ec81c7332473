package serve

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
)

// StartRun starts one bounded process.
func (s *service) StartRun(ctx context.Context, req *agentv1.StartRunRequest) (*agentv1.RunState, error) {
	state, err := s.table.Start(ctx, req.GetRunId(), req.GetSpec())
	return state, toStatus(err)
}

// CancelRun starts the kill ladder of a run.
func (s *service) CancelRun(_ context.Context, req *agentv1.CancelRunRequest) (*agentv1.CancelRunResponse, error) {
	if err := s.table.Cancel(req.GetRunId(), req.GetGrace()); err != nil {
		return nil, toStatus(err)
	}
	return &agentv1.CancelRunResponse{}, nil
}

// ReleaseRun forgets a run that has ended.
func (s *service) ReleaseRun(_ context.Context, req *agentv1.ReleaseRunRequest) (*agentv1.ReleaseRunResponse, error) {
	if err := s.table.Release(req.GetRunId()); err != nil {
		return nil, toStatus(err)
	}
	return &agentv1.ReleaseRunResponse{}, nil
}

// ListRuns lists all runs the agent knows.
func (s *service) ListRuns(context.Context, *agentv1.ListRunsRequest) (*agentv1.ListRunsResponse, error) {
	return &agentv1.ListRunsResponse{Runs: s.table.List()}, nil
}

// AttachRun follows a run and feeds it.
func (s *service) AttachRun(stream agentv1.Agent_AttachRunServer) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetAttach() == nil {
		return status.Error(codes.InvalidArgument, "cannot attach: the first request must be attach")
	}
	if err != nil {
		return err
	}
	run, err := s.table.Get(first.GetAttach().GetRunId())
	if err != nil {
		return toStatus(err)
	}
	a, state, err := run.Attach(first.GetAttach().GetAfterSeq())
	if err != nil {
		return toStatus(err)
	}
	defer a.Close()
	if err := stream.Send(&agentv1.AttachResponse{Response: &agentv1.AttachResponse_Attached{Attached: state}}); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(stream.Context())
	defer fail(nil)
	s.receivers.Go(func() { receive(stream, a, fail) })
	for {
		next, err := a.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, context.Canceled) {
			err = context.Cause(ctx) // what receive has found, if it did
		}
		if err != nil {
			return toStatus(err)
		}
		if err := stream.Send(next); err != nil {
			return err
		}
	}
}

// receive takes what the host sends along an attachment. A host that has
// nothing more to say may still listen.
func receive(stream agentv1.Agent_AttachRunServer, a *command.Attachment, fail context.CancelCauseFunc) {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = apply(req, a)
		}
		if err != nil {
			fail(err)
			return
		}
	}
}

func apply(req *agentv1.AttachRequest, a *command.Attachment) error {
	switch r := req.GetRequest().(type) {
	case *agentv1.AttachRequest_Ack:
		return a.Ack(r.Ack.GetSeq())
	case *agentv1.AttachRequest_Stdin:
		return a.Input(r.Stdin.GetOffset(), r.Stdin.GetData(), r.Stdin.GetEof())
	default:
		return status.Error(codes.InvalidArgument, "cannot use request: attach comes first and once, then ack and stdin")
	}
}
