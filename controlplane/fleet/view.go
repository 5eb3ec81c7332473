package fleet

import (
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// View is an instance as its owner sees it: a copy, never shared.
type View struct {
	ID      instance.ID
	Name    string
	Phase   instance.Phase
	Loadout string
	// LoadoutHash is the digest of the resolved loadout.
	LoadoutHash string
	// ImageRef is the pinned published reference, "qcow2://images/…@sha256:…";
	// empty for runtime kind "host".
	ImageRef string
	// Kind and Provider are the runtime/v1 names, such as "vm" and "libvirt".
	Kind     string
	Provider string
	// Accelerator is "kvm" or "tcg", AcceleratorReason why not a faster one.
	Accelerator       string
	AcceleratorReason string
	// Vsock is how the host reaches the guest.
	Vsock        string
	Capabilities []string
	CPUs         int
	Memory       int64 // bytes
	Labels       map[string]string
	Workspace    string
	Runners      []string
	// Guest is nil until the agent has answered.
	Guest *Guest
	// Fault is set while Phase is Failed, and while it is Stopped because the
	// guest cut its own power.
	Fault *instance.Fault
	// Health is what is wrong with a machine although its phase does not say
	// so, such as "agent.silent"; nil when all is well.
	Health *instance.Fault
	Tenant string
	// ExpiresAt is when the instance is stopped and removed; zero: never.
	ExpiresAt time.Time
	// Idle says what happens when nobody uses the machine; nil: nothing.
	Idle *Idle
	// LastActive is when the machine was last used; now while it is in use.
	LastActive time.Time
	// Resting is true while the machine is paused or stopped for being idle.
	Resting bool
	// Reason says in one word why it is in its phase: "request", "idle",
	// "expired", "used", "boot", or the code of a fault.
	Reason string
	// Restarts counts how often the machine was started after the first time.
	Restarts  int
	CreatedAt time.Time
	UpdatedAt time.Time
	// Generation grows with every change; it serves as the ETag.
	Generation int64
	Host       string
}

// Idle is what happens to a machine that nobody uses.
type Idle struct {
	// Timeout is how long nobody may use it.
	Timeout time.Duration
	// Action is "pause" or "stop".
	Action string
	// Wake brings it back when it is used again.
	Wake bool
}

// Guest is what the agent said about itself when it answered.
type Guest struct {
	AgentVersion string
	Kernel       string
	OS           string
	Containment  string
	AnsweredAt   time.Time
	// BootTime runs from the start of the hypervisor to the first answer.
	BootTime time.Duration
}

// Log is what a human reads when a machine misbehaves.
type Log struct {
	State      string
	Console    string
	Hypervisor string
	Facts      map[string]string
}

// HostFacts describe this host for show and doctor.
type HostFacts struct {
	Host      string
	Version   string
	StateDir  string
	ImageDir  string
	Providers []Provider
	Images    []Image
	Instances int
	// Checks are what doctor found, worst first.
	Checks []Check
}

// Provider is one driver on this host.
type Provider struct {
	Name              string
	Kind              string
	Default           bool
	Available         bool
	Reason            string
	Remedy            string
	Accelerator       string
	AcceleratorReason string
	AcceleratorRemedy string
	Vsock             string
	VsockReason       string
	Versions          map[string]string
	Operations        []string
}

// Image is one image in the store.
type Image struct {
	Name     string
	Ref      string
	Size     int64 // bytes of root disk, kernel and initramfs
	BuiltAt  time.Time
	Packages int
}

// Check is one line of doctor.
type Check struct {
	Name string
	// Status is "ok", "warning" or "error".
	Status string
	Detail string
	// Remedy is the command or step that mends it.
	Remedy string
}
