package prompt

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// State is where a prompt is.
type State string

// The states of a prompt. It ends as Answered or Closed.
const (
	// Open: it waits for a reply.
	Open State = "open"
	// Claimed: one reply has it and is being delivered.
	Claimed State = "claimed"
	// Answered: the run has taken the reply's bytes.
	Answered State = "answered"
	// Closed: the task moved on without an answer.
	Closed State = "closed"
)

// ErrNotCurrent refuses a reply to a prompt that is unknown, answered, being
// answered or past, or that belongs to something else than the reply says.
var ErrNotCurrent = errors.New("the prompt is unknown or has been answered")

// Ref names a prompt and all it belongs to.
type Ref struct {
	PromptID   string
	TaskID     string
	ContextID  string
	InstanceID instance.ID
	RunID      string
}

// Record is a stored prompt.
type Record struct {
	Ref
	State    State
	Envelope json.RawMessage
	Deadline time.Time // zero for none
	// Start is the position of the answer in the run's input, Answer its bytes.
	Start  uint64
	Answer []byte
	// Seen is how much of each stream of output came before the answer was
	// claimed.
	Seen [2]uint64
}

// Dialogue is what was asked and answered in one task so far.
type Dialogue struct {
	// Asked counts the prompts.
	Asked int
	// Deadline is that of the newest prompt; zero if there is none.
	Deadline time.Time
	// Input is the run's whole input up to and without a claimed answer.
	Input []byte
	// Claimed is the prompt whose answer may have been delivered, if any.
	Claimed *Record
	// Seen is how much of the output came before the newest answer.
	Seen [2]uint64
}

// Store keeps prompts. Every method is one durable transaction. A task has at
// most one prompt that is open or claimed, and it belongs to one version of the
// task: any change of the task's status closes it. All but Claim act for who carries
// the task out.
type Store interface {
	// Raise moves a task to input-required and stores the prompt it asks.
	Raise(ctx context.Context, t task.Transition, p Record) (task.Record, error)
	// Claim gives the open prompt of a task in scope to one reply.
	// ErrNotCurrent to all others.
	Claim(ctx context.Context, s task.Scope, ref Ref, answer []byte, seen [2]uint64) error
	// Answered ends a claimed prompt, moves its task on and adds the turns to
	// the task's history.
	Answered(ctx context.Context, ref Ref, t task.Transition, turns []task.Message) (task.Record, error)
	// Restore opens a claimed prompt again if its task has not changed.
	// ErrNotCurrent otherwise.
	Restore(ctx context.Context, ref Ref) error
	// Dialogue reads what a run that is taken up again must know.
	Dialogue(ctx context.Context, taskID string) (Dialogue, error)
}
