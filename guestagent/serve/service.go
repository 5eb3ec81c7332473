// Package serve is the guest's end of the agent link: it listens where only
// the host can connect and answers the gRPC service of the agent contract.
//
// It turns requests into calls of command and workspace and their errors into
// gRPC codes. It must not know how processes are contained or paths resolved.
package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/identity"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/workspace"
)

// errorDomain names whose reasons the error details carry.
const errorDomain = "agent.agentic-sandbox.aiwg.io"

// Config is what the service must know of the machine it runs in.
type Config struct {
	// InstanceID is the id of the boot configuration.
	InstanceID string
	// Version is the build version of this agent.
	Version string
	// Marks are the phases of the machine's boot.
	Marks []*agentv1.BootMark
	// SetClock steps the machine's clock. Nil: the clock is not ours.
	SetClock func(now time.Time) error
	// Accounts is the directory of passwd and group. Empty: /etc.
	Accounts string
	// Log takes the few lines the agent has to say.
	Log *slog.Logger
}

// service implements the contract.
type service struct {
	agentv1.UnimplementedAgentServer

	config   Config
	nonce    []byte
	table    *command.Table
	powerOff func() // asks Server.Run to end, once

	// receivers are the goroutines that read from attachments: they end with
	// their connection's stream, which no handler can wait for.
	receivers sync.WaitGroup
}

// PowerOff ends the machine. Server.Run does it, after this reply.
func (s *service) PowerOff(context.Context, *agentv1.PowerOffRequest) (*agentv1.PowerOffResponse, error) {
	s.powerOff()
	return &agentv1.PowerOffResponse{}, nil
}

// toStatus is the one place where errors become gRPC codes.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var refusal *command.Refusal
	if errors.As(err, &refusal) {
		return detailed(refusalCode(refusal.Kind), refusal.Reason, refusal.Subject, err)
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, row := range []struct {
		is     error
		code   codes.Code
		reason string
	}{
		{context.Canceled, codes.Canceled, "CANCELED"},
		{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE"},
		{workspace.ErrOutside, codes.InvalidArgument, "PATH_OUTSIDE"},
		{workspace.ErrInvalid, codes.InvalidArgument, "PATH_INVALID"},
		{workspace.ErrTooLarge, codes.OutOfRange, "TOO_LARGE"},
		{workspace.ErrIncomplete, codes.DataLoss, "INCOMPLETE"},
		{identity.ErrNoUser, codes.InvalidArgument, command.ReasonUser},
		{fs.ErrNotExist, codes.NotFound, "NOT_FOUND"},
		{fs.ErrPermission, codes.PermissionDenied, "PERMISSION"},
		{syscall.ENOSPC, codes.ResourceExhausted, "DISK_FULL"},
		{syscall.EDQUOT, codes.ResourceExhausted, "DISK_FULL"},
		{syscall.ENOTDIR, codes.FailedPrecondition, "NOT_A_DIRECTORY"},
		{syscall.EISDIR, codes.FailedPrecondition, "IS_A_DIRECTORY"},
		{syscall.EROFS, codes.FailedPrecondition, "READ_ONLY"},
	} {
		if errors.Is(err, row.is) {
			return detailed(row.code, row.reason, "", err)
		}
	}
	return status.Error(codes.Internal, err.Error())
}

func refusalCode(kind command.Kind) codes.Code {
	switch kind {
	case command.Invalid:
		return codes.InvalidArgument
	case command.NotFound:
		return codes.NotFound
	case command.Conflict:
		return codes.AlreadyExists
	case command.Exhausted:
		return codes.ResourceExhausted
	case command.Precondition:
		return codes.FailedPrecondition
	case command.OutOfRange:
		return codes.OutOfRange
	case command.Superseded:
		return codes.Aborted
	default:
		return codes.Internal
	}
}

// detailed makes a status whose detail names the reason and its subject.
func detailed(code codes.Code, reason, subject string, err error) error {
	st := status.New(code, err.Error())
	info := &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
	if subject != "" {
		info.Metadata = map[string]string{"subject": subject}
	}
	with, detailErr := st.WithDetails(protoadapt.MessageV1Of(info))
	if detailErr != nil {
		return st.Err()
	}
	return with.Err()
}
