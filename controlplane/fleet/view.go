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
	// Fault is set while Phase is Failed.
	Fault     *instance.Fault
	CreatedAt time.Time
	UpdatedAt time.Time
	// Generation grows with every change; it serves as the ETag.
	Generation int64
	Host       string
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

// OperationState is where a long request is.
type OperationState string

// The states of an operation.
const (
	OperationPending   OperationState = "pending"
	OperationRunning   OperationState = "running"
	OperationSucceeded OperationState = "succeeded"
	OperationFailed    OperationState = "failed"
	OperationCanceled  OperationState = "canceled"
)

// Done reports whether the operation has ended.
func (s OperationState) Done() bool {
	switch s {
	case OperationSucceeded, OperationFailed, OperationCanceled:
		return true
	case OperationPending, OperationRunning:
		return false
	}
	return false
}

// Operation is one long request: persisted, watchable, ended once.
type Operation struct {
	ID       string // UUIDv7
	Kind     string // "instance.create", "instance.delete", …
	Instance instance.ID
	Name     string // of the instance
	State    OperationState
	// Phase is the step at work, such as "image", "machine", "boot", "agent".
	Phase   string
	Percent int
	Fault   *instance.Fault
	// Warnings are things worth knowing that did not stop the operation.
	Warnings  []string
	CreatedAt time.Time
	UpdatedAt time.Time
	EndedAt   time.Time // zero while it runs
}

// Source is a loadout as the caller has it.
type Source struct {
	// Name is a catalog name when Data is empty, else the file name for errors.
	Name string
	Data []byte
	// Layers are the files that "extends" refers to, by reference; what is
	// missing here is looked up in the catalog.
	Layers map[string][]byte
}

// CreateRequest asks for one instance.
type CreateRequest struct {
	Name    string // empty: made from the loadout's name
	Loadout Source
	Labels  map[string]string
	Env     map[string]string // added to the loadout's, wins over it
}

// Filter narrows a list. Zero fields do not.
type Filter struct {
	Phase  instance.Phase
	Labels map[string]string
}

// Action is a change of a running or stopped instance.
type Action string

// The actions.
const (
	ActionStart  Action = "start"
	ActionStop   Action = "stop"
	ActionPause  Action = "pause"
	ActionResume Action = "resume"
)

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
