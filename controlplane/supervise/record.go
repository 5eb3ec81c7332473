package supervise

import (
	"context"
	"maps"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Record is all that is stored of one instance.
type Record struct {
	ID    instance.ID
	Name  string
	Phase instance.Phase
	Plan  plan.Plan
	// Provider is the driver that has the machine.
	Provider string
	// Handle finds the machine again; nil before there is one.
	Handle *vm.Handle
	Fault  *instance.Fault
	// Guest is what the agent said when it last answered for the first time.
	Guest     *Guest
	Labels    map[string]string
	CreatedAt time.Time
	UpdatedAt time.Time
	// Generation grows by one with every stored change.
	Generation int64
	Host       string
}

// Guest is what the agent said about itself.
type Guest struct {
	AgentVersion string        `json:"agent_version"`
	Kernel       string        `json:"kernel"`
	OS           string        `json:"os"`
	Containment  string        `json:"containment"`
	AnsweredAt   time.Time     `json:"answered_at"`
	BootTime     time.Duration `json:"boot_time"`
	Marks        []Mark        `json:"marks,omitempty"`
}

// Mark is one phase of the guest's boot.
type Mark struct {
	Name  string        `json:"name"`
	Since time.Duration `json:"since"` // since the kernel started
}

// clone returns a copy that shares nothing a holder may write to.
func (r Record) clone() Record {
	r.Labels = maps.Clone(r.Labels)
	if r.Handle != nil {
		h := *r.Handle
		r.Handle = &h
	}
	if r.Fault != nil {
		f := *r.Fault
		r.Fault = &f
	}
	if r.Guest != nil {
		g := *r.Guest
		r.Guest = &g
	}
	return r
}

// Store keeps records. A phase is saved before it is acted on.
type Store interface {
	Save(ctx context.Context, r Record) error
	Remove(ctx context.Context, id instance.ID) error
}
