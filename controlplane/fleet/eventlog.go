package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const (
	// recentEvents are kept in memory for those who follow closely.
	recentEvents = 4096
	// eventBatch bounds what is read from the store at once.
	eventBatch = 512
	// followStall is how long a follower may take no event before it is cut.
	followStall = time.Minute
)

// eventLog is the one way to the store for what must be in the log: it keeps
// the order of numbers and the order of telling the same. Followers read what
// they missed from memory or from the store, each at its own pace, so that
// none holds up another or those who write.
type eventLog struct {
	store Store
	now   func() time.Time

	writing sync.Mutex // held while a change is stored and told

	mu      sync.Mutex
	recent  []Event // ends with the newest
	last    uint64
	changed chan struct{} // closed and replaced with every event
}

func newEventLog(store Store, now func() time.Time) *eventLog {
	return &eventLog{store: store, now: now, changed: make(chan struct{})}
}

// load finds the end of the log.
func (l *eventLog) load(ctx context.Context) error {
	page, err := l.store.Events(ctx, 0, EventFilter{}, 1)
	if err != nil {
		return fmt.Errorf("cannot read the events: %w", err)
	}
	l.mu.Lock()
	l.last = page.Last
	l.mu.Unlock()
	return nil
}

// apply stores a change, and then tells its events.
func (l *eventLog) apply(ctx context.Context, c *Change) error {
	at := l.now()
	for i := range c.Events {
		c.Events[i].At = at
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.store.Apply(context.WithoutCancel(ctx), c); err != nil {
		return err
	}
	if len(c.Events) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent = append(l.recent, c.Events...)
	if len(l.recent) > 2*recentEvents {
		l.recent = append([]Event(nil), l.recent[len(l.recent)-recentEvents:]...)
	}
	l.last = c.Events[len(c.Events)-1].Seq
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// behind returns events behind a number from memory, at most a batch; ok is
// false when memory does not reach back that far.
func (l *eventLog) behind(after uint64) (events []Event, changed <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after >= l.last {
		return nil, l.changed, true
	}
	if len(l.recent) == 0 || l.recent[0].Seq > after+1 {
		return nil, l.changed, false
	}
	from := int(after + 1 - l.recent[0].Seq) //nolint:gosec // within recent
	to := min(len(l.recent), from+eventBatch)
	return l.recent[from:to:to], l.changed, true
}

// Events returns events behind a number from the store, oldest first, at most
// limit. A number that is no longer kept, or was never given, is the caller's
// fault "events.gone"; 0 is the beginning of what is kept.
func (f *Fleet) Events(ctx context.Context, after uint64, fl EventFilter, limit int) ([]Event, error) {
	if limit <= 0 || limit > eventBatch {
		limit = eventBatch
	}
	page, err := f.events.page(ctx, after, fl, limit)
	return page.Events, err
}

// LastEvent is the number of the newest event; 0 before the first.
func (f *Fleet) LastEvent() uint64 {
	f.events.mu.Lock()
	defer f.events.mu.Unlock()
	return f.events.last
}

func (l *eventLog) page(ctx context.Context, after uint64, fl EventFilter, limit int) (EventPage, error) {
	fl.Tenant = tenantOf(ctx, fl.Tenant)
	page, err := l.store.Events(ctx, after, fl, limit)
	if err != nil {
		return page, fmt.Errorf("cannot read the events: %w", err)
	}
	if after > page.Last || (after > 0 && after+1 < page.First) {
		return EventPage{}, eventsGone(after, page)
	}
	return page, nil
}

func eventsGone(after uint64, page EventPage) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "events.gone",
		Hint: "read the instances and operations anew, then follow from the newest event",
		Err:  fmt.Errorf("cannot go on behind event %d: the log now holds %d to %d", after, page.First, page.Last),
	}
}

// Follow sends the events behind a number, stored ones first and then each as
// it happens, until ctx ends. A receiver that takes nothing for a minute is
// cut: its channel is closed, and it can go on behind the last event it has.
func (f *Fleet) Follow(ctx context.Context, after uint64, fl EventFilter) (<-chan Event, error) {
	fl.Tenant = tenantOf(ctx, fl.Tenant)
	if _, err := f.events.page(ctx, after, fl, 1); err != nil {
		return nil, err
	}
	out := make(chan Event, 16)
	go func() { // ends with ctx, or when its receiver is too slow
		defer close(out)
		f.events.follow(ctx, after, fl, out)
	}()
	return out, nil
}

func (l *eventLog) follow(ctx context.Context, after uint64, fl EventFilter, out chan<- Event) {
	stall := time.NewTimer(followStall)
	defer stall.Stop()
	for {
		events, changed, ok := l.behind(after)
		if !ok {
			page, err := l.page(ctx, after, fl, eventBatch)
			if err != nil {
				return
			}
			events, after = page.Events, max(after, page.Read)
		}
		for _, e := range events {
			after = max(after, e.Seq)
			if !fl.Matches(e) {
				continue
			}
			select { // most of the time it has room
			case out <- e:
				continue
			default:
			}
			stall.Reset(followStall)
			select {
			case out <- e:
			case <-stall.C:
				return
			case <-ctx.Done():
				return
			}
		}
		if len(events) > 0 || !ok {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
