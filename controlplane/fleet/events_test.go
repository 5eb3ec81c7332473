package fleet_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// TestEventsHaveNoGaps: the log counts from 1, goes on in the next process, and
// a reader that joins anywhere gets everything behind that.
func TestEventsHaveNoGaps(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("first")
	last := r.fleet.LastEvent()
	r.close()
	r.open()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := r.fleet.Follow(ctx, 0, fleet.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	behind, err := r.fleet.Follow(ctx, last, fleet.EventFilter{Instance: v.ID, Types: []string{fleet.EventDeleted}})
	if err != nil {
		t.Fatal(err)
	}
	op, err := r.fleet.Delete(t.Context(), "first", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.end(op)
	ended := fleet.Event{}
	for n := uint64(1); ended.Type == ""; n++ {
		e, ok := <-all
		if !ok || e.Seq != n || e.Tenant != instance.DefaultTenant || e.At.IsZero() {
			t.Fatalf("event %d is %+v", n, e)
		}
		if e.Type == fleet.EventOperationEnded && e.Operation == op.ID {
			ended = e
		}
	}
	if e := <-behind; e.Type != fleet.EventDeleted || e.Instance != v.ID || e.Seq <= last || e.Operation != op.ID {
		t.Errorf("the deletion is %+v", e)
	}
	stored, err := r.fleet.Events(t.Context(), ended.Seq-1, fleet.EventFilter{}, 1)
	if err != nil || len(stored) != 1 || stored[0] != ended {
		t.Errorf("stored: %+v, %v; told: %+v", stored, err, ended)
	}
	for _, after := range []uint64{ended.Seq + 1000, 1 << 62} {
		if _, err := r.fleet.Follow(ctx, after, fleet.EventFilter{}); faultCode(err) != "events.gone" {
			t.Errorf("follow behind %d: %v", after, err)
		}
	}
	if got, err := r.fleet.Events(t.Context(), 0, fleet.EventFilter{Tenant: "other"}, 0); err != nil || len(got) != 0 {
		t.Errorf("events of another tenant: %+v, %v", got, err)
	}
	cancel()
	for range all { // closed with its context
	}
}

// TestSlowFollowersHoldUpNobody: one follower that takes nothing and two
// hundred that do; those get everything, in order.
func TestSlowFollowersHoldUpNobody(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("busy")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	from := r.fleet.LastEvent()
	if _, err := r.fleet.Follow(ctx, 0, fleet.EventFilter{}); err != nil { // nobody takes from it
		t.Fatal(err)
	}
	const followers, changes = 200, 100
	var all sync.WaitGroup
	for range followers {
		ch, err := r.fleet.Follow(ctx, from, fleet.EventFilter{Types: []string{fleet.EventLabels}})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			last := from
			for range changes {
				e, ok := <-ch
				if !ok || e.Seq <= last {
					t.Errorf("after %d came %+v", last, e)
					return
				}
				last = e.Seq
			}
		})
	}
	began := time.Now()
	for i := range changes {
		if _, err := r.fleet.SetLabels(t.Context(), "busy", map[string]string{"n": string(rune('a' + i%26)), "i": time.Now().String()[:1]}, 0); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	t.Logf("%d changes to %d followers took %v", changes, followers, time.Since(began))
}
