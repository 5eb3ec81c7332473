// Package plan turns a resolved loadout and an image into everything that is
// decided about one instance before anything is done. It is pure: no I/O, no
// clock, no randomness. A plan is stored with its instance, so that an
// instance is the same after a restart even when the catalog has changed.
package plan

import (
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Version is the version of Plan this code writes.
const Version = 1

// Plan is everything decided about one instance.
type Plan struct {
	Version int         `json:"version"`
	ID      instance.ID `json:"id"`
	Name    string      `json:"name"`

	Loadout     string `json:"loadout"`      // its metadata.name
	LoadoutHash string `json:"loadout_hash"` // of the resolved loadout

	// Image is the pinned reference, "name@sha256:<root disk>".
	Image   string  `json:"image"`
	Runtime Runtime `json:"runtime"`

	Machine   Machine            `json:"machine"`
	Boot      agentv1.BootConfig `json:"boot"`
	Workspace Workspace          `json:"workspace"`
	Env       map[string]string  `json:"env,omitempty"`
	Runners   []string           `json:"runners"`
	Agent     Agent              `json:"agent"`

	// SetupTimeout bounds the time from the start of the machine to the first
	// answer of its agent.
	SetupTimeout time.Duration `json:"setup_timeout"`
	// Idle is what happens when nobody uses the machine; nil: nothing.
	Idle *Idle `json:"idle,omitempty"`
	// Steps are what provisioning does, in order.
	Steps []Step `json:"steps"`
}

// Runtime is what the instance runs on, as it was when it was made: the
// AgentCard publishes it, and must not change under a running machine.
type Runtime struct {
	Kind              string   `json:"kind"`     // runtime/v1 runtime
	Provider          string   `json:"provider"` // runtime/v1 provider
	Accelerator       string   `json:"accelerator,omitempty"`
	AcceleratorReason string   `json:"accelerator_reason,omitempty"`
	Vsock             string   `json:"vsock,omitempty"`
	Capabilities      []string `json:"capabilities,omitempty"` // runtime/v1 capabilities
}

// Machine is what the hypervisor must give.
type Machine struct {
	CPUs     int   `json:"cpus"`
	Memory   int64 `json:"memory"`    // bytes
	DiskSize int64 `json:"disk_size"` // bytes; 0 keeps the image's
}

// Idle is what happens to a machine that nobody uses.
type Idle struct {
	Timeout time.Duration `json:"timeout"`
	Action  IdleAction    `json:"action"`
	// Wake brings the machine back when somebody wants to use it again.
	Wake bool `json:"wake"`
}

// IdleAction is what is done to an idle machine.
type IdleAction string

// The actions.
const (
	IdlePause IdleAction = "pause" // memory is kept
	IdleStop  IdleAction = "stop"  // the disk is kept
)

// Workspace is where runs work.
type Workspace struct {
	Path string `json:"path"`
	User string `json:"user"`
}

// Agent is what the AgentCard says of the instance.
type Agent struct {
	// User is the guest account that runs work; empty for the agent's own.
	User        string  `json:"user,omitempty"`
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Version     string  `json:"version"`
	Skills      []Skill `json:"skills"`
}

// Skill is one entry of AgentCard.skills.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Examples    []string `json:"examples,omitempty"`
}

// Step is one step of provisioning, as data.
type Step string

// The steps, in their order.
const (
	StepImage   Step = "image"   // the files are there and match their digests
	StepMachine Step = "machine" // disk, boot files and sockets exist
	StepBoot    Step = "boot"    // the machine executes
	StepAgent   Step = "agent"   // the agent has answered
)

// Percent is how much of provisioning is done once the step is.
func (s Step) Percent() int {
	switch s {
	case StepImage:
		return 10
	case StepMachine:
		return 25
	case StepBoot:
		return 45
	case StepAgent:
		return 100
	}
	return 0
}
