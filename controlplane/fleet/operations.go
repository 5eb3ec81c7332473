package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// operations is the book of long requests: every change is stored, then told
// to whoever watches. Those that go on are in memory too.
type operations struct {
	events *eventLog
	log    *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	live map[string]*liveOperation
}

type liveOperation struct {
	// changing is held while a change is stored, so that they keep their order.
	changing sync.Mutex

	op      Operation     // guarded by operations.mu, as the next
	changed chan struct{} // closed and replaced with every change
	unsaved *Event        // what could not be stored of the last change
}

// maxSteps bounds the journal kept with one operation.
const maxSteps = 64

func newOperations(events *eventLog, log *slog.Logger, now func() time.Time) *operations {
	return &operations{events: events, log: log, now: now, live: map[string]*liveOperation{}}
}

// load reads what earlier processes did not end, oldest first.
func (o *operations) load(ctx context.Context) ([]Operation, error) {
	page, err := o.events.store.Operations(ctx, OperationFilter{Unended: true})
	if err != nil {
		return nil, fmt.Errorf("cannot read the operations: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]Operation, 0, len(page.Operations))
	for _, op := range slices.Backward(page.Operations) {
		o.live[op.ID] = &liveOperation{op: op, changed: make(chan struct{})}
		all = append(all, op)
	}
	return all, nil
}

// draft makes an operation that is not stored yet.
func (o *operations) draft(ctx context.Context, kind, tenant string, of instance.ID, name string) (Operation, error) {
	id := takeOperationID(ctx)
	if id == "" {
		u, err := uuid.NewV7()
		if err != nil {
			return Operation{}, fmt.Errorf("cannot make operation id: %w", err)
		}
		id = u.String()
	}
	now := o.now()
	return Operation{
		ID: id, Kind: kind, Tenant: tenant, Instance: of, Name: name,
		State: OperationPending, CreatedAt: now, UpdatedAt: now,
	}, nil
}

func operationEvent(op Operation, kind string) Event {
	return Event{Tenant: op.Tenant, Type: kind, Instance: op.Instance, Name: op.Name, Operation: op.ID}
}

func createdEvent(op Operation) Event {
	e := operationEvent(op, EventOperationCreated)
	e.Message = op.Kind
	return e
}

// open stores a new operation.
func (o *operations) open(ctx context.Context, op Operation) error {
	if err := o.events.apply(ctx, &Change{Operation: &op, Events: []Event{createdEvent(op)}}); err != nil {
		return fmt.Errorf("cannot store operation: %w", err)
	}
	o.adopt(op)
	return nil
}

// adopt takes an operation that goes on into memory.
func (o *operations) adopt(op Operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.live[op.ID] = &liveOperation{op: op, changed: make(chan struct{})}
}

func (o *operations) find(id string) *liveOperation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.live[id]
}

// get returns an operation that goes on, or has just ended.
func (o *operations) get(id string) (Operation, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok := o.live[id]
	if !ok {
		return Operation{}, false
	}
	return l.op, true
}

// await waits for the end of an operation that goes on.
func (o *operations) await(ctx context.Context, id string) {
	for l := o.find(id); l != nil; {
		o.mu.Lock()
		done, changed := l.op.State.Done(), l.changed
		o.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// change stores and announces a change, with what it means. An ended operation
// never changes. A change that cannot be stored still counts, but for the
// journal: its error says that the next step must not begin.
func (o *operations) change(ctx context.Context, id string, f func(*Operation) Event) error {
	l := o.find(id)
	if l == nil {
		return nil
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	o.mu.Lock()
	op := l.op
	o.mu.Unlock()
	if op.State.Done() {
		return nil
	}
	op.Steps = append([]OperationStep(nil), op.Steps...)
	event := f(&op)
	op.UpdatedAt = o.now()
	err := o.events.apply(ctx, &Change{Operation: &op, Events: []Event{event}})
	if err != nil {
		o.log.ErrorContext(ctx, "cannot store operation", "operation", id, "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l.op, l.unsaved = op, nil
	if err != nil {
		l.unsaved = &event
	}
	close(l.changed)
	l.changed = make(chan struct{})
	if op.State.Done() && err == nil {
		delete(o.live, id) // the store has it; who watches has l
	}
	return err
}

// flush stores again what could not be stored when it changed.
func (o *operations) flush(ctx context.Context) {
	o.mu.Lock()
	var late []*liveOperation
	for _, l := range o.live {
		if l.unsaved != nil {
			late = append(late, l)
		}
	}
	o.mu.Unlock()
	for _, l := range late {
		o.flushOne(ctx, l)
	}
}

func (o *operations) flushOne(ctx context.Context, l *liveOperation) {
	l.changing.Lock()
	defer l.changing.Unlock()
	o.mu.Lock()
	op, event := l.op, l.unsaved
	o.mu.Unlock()
	if event == nil {
		return
	}
	if err := o.events.apply(ctx, &Change{Operation: &op, Events: []Event{*event}}); err != nil {
		return // told when it failed first
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l.unsaved = nil
	if op.State.Done() {
		delete(o.live, op.ID)
	}
}

// tracker follows one request for one operation.
type tracker struct {
	book *operations
	id   string
}

// Step implements supervise.Tracker. Percent never goes back.
func (t tracker) Step(ctx context.Context, s supervise.Step) error {
	return t.book.change(ctx, t.id, func(op *Operation) Event {
		op.State = OperationRunning
		op.Phase = s.Name
		op.Percent = max(op.Percent, s.Percent)
		step := OperationStep{Name: s.Name, Mark: s.Mark, At: t.book.now()}
		if s.Cause != nil {
			step.Cause = s.Cause.Error()
		}
		if op.Steps = append(op.Steps, step); len(op.Steps) > maxSteps {
			op.Steps = op.Steps[len(op.Steps)-maxSteps:]
		}
		e := operationEvent(*op, EventOperationChanged)
		e.Reason, e.Message = s.Mark, s.Name
		return e
	})
}

// End implements supervise.Tracker.
func (t tracker) End(ctx context.Context, err error) {
	var ended Operation
	_ = t.book.change(ctx, t.id, func(op *Operation) Event { // logged there
		defer func() { ended = *op }()
		op.EndedAt = t.book.now()
		switch f := instance.AsFault(err); {
		case err == nil:
			op.State, op.Percent = OperationSucceeded, 100
		case f.Code == supervise.CodeCanceled:
			op.State, op.Fault = OperationCanceled, f
		default:
			op.State, op.Fault = OperationFailed, f
		}
		e := operationEvent(*op, EventOperationEnded)
		e.Reason = string(op.State)
		if op.Fault != nil {
			e.Message = op.Fault.Error()
		}
		return e
	})
	t.book.logEnd(ctx, ended)
}

// logEnd writes one line for each operation; ones that were asked for and then
// taken back are no trouble.
func (o *operations) logEnd(ctx context.Context, op Operation) {
	if op.ID == "" {
		return // it had ended before
	}
	attrs := []slog.Attr{
		slog.String("operation", op.ID), slog.String("kind", op.Kind), slog.String("instance", op.Instance.String()),
		slog.String("name", op.Name), slog.String("state", string(op.State)), slog.Duration("took", op.EndedAt.Sub(op.CreatedAt)),
	}
	level := slog.LevelInfo
	if op.State == OperationFailed {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", op.Fault.Code), slog.Any("error", op.Fault))
	}
	o.log.LogAttrs(ctx, level, "operation ended", attrs...)
}

// Operation returns one operation.
func (f *Fleet) Operation(ctx context.Context, id string) (Operation, error) {
	tenant := tenantOf(ctx, "")
	if op, ok := f.ops.get(id); ok && op.Tenant == tenant {
		return op, nil
	}
	op, err := f.cfg.Store.Operation(ctx, tenant, id)
	if errors.Is(err, ErrNotFound) {
		return Operation{}, noOperation(id)
	}
	if err != nil {
		return Operation{}, fmt.Errorf("cannot read operation: %w", err)
	}
	return op, nil
}

// Operations returns one page of operations, newest first.
func (f *Fleet) Operations(ctx context.Context, filter OperationFilter) (OperationPage, error) {
	filter.Tenant = tenantOf(ctx, filter.Tenant)
	page, err := f.cfg.Store.Operations(ctx, filter)
	if err != nil {
		return OperationPage{}, fmt.Errorf("cannot list the operations: %w", err)
	}
	return page, nil
}

// Watch sends the operation as it is and then after every change, until it
// has ended or ctx does; then the channel is closed. A slow receiver misses
// intermediate changes, never the last one.
func (f *Fleet) Watch(ctx context.Context, id string) (<-chan Operation, error) {
	live := f.ops.find(id) // before the look at the store, lest it ends between the two
	out := make(chan Operation, 1)
	op, err := f.Operation(ctx, id)
	if err != nil {
		return nil, err
	}
	if live == nil {
		out <- op
		close(out)
		return out, nil
	}
	go func() { // ends with ctx or with the operation, whichever is first
		defer close(out)
		f.ops.watch(ctx, live, out)
	}()
	return out, nil
}

func (o *operations) watch(ctx context.Context, l *liveOperation, out chan<- Operation) {
	for {
		o.mu.Lock()
		op, changed := l.op, l.changed
		o.mu.Unlock()
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
}

func noOperation(id string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "operation.not_found",
		Hint: "`sandboxctl ops` lists the recent ones",
		Err:  fmt.Errorf("cannot find operation %q", id),
	}
}
