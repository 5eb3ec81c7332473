// Package agentv1 is the contract between the host and the agent inside one
// machine: agent.proto and its generated code, the limits both sides hold,
// and the boot configuration that reaches the agent before the link exists.
//
// The package is shared by both sides and imports neither.
package agentv1

import "time"

// Port is the AF_VSOCK port the agent listens on. It is below 1024, so that
// no unprivileged process in the guest can take it.
const Port uint32 = 512

// ProtocolVersion is the newest version of agent.proto this code speaks.
const ProtocolVersion uint32 = 1

// Limits both ends hold. The host also enforces them on what comes from the
// guest, which may be hostile.
const (
	// MaxChunk bounds one piece of output, input or file data, in bytes.
	MaxChunk = 64 << 10
	// MaxMessage bounds one gRPC message, in bytes.
	MaxMessage = 256 << 10
	// MaxArgs and MaxArgBytes bound argv and, separately, env.
	MaxArgs     = 1024
	MaxArgBytes = 128 << 10
	// MaxRuns bounds the runs an agent remembers, ended ones included.
	MaxRuns = 256
	// MinOutputBuffer, DefaultOutputBuffer and MaxOutputBuffer bound the
	// unacknowledged output kept for one run, in bytes.
	MinOutputBuffer     = MaxChunk
	DefaultOutputBuffer = 1 << 20
	MaxOutputBuffer     = 16 << 20
	// StdinWindow bounds the input a host may send beyond what the agent has
	// accepted, in bytes.
	StdinWindow = 256 << 10
	// MaxRunTimeout bounds RunSpec.timeout.
	MaxRunTimeout = 24 * time.Hour
	// DefaultKillGrace lies between SIGTERM and SIGKILL; MaxKillGrace bounds it.
	DefaultKillGrace = 5 * time.Second
	MaxKillGrace     = time.Minute
	// Linger is how long the children of a run may outlive its main process.
	Linger = 5 * time.Second
	// MaxArchiveBytes and MaxArchiveEntries bound what one archive unpacks to
	// when the request sets no bounds of its own.
	MaxArchiveBytes   = 8 << 30
	MaxArchiveEntries = 500_000
	// MaxPath bounds one path, in bytes.
	MaxPath = 4096
)
