package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// shelf is a store of events only; it keeps the newest few.
type shelf struct {
	Store
	mu    sync.Mutex
	keep  uint64
	all   []Event
	asked int
}

func (s *shelf) Apply(ctx context.Context, c *Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range c.Events {
		c.Events[i].Seq = s.last() + 1
		s.all = append(s.all, c.Events[i])
	}
	if n := uint64(len(s.all)); s.keep > 0 && n > s.keep {
		s.all = s.all[n-s.keep:]
	}
	return nil
}

func (s *shelf) last() uint64 {
	if len(s.all) == 0 {
		return 0
	}
	return s.all[len(s.all)-1].Seq
}

func (s *shelf) Events(_ context.Context, after uint64, f EventFilter, limit int) (EventPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	p := EventPage{Last: s.last(), Read: s.last()}
	if len(s.all) > 0 {
		p.First = s.all[0].Seq
	}
	for _, e := range s.all {
		if e.Seq > after && f.Matches(e) && len(p.Events) < limit {
			p.Events = append(p.Events, e)
		}
	}
	if len(p.Events) == limit {
		p.Read = p.Events[limit-1].Seq
	}
	return p, nil
}

// book is a fleet that has a log and nothing else.
func book(t *testing.T, s *shelf) *Fleet {
	t.Helper()
	f := &Fleet{events: newEventLog(s, time.Now)}
	if err := f.events.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *Fleet) write(t *testing.T, n int, tenants ...string) {
	t.Helper()
	for i := range n {
		e := Event{Tenant: tenants[i%len(tenants)], Type: EventLabels}
		if err := f.events.apply(t.Context(), &Change{Events: []Event{e}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFollowersSeeTheirTenantOnly: what is stored and what happens meanwhile,
// also when the filter names none.
func TestFollowersSeeTheirTenantOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		book(t, s).write(t, 20, instance.DefaultTenant, "other", "third") // of an earlier process
		f := book(t, s)
		seen := map[string]int{}
		for _, tenant := range []string{"", "other"} {
			ctx, cancel := context.WithCancel(WithTenant(t.Context(), tenant))
			events, err := f.Follow(ctx, 0, EventFilter{})
			if err != nil {
				t.Fatal(err)
			}
			f.write(t, 20, "other", instance.DefaultTenant, "third")
			synctest.Wait()
			for {
				select {
				case e := <-events:
					if e.Tenant != tenantOr(tenant) {
						t.Errorf("%q is told of %q", tenant, e.Tenant)
					}
					seen[tenant]++
					synctest.Wait()
					continue
				default:
				}
				break
			}
			cancel()
			synctest.Wait()
		}
		if seen[""] != 14 || seen["other"] != 7+7+7 {
			t.Errorf("told were %v", seen)
		}
	})
}

// TestSlowFollowerIsCut after a minute in which it takes nothing, and not while
// it takes one now and then.
func TestSlowFollowerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := book(t, &shelf{})
		events, err := f.Follow(t.Context(), 0, EventFilter{})
		if err != nil {
			t.Fatal(err)
		}
		f.write(t, 100, instance.DefaultTenant)
		last := uint64(0)
		for range 50 {
			<-time.After(followStall - time.Second)
			e, ok := <-events
			if !ok || e.Seq != last+1 {
				t.Fatalf("after %d came %d, %t", last, e.Seq, ok)
			}
			last = e.Seq
		}
		<-time.After(followStall + time.Second)
		n := 0
		for range events {
			n++
		}
		if n > cap(events)+1 {
			t.Errorf("%d more were sent", n)
		}
	})
}

// TestFollowersGoOnBehindWhatTheyHave: from memory, from the store, behind what
// their filter leaves out, and never behind what is dropped.
func TestFollowersGoOnBehindWhatTheyHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{keep: 10_000} // more than is in memory
		f := book(t, s)
		f.write(t, 3*recentEvents, instance.DefaultTenant, "other")
		if n := len(f.events.recent); n < recentEvents || n > 2*recentEvents {
			t.Errorf("%d events are in memory", n)
		}
		s.keep = 0
		first, last, inMemory := s.all[0].Seq, s.last(), f.events.recent[0].Seq
		for _, after := range []uint64{first - 1, first, inMemory - 2, inMemory - 1, inMemory, last - 1} {
			ctx, cancel := context.WithCancel(t.Context())
			events, err := f.Follow(ctx, after, EventFilter{})
			if err != nil {
				t.Fatal(err)
			}
			want := after + 1
			if want%2 == 0 { // those of the other tenant
				want++
			}
			for ; want <= last; want += 2 {
				if e := <-events; e.Seq != want {
					t.Fatalf("behind %d came %d, want %d", after, e.Seq, want)
				}
			}
			asked := s.asked
			f.write(t, 2, "third")
			synctest.Wait()
			if s.asked != asked {
				t.Errorf("behind %d the store is asked %d times for what is in memory", after, s.asked-asked)
			}
			cancel()
			synctest.Wait()
		}
		for _, after := range []uint64{1, first - 2, s.last() + 1} {
			if _, err := f.Follow(t.Context(), after, EventFilter{}); instance.AsFault(err).Code != "events.gone" {
				t.Errorf("follow behind %d of %d to %d: %v", after, first, s.last(), err)
			}
		}
	})
}

// TestWhatHappenedIsStored also when who asked for it has gone.
func TestWhatHappenedIsStored(t *testing.T) {
	s := &shelf{}
	f := book(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.events.apply(ctx, &Change{Events: []Event{{}}}); err != nil || s.last() != 1 || f.LastEvent() != 1 {
		t.Errorf("%v, %d stored, the newest is %d", err, s.last(), f.LastEvent())
	}
}

// TestMoreThanIsRead: a page of the store is not all that is behind it.
func TestMoreThanIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		book(t, s).write(t, 3*eventBatch, instance.DefaultTenant)
		events, err := book(t, s).Follow(t.Context(), 0, EventFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for n := uint64(1); n <= 3*eventBatch; n++ {
			if e := <-events; e.Seq != n {
				t.Fatalf("event %d is %d", n, e.Seq)
			}
		}
	})
}

// TestEventsSayWhatChanged: every change that somebody may wait for is told,
// once, and nothing else.
func TestEventsSayWhatChanged(t *testing.T) {
	boom := func(code string) *instance.Fault { return &instance.Fault{Code: code, Err: errors.New("boom")} }
	base := supervise.Record{Phase: instance.Running, Fault: boom("a"), Labels: map[string]string{"x": "1"}, ExpiresAt: time.Unix(1, 0)}
	for name, c := range map[string]struct {
		change func(*supervise.Record)
		want   []string
	}{
		"nothing":       {func(r *supervise.Record) { r.Generation++; r.Restarts++ }, nil},
		"phase":         {func(r *supervise.Record) { r.Phase = instance.Paused }, []string{EventPhase}},
		"fault":         {func(r *supervise.Record) { r.Fault = boom("b") }, []string{EventFault}},
		"the same":      {func(r *supervise.Record) { r.Fault = boom("a") }, nil},
		"no fault":      {func(r *supervise.Record) { r.Fault = nil }, nil},
		"end":           {func(r *supervise.Record) { r.ExpiresAt = time.Time{} }, []string{EventRenewed}},
		"a label more":  {func(r *supervise.Record) { r.Labels = map[string]string{"x": "1", "y": ""} }, []string{EventLabels}},
		"another label": {func(r *supervise.Record) { r.Labels = map[string]string{"y": "1"} }, []string{EventLabels}},
		"another value": {func(r *supervise.Record) { r.Labels = map[string]string{"x": "2"} }, []string{EventLabels}},
		"all": {func(r *supervise.Record) { *r = supervise.Record{Phase: instance.Failed, Fault: boom("c")} },
			[]string{EventPhase, EventFault, EventRenewed, EventLabels}},
	} {
		next := base
		c.change(&next)
		var got []string
		for _, e := range eventsOf(base, next, supervise.Note{}) {
			got = append(got, e.Type)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
