package fleet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// OperationStore keeps operations.
type OperationStore interface {
	SaveOperation(ctx context.Context, op Operation) error
	// Operations returns all of them, newest first.
	Operations(ctx context.Context) ([]Operation, error)
}

// operations is the book of long requests: every change is stored, then told
// to whoever watches.
type operations struct {
	store OperationStore
	log   *slog.Logger
	now   func() time.Time

	mu   sync.Mutex
	live map[string]*liveOperation
}

type liveOperation struct {
	op      Operation
	changed chan struct{} // closed and replaced with every change
}

// keepEnded bounds the ended operations kept in memory; the rest are in the store.
const keepEnded = 256

func newOperations(store OperationStore, log *slog.Logger, now func() time.Time) *operations {
	return &operations{store: store, log: log, now: now, live: map[string]*liveOperation{}}
}

// load reads what earlier processes left.
func (o *operations) load(ctx context.Context) error {
	ops, err := o.store.Operations(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the operations: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, op := range ops {
		if op.State.Done() && i >= keepEnded {
			continue
		}
		o.live[op.ID] = &liveOperation{op: op, changed: make(chan struct{})}
	}
	return nil
}

// unfinished returns the operations that an earlier process did not end.
func (o *operations) unfinished() []Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ops []Operation
	for _, l := range o.live {
		if !l.op.State.Done() {
			ops = append(ops, l.op)
		}
	}
	return ops
}

// open records a new operation.
func (o *operations) open(ctx context.Context, kind string, id instance.ID, name string) (Operation, error) {
	u, err := uuid.NewV7()
	if err != nil {
		return Operation{}, fmt.Errorf("cannot make operation id: %w", err)
	}
	now := o.now()
	op := Operation{
		ID: u.String(), Kind: kind, Instance: id, Name: name,
		State: OperationPending, CreatedAt: now, UpdatedAt: now,
	}
	if err := o.store.SaveOperation(ctx, op); err != nil {
		return Operation{}, fmt.Errorf("cannot store operation: %w", err)
	}
	o.mu.Lock()
	o.live[op.ID] = &liveOperation{op: op, changed: make(chan struct{})}
	o.forgetOld()
	o.mu.Unlock()
	return op, nil
}

// forgetOld drops the oldest ended operations from memory; o.mu is held.
func (o *operations) forgetOld() {
	if len(o.live) <= 2*keepEnded {
		return
	}
	var ended []Operation
	for _, l := range o.live {
		if l.op.State.Done() {
			ended = append(ended, l.op)
		}
	}
	slices.SortFunc(ended, func(a, b Operation) int { return cmp.Compare(a.ID, b.ID) })
	for _, op := range ended[:max(0, len(ended)-keepEnded)] {
		delete(o.live, op.ID)
	}
}

func (o *operations) get(id string) (Operation, <-chan struct{}, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok := o.live[id]
	if !ok {
		return Operation{}, nil, false
	}
	return l.op, l.changed, true
}

func (o *operations) list() []Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	ops := make([]Operation, 0, len(o.live))
	for _, l := range o.live {
		ops = append(ops, l.op)
	}
	slices.SortFunc(ops, func(a, b Operation) int { return cmp.Compare(b.ID, a.ID) })
	return ops
}

// change stores and announces a change. An ended operation never changes.
func (o *operations) change(ctx context.Context, id string, f func(*Operation)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok := o.live[id]
	if !ok || l.op.State.Done() {
		return
	}
	op := l.op
	f(&op)
	op.UpdatedAt = o.now()
	if err := o.store.SaveOperation(context.WithoutCancel(ctx), op); err != nil {
		o.log.ErrorContext(ctx, "cannot store operation", "operation", id, "error", err)
	}
	l.op = op
	close(l.changed)
	l.changed = make(chan struct{})
}

// tracker follows one request for one operation.
type tracker struct {
	book *operations
	id   string
}

// Step implements supervise.Tracker. Percent never goes back.
func (t tracker) Step(ctx context.Context, name string, percent int) {
	t.book.change(ctx, t.id, func(op *Operation) {
		op.State = OperationRunning
		op.Phase = name
		op.Percent = max(op.Percent, percent)
	})
}

// End implements supervise.Tracker.
func (t tracker) End(ctx context.Context, err error) {
	t.book.change(ctx, t.id, func(op *Operation) {
		op.EndedAt = t.book.now()
		switch f := instance.AsFault(err); {
		case err == nil:
			op.State, op.Percent = OperationSucceeded, 100
		case f.Code == "operation.canceled":
			op.State, op.Fault = OperationCanceled, f
		default:
			op.State, op.Fault = OperationFailed, f
		}
	})
}

// shared follows one piece of work for several operations that ask for it.
type shared []tracker

func (s shared) Step(ctx context.Context, name string, percent int) {
	for _, t := range s {
		t.Step(ctx, name, percent)
	}
}

func (s shared) End(ctx context.Context, err error) {
	for _, t := range s {
		t.End(ctx, err)
	}
}

// Operation returns one operation.
func (f *Fleet) Operation(_ context.Context, id string) (Operation, error) {
	op, _, ok := f.ops.get(id)
	if !ok {
		return Operation{}, noOperation(id)
	}
	return op, nil
}

// Operations returns the recent operations, newest first.
func (f *Fleet) Operations(context.Context) ([]Operation, error) {
	return f.ops.list(), nil
}

// Watch sends the operation as it is and then after every change, until it
// has ended or ctx does; then the channel is closed. A slow receiver misses
// intermediate changes, never the last one.
func (f *Fleet) Watch(ctx context.Context, id string) (<-chan Operation, error) {
	if _, _, ok := f.ops.get(id); !ok {
		return nil, noOperation(id)
	}
	out := make(chan Operation)
	go func() { // ends with ctx or with the operation, whichever is first
		defer close(out)
		for {
			op, changed, ok := f.ops.get(id)
			if !ok {
				return
			}
			select {
			case out <- op:
			case <-ctx.Done():
				return
			}
			if op.State.Done() {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func noOperation(id string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "operation.not_found",
		Hint: "`sandboxctl ops` lists the recent ones",
		Err:  fmt.Errorf("cannot find operation %q", id),
	}
}
