// Package vm is the contract between the control plane and whatever runs
// machines. A driver knows machines and nothing above them: no loadouts, no
// tasks, no tokens.
//
//	Create ── Start ── (running) ── Wait returns ── Close
//	             │                        ▲
//	             └──── daemon dies ── Recover
//
// A machine outlives the process that made it. Create returns a Handle that
// the caller stores before Start; a later process gives it to Recover.
// vmtest.Suite is the definition of done for a driver.
package vm

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// ErrGone is returned by Recover for a machine that no longer exists, and by
// Start and Dial for one that has ended.
var ErrGone = errors.New("machine is gone")

// ErrUnavailable is returned by Create when the driver cannot make machines
// on this host; Capabilities says why.
var ErrUnavailable = errors.New("driver is not available")

// Driver makes machines and finds them again. Safe for concurrent use.
type Driver interface {
	// Capabilities says what the driver can do on this host. Cheap after the
	// first call; never fails because the driver is unavailable, says so.
	Capabilities(ctx context.Context) (Capabilities, error)
	// Create prepares everything a machine needs on disk and starts nothing.
	// It is idempotent by Spec.ID. A failed Create leaves nothing behind.
	Create(ctx context.Context, spec Spec) (Instance, Handle, error)
	// Recover takes a machine over from an earlier process, whether it runs
	// or has ended meanwhile. Proven by identity, not by pid alone. Returns
	// ErrGone when there is nothing left, not even files.
	Recover(ctx context.Context, h Handle) (Instance, error)
	// List returns every machine of this driver's state directory, running
	// or not, ours or orphaned, ordered by id.
	List(ctx context.Context) ([]Found, error)
	// Close detaches from all machines without touching them.
	Close() error
}

// Instance is one machine. Safe for concurrent use.
type Instance interface {
	// Start boots the machine and returns once it executes. The agent has
	// not answered by then. Starting a running machine is no error; one that
	// has ended is started anew from its disk.
	Start(ctx context.Context) error
	// Wait blocks until the machine has ended and says how. Several callers
	// may wait. An error means that ctx ended or the machine was never started.
	Wait(ctx context.Context) (Exit, error)
	// Dial connects to a vsock port of the guest. It fails fast when nobody
	// listens there yet: retrying is the caller's. ErrGone after the end.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// Diagnose gathers what a human needs when the machine misbehaves. It
	// never blocks on the machine for longer than ctx allows.
	Diagnose(ctx context.Context) Diagnosis
	// Close destroys the machine and removes everything of it. Idempotent.
	Close(ctx context.Context) error
}

// Pauser is implemented by instances that can be paused.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Stopper is implemented by instances that can be ended without being
// removed: power is cut at once, the disk stays.
type Stopper interface {
	Stop(ctx context.Context) error
}

// Console is implemented by instances whose console is a file of this host.
type Console interface {
	// ConsolePath is that file. It may be missing before the first start, is
	// appended to, and is cut to nothing when it has grown too long. What is
	// in it was written by the guest.
	ConsolePath() string
}

// Capabilities is what a driver can do on this host, as data.
type Capabilities struct {
	// Driver is the runtime/v1 provider name, such as "libvirt".
	Driver string
	// RuntimeKind is the runtime/v1 kind: "vm", "container" or "host".
	RuntimeKind string
	// Available is false when no machine can be made; Reason says why and
	// Remedy what command mends it.
	Available bool
	Reason    string
	Remedy    string
	// Accelerator is "kvm", "tcg" or "" where it means nothing;
	// AcceleratorReason says why it is not a faster one, AcceleratorRemedy what
	// command or step mends that.
	Accelerator       string
	AcceleratorReason string
	AcceleratorRemedy string
	// Vsock is how the host reaches the guest: "vhost-vsock" (kernel),
	// "vhost-user-vsock" (ours) or "unix".
	Vsock       string
	VsockReason string
	// Versions of what the driver stands on, such as "qemu" and "libvirt".
	Versions map[string]string
	// Operations are runtime/v1 capability identifiers.
	Operations []string
}

// Spec is everything a driver must know to make one machine. All files are
// verified by the caller and never written to.
type Spec struct {
	ID   instance.ID
	Name string
	// CPUs is the number of virtual CPUs, at least 1.
	CPUs int
	// Memory is the guest's RAM in bytes, a multiple of 1 MiB.
	Memory int64
	// Kernel is an uncompressed PVH vmlinux or a bzImage.
	Kernel string
	// Initramfs is the base; the driver appends BootConfig as a cpio segment.
	Initramfs string
	// KernelArgs are added to the driver's own.
	KernelArgs []string
	// RootDisk is the read-only qcow2 base of the machine's overlay.
	RootDisk string
	// DiskSize is the overlay's virtual size in bytes; 0 keeps the base's.
	DiskSize int64
	// BootConfig is the JSON of agentv1.BootConfig.
	BootConfig []byte
}

// Handle finds a machine again. Opaque to everyone but its driver; holds no
// secrets.
type Handle struct {
	Driver  string          `json:"driver"`
	Version int             `json:"version"`
	Data    json.RawMessage `json:"data"`
}

// Found is one machine seen by List.
type Found struct {
	ID     instance.ID
	Handle Handle
	// Running is true while the machine's processor may execute or is paused.
	Running bool
	// Note says what is odd about it, such as "files without a machine".
	Note string
}

// ExitReason is how a machine ended.
type ExitReason string

// The ways a machine ends.
const (
	ExitPowerOff  ExitReason = "poweroff"  // the guest cut the power
	ExitPanic     ExitReason = "panic"     // the guest's kernel gave up
	ExitKilled    ExitReason = "killed"    // the hypervisor died
	ExitDestroyed ExitReason = "destroyed" // by Stop or Close
	ExitUnknown   ExitReason = "unknown"   // ended while nobody watched
)

// Exit says how a machine ended.
type Exit struct {
	Reason ExitReason
	Detail string
}

// Diagnosis is what a human needs when a machine misbehaves.
type Diagnosis struct {
	// State is the hypervisor's own word for the machine's state; "running"
	// and "paused" mean just that.
	State string
	// Console is the end of the console, at most 64 KiB, made printable.
	Console string
	// Hypervisor is the end of the hypervisor's own log.
	Hypervisor string
	// Facts are driver details worth showing, such as "accelerator" or "pid".
	Facts map[string]string
	Since time.Time
}
