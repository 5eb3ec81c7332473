package fleet

import (
	"context"
	"errors"
	"maps"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// Errors of a Store.
var (
	// ErrNameTaken is what Apply says to a second instance of a name.
	ErrNameTaken = errors.New("name is taken")
	// ErrNotFound is what Operation says of one that is not kept.
	ErrNotFound = errors.New("not found")
)

// Change is what a store keeps in one step: all of it or nothing.
type Change struct {
	// Insert is a new instance; ErrNameTaken if its tenant has one of its name.
	Insert *supervise.Record
	// Save is a changed instance. It is no error if it was removed meanwhile:
	// a report that crosses a removal must not bring it back.
	Save *supervise.Record
	// Remove is an instance that is no more. Idempotent.
	Remove *supervise.Record
	// Operation is new or changed.
	Operation *Operation
	// Events get their numbers when they are stored.
	Events []Event
}

// Store keeps instances, operations and the log of events. What a method that
// has returned has stored has reached the disk. Errors are faults of the host
// with codes such as "store.full" where an operator can act.
type Store interface {
	Apply(ctx context.Context, c *Change) error
	// Instances returns all instances of a tenant, ordered by id; of all
	// tenants if it is empty.
	Instances(ctx context.Context, tenant string) ([]supervise.Record, error)
	Operation(ctx context.Context, tenant, id string) (Operation, error)
	Operations(ctx context.Context, f OperationFilter) (OperationPage, error)
	// Events returns kept events behind a number, oldest first.
	Events(ctx context.Context, after uint64, f EventFilter, limit int) (EventPage, error)
}

// EventPage is part of the log of events.
type EventPage struct {
	Events []Event
	// First and Last are the oldest and newest number of the whole log, of all
	// tenants; 0 while it is empty.
	First, Last uint64
	// Read is the last number that was looked at, whether it passed the filter
	// or not.
	Read uint64
}

// Keeper is what reconciliation asks of a store.
type Keeper interface {
	// Adopted reports whether the store has been taken into use in this state
	// directory; Adopt says that it is.
	Adopted(ctx context.Context) (bool, error)
	Adopt(ctx context.Context) error
	// Check reports whether the store is sound and takes writes.
	Check(ctx context.Context) error
	// Orphans and SaveOrphans keep what is known of machines without an instance.
	Orphans(ctx context.Context) ([]Orphan, error)
	SaveOrphans(ctx context.Context, all []Orphan) error
}

// recorder is the store as supervisors see it: what they save becomes events
// as well.
type recorder struct{ log *eventLog }

// Save implements supervise.Store.
func (r recorder) Save(ctx context.Context, old, next supervise.Record, n supervise.Note) error {
	return r.log.apply(ctx, &Change{Save: &next, Events: eventsOf(old, next, n)})
}

// Remove implements supervise.Store.
func (r recorder) Remove(ctx context.Context, rec supervise.Record, n supervise.Note) error {
	e := eventOf(rec, EventDeleted, n)
	e.Reason = rec.Reason
	return r.log.apply(ctx, &Change{Remove: &rec, Events: []Event{e}})
}

func eventOf(r supervise.Record, kind string, n supervise.Note) Event {
	return Event{
		Tenant: r.Tenant, Type: kind, Instance: r.ID, Name: r.Name, Phase: r.Phase,
		Operation: n.Operation, Message: n.Message,
	}
}

// eventsOf says what a change of a record means.
func eventsOf(old, next supervise.Record, n supervise.Note) []Event {
	var all []Event
	if old.Phase != next.Phase {
		e := eventOf(next, EventPhase, n)
		e.Reason = next.Reason
		all = append(all, e)
	}
	if f := next.Fault; f != nil && (old.Fault == nil || old.Fault.Code != f.Code) {
		all = append(all, faultEvent(next, f, n))
	}
	if !old.ExpiresAt.Equal(next.ExpiresAt) {
		all = append(all, eventOf(next, EventRenewed, n))
	}
	if !maps.Equal(old.Labels, next.Labels) {
		all = append(all, eventOf(next, EventLabels, n))
	}
	return all
}

func faultEvent(r supervise.Record, f *instance.Fault, n supervise.Note) Event {
	e := eventOf(r, EventFault, n)
	e.Reason, e.Message = f.Code, f.Error()
	return e
}
