package fleet

import (
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// The types of events.
const (
	EventCreated   = "instance.created"
	EventPhase     = "instance.phase"     // Phase is the new one, Reason why
	EventDeleted   = "instance.deleted"   // nothing is left of it
	EventFault     = "instance.fault"     // Reason is the fault's code, Message its cause
	EventRecovered = "instance.recovered" // a fault of a running machine has gone
	EventRenewed   = "instance.renewed"
	EventLabels    = "instance.labels"

	EventOperationCreated = "operation.created" // Message is its kind
	// EventOperationChanged is one mark of the journal: Message is the step,
	// Reason the mark ("began", "did", "skipped", "failed", "undone"). It is
	// stored before the next action begins.
	EventOperationChanged = "operation.changed"
	EventOperationEnded   = "operation.ended" // Reason is its final state

	EventOrphan = "fleet.orphan" // Reason is "found", "gone" or "removed"
)

// EventTypes lists every type of event.
func EventTypes() []string {
	return []string{
		EventCreated, EventPhase, EventDeleted, EventFault, EventRecovered, EventRenewed, EventLabels,
		EventOperationCreated, EventOperationChanged, EventOperationEnded, EventOrphan,
	}
}

// Event is one thing that happened, in the log of the fleet.
type Event struct {
	// Seq counts from 1 without gaps and never starts anew.
	Seq    uint64
	At     time.Time
	Tenant string
	Type   string
	// Instance and Name are empty for events of no instance.
	Instance instance.ID
	Name     string
	// Phase is the instance's at that moment; may be empty.
	Phase instance.Phase
	// Operation is the id of the operation it belongs to; may be empty.
	Operation string
	// Reason is one word a program can tell by.
	Reason string
	// Message is for people, printable.
	Message string
}

// EventFilter narrows the log. Zero fields do not, but Tenant, where empty
// means the default tenant.
type EventFilter struct {
	Tenant   string
	Instance instance.ID
	Types    []string
}

// Matches reports whether an event passes.
func (f EventFilter) Matches(e Event) bool {
	return e.Tenant == tenantOr(f.Tenant) &&
		(f.Instance == "" || f.Instance == e.Instance) &&
		(len(f.Types) == 0 || slices.Contains(f.Types, e.Type))
}
