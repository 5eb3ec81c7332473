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
	ID     instance.ID
	Tenant string
	Name   string
	Phase  instance.Phase
	// Reason says in one word why it is in its phase.
	Reason string
	// After is what follows the stop at work: instance.StartRequested or
	// instance.DeleteRequested; empty: nothing. While it runs,
	// instance.IdlePaused says that it is being paused for being idle.
	After instance.Event
	// Resting is true while it is paused or stopped because nobody used it.
	Resting bool
	// ExpiresAt is when it is stopped and removed; zero: never.
	ExpiresAt time.Time
	// Restarts counts the starts after the first.
	Restarts int
	Plan     plan.Plan
	// Provider is the driver that has the machine.
	Provider string
	// Handle finds the machine again; nil before there is one.
	Handle *vm.Handle
	// Fault is set while Phase is Failed, and while it is Stopped because the
	// guest cut its own power.
	Fault *instance.Fault
	// Guest is what the agent said when it last answered for the first time;
	// nil: it never has, so nothing in the machine is anybody's yet.
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

// enter moves a record to the phase in which work for a request begins.
func (r *Record) enter(req *Request, next instance.Phase) {
	r.Phase, r.Reason, r.After = next, req.Why, ""
	r.Resting = req.Event == instance.IdleStopped
	switch next {
	case instance.Stopping:
		switch req.Event {
		case instance.RestartRequested:
			r.After = instance.StartRequested
		case instance.Expired:
			r.After = instance.DeleteRequested
		}
	case instance.Starting:
		if r.Guest != nil {
			r.Restarts++
		}
	case instance.Deleting:
		return // the fault still says what was wrong with it
	case instance.Provisioning, instance.Running, instance.Paused, instance.Stopped, instance.Failed:
	}
	r.Fault = nil
}

// Renew moves its end; zero: never. A stop at work because its time was up goes
// on, but nothing is removed behind it.
func (r *Record) Renew(end time.Time) {
	r.ExpiresAt = end
	if r.Phase == instance.Stopping && r.After == instance.DeleteRequested {
		r.After = ""
	}
}

// expired reports whether its time is up, by the clock on the wall.
func (r *Record) expired(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && r.ExpiresAt.Sub(now.Round(0)) <= 0
}

// Note says why a record is stored, for the log of what happened.
type Note struct {
	// Operation is the id of the request it belongs to; may be empty.
	Operation string
	// Message is for people; may be empty.
	Message string
}

// Store keeps records. A phase is saved before it is acted on. Both calls also
// write to the log of what happened, in one step with the record.
type Store interface {
	// Save stores next, which was old until now.
	Save(ctx context.Context, old, next Record, n Note) error
	// Remove forgets a record. Idempotent.
	Remove(ctx context.Context, r Record, n Note) error
}
