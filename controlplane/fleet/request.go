package fleet

import (
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

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

// OperationStates lists every state.
func OperationStates() []OperationState {
	return []OperationState{OperationPending, OperationRunning, OperationSucceeded, OperationFailed, OperationCanceled}
}

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
	Warnings []string
	Tenant   string
	// Steps are the marks of its journal, oldest first.
	Steps []OperationStep
	// Canceling is true once its end has been asked for.
	Canceling bool
	CreatedAt time.Time
	UpdatedAt time.Time
	EndedAt   time.Time // zero while it runs
}

// OperationStep is one mark of an operation's journal.
type OperationStep struct {
	Name string `json:"name"`
	// Mark is "began", "skipped", "did", "failed" or "undone".
	Mark string    `json:"mark"`
	At   time.Time `json:"at"`
	// Cause says why it failed.
	Cause string `json:"cause,omitempty"`
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
	// TTL is how long the instance lives before it is stopped and removed; 0
	// is the loadout's, or for ever.
	TTL time.Duration
	// Endless has it live for ever, whatever the loadout says.
	Endless bool
	// Tenant owns it; empty: the default tenant.
	Tenant string
}

// Filter narrows and pages a list. Zero fields do not, but Tenant, where empty
// means the default tenant.
type Filter struct {
	Tenant   string
	Phase    instance.Phase
	Selector Selector
	// After is the last instance of the page before; lists are ordered by id.
	After instance.ID
	Limit int // 0: all
}

// Page is part of a list of instances.
type Page struct {
	Views []View
	// Next is what After of the next page must be; empty on the last one.
	Next instance.ID
	// Total counts all that match, on all pages.
	Total int
}

// OperationFilter narrows and pages the list of operations, newest first. Zero
// fields do not, but Tenant, where empty means the default tenant.
type OperationFilter struct {
	Tenant   string
	Instance instance.ID
	State    OperationState
	Kind     string
	// Unended leaves those that still go on.
	Unended bool
	// After is the last operation of the page before.
	After string
	Limit int // 0: all that are kept
}

// OperationPage is part of a list of operations.
type OperationPage struct {
	Operations []Operation
	// Next is what After of the next page must be; empty on the last one.
	Next string
}

// Action is a change of a running or stopped instance.
type Action string

// The actions.
const (
	ActionStart   Action = "start"
	ActionStop    Action = "stop"
	ActionRestart Action = "restart"
	ActionPause   Action = "pause"
	ActionResume  Action = "resume"
)

// ActOptions say how an action is done.
type ActOptions struct {
	// Force cuts the power at once: the guest is not asked to end in order.
	Force bool
}

// Orphan is a machine, or files of one, that no instance knows.
type Orphan struct {
	Provider string
	ID       instance.ID
	// Name is empty where the driver does not tell it.
	Name    string
	Running bool
	// Note says what is odd about it.
	Note  string
	Since time.Time
	// RemoveAfter is when it is removed; zero: only by RemoveOrphan.
	RemoveAfter time.Time
}
