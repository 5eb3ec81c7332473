package serve

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// clockTolerance is how far the guest's clock may be off before it is stepped.
const clockTolerance = time.Second

// Hello tells the host who answers. A host that asks for another instance is
// refused before anything is changed.
func (s *service) Hello(_ context.Context, req *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	if id := req.GetInstanceId(); id != "" && id != s.config.InstanceID {
		return nil, status.Errorf(codes.FailedPrecondition, "cannot answer for instance %q: this is %q", id, s.config.InstanceID)
	}
	if !slices.Contains(req.GetProtocolVersions(), agentv1.ProtocolVersion) {
		return nil, status.Errorf(codes.FailedPrecondition,
			"cannot agree on a protocol: the host speaks version %s, this agent %d",
			strings.Trim(fmt.Sprint(req.GetProtocolVersions()), "[]"), agentv1.ProtocolVersion)
	}
	if err := s.stepClock(req.GetHostTime()); err != nil {
		s.config.Log.Warn("cannot set the clock", "error", err)
	}
	up, err := sinceKernel()
	if err != nil {
		return nil, toStatus(err)
	}
	return &agentv1.HelloResponse{
		ProtocolVersion: agentv1.ProtocolVersion,
		AgentVersion:    s.config.Version,
		InstanceId:      s.config.InstanceID,
		BootNonce:       s.nonce,
		Uptime:          durationpb.New(up),
		Kernel:          kernelRelease(),
		OsRelease:       prettyName(),
		Containment:     s.table.Containment(),
		BootMarks:       s.config.Marks,
	}, nil
}

func (s *service) stepClock(host *timestamppb.Timestamp) error {
	if s.config.SetClock == nil || host == nil {
		return nil
	}
	if err := host.CheckValid(); err != nil {
		return err
	}
	now := host.AsTime()
	if time.Until(now).Abs() <= clockTolerance {
		return nil
	}
	return s.config.SetClock(now)
}

// sinceKernel is the time since the kernel started, suspension included.
func sinceKernel() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// prettyName reads PRETTY_NAME of /etc/os-release, which may be missing.
func prettyName() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil || len(data) > 64<<10 {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.ToValidUTF8(strings.Trim(value, `"'`), "?")
		}
	}
	return ""
}
