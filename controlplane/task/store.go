package task

import "context"

// Journal is the writing side of a store. Every method is one durable
// transaction: when it returns nil the change survives the death of the
// process and of the host. Move, Output and Released act for who carries tasks
// out, on tasks it has; only what a caller asks for takes a scope.
type Journal interface {
	// Create stores a task in state submitted with its run.
	Create(ctx context.Context, n New) (Record, error)
	// Move changes the status. ErrTerminal and ErrConflict say why not.
	Move(ctx context.Context, id string, t Transition) (Record, error)
	// Output appends chunks and the progress they belong to.
	Output(ctx context.Context, id string, chunks []Chunk, p Progress) error
	// RequestCancel marks the run of a task in scope as to be cancelled.
	// ErrTerminal if the task has ended.
	RequestCancel(ctx context.Context, s Scope, id string) error
	// Released notes that the guest has forgotten the run.
	Released(ctx context.Context, id string) error
}

// Runs is what a starting engine reads, of all tenants.
type Runs interface {
	Run(ctx context.Context, taskID string) (Run, error)
	// OpenRuns lists the runs of unfinished tasks and those not released.
	OpenRuns(ctx context.Context) ([]Run, error)
}

// Reader is the reading side of a store. What is outside of a scope does not
// exist for who reads with it.
type Reader interface {
	Task(ctx context.Context, s Scope, id string, v View) (Record, error)
	// Events returns the events after a sequence number, in order: some, not
	// necessarily all, and none only if there are none. Their content is
	// bounded, so that a reader's memory is.
	Events(ctx context.Context, s Scope, id string, after uint64) ([]Event, error)
	List(ctx context.Context, s Scope, f Filter, v View) (Page, error)
	// ArtifactSize is the number of bytes stored so far and whether the
	// artifact is complete. ErrNotFound if there is no such artifact.
	ArtifactSize(ctx context.Context, s Scope, id, artifactID string) (size uint64, complete bool, err error)
	// ReadArtifact returns the next bytes from an offset, none at the end.
	ReadArtifact(ctx context.Context, s Scope, id, artifactID string, offset uint64) ([]byte, error)
}
