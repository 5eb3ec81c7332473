package fleet_test

import (
	"slices"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// TestEveryDeleteEnds asks for the same removal many times at once. Whether a
// request begins the work, meets it or comes too late, its operation ends, and
// says that the instance is gone only when it is; then the name is free.
func TestEveryDeleteEnds(t *testing.T) {
	r := newRig(t)
	r.open()
	for range 5 {
		r.create("many")
		var (
			all sync.WaitGroup
			mu  sync.Mutex
			ops []fleet.Operation
		)
		for range 32 {
			all.Go(func() {
				op, err := r.fleet.Delete(t.Context(), "many", 0)
				if f := instance.AsFault(err); err != nil && f.Code != "instance.not_found" {
					t.Error(err)
				}
				if err == nil {
					mu.Lock()
					ops = append(ops, op)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if len(ops) == 0 {
			t.Fatal("no delete was taken")
		}
		for _, op := range ops {
			if op = r.end(op); op.State != fleet.OperationSucceeded {
				t.Errorf("a delete ended %s: %v", op.State, op.Fault)
			}
			if v, err := r.fleet.Get(t.Context(), "many"); err == nil {
				t.Errorf("a delete has ended and the instance is %s", v.Phase)
			}
		}
		r.empty()
	}
}

// TestNameIsFreeAtOnce makes and removes an instance of one name without a
// pause: what is left to do for the old one must not touch the new one.
func TestNameIsFreeAtOnce(t *testing.T) {
	r := newRig(t)
	r.open()
	for range 10 {
		old := r.create("again")
		op, err := r.fleet.Delete(t.Context(), "again", 0)
		if err != nil {
			t.Fatal(err)
		}
		r.end(op)
		if v := r.create("again"); v.ID == old.ID {
			t.Fatal("the old instance is still there")
		}
		if op, err = r.fleet.Delete(t.Context(), "again", 0); err != nil {
			t.Fatal(err)
		}
		r.end(op)
	}
}

// TestRepeatedStopEndsWithTheFirst: an answer that it is done comes when it is.
func TestRepeatedStopEndsWithTheFirst(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("twice")
	ops := make([]fleet.Operation, 0, 8)
	for range cap(ops) {
		op, err := r.fleet.Act(t.Context(), "twice", fleet.ActionStop, fleet.ActOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	for _, op := range slices.Backward(ops) {
		if op = r.end(op); op.State != fleet.OperationSucceeded {
			t.Errorf("a stop ended %s: %v", op.State, op.Fault)
		}
		if v := r.get("twice"); v.Phase != instance.Stopped {
			t.Errorf("a stop has ended and the instance is %s", v.Phase)
		}
	}
}

// TestNextDaemonEndsAllThatShare: several requests for the same work that an
// earlier daemon did not end all end with it.
func TestNextDaemonEndsAllThatShare(t *testing.T) {
	r := newRig(t)
	r.open()
	starting := r.hang()
	op, err := r.fleet.Create(t.Context(), request("shared"))
	if err != nil {
		t.Fatal(err)
	}
	ops := []fleet.Operation{op}
	<-starting
	for range 3 {
		if op, err = r.fleet.Act(t.Context(), "shared", fleet.ActionStart, fleet.ActOptions{}); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	r.close()
	r.fault.start = nil
	r.open()
	for _, op := range ops {
		if op = r.end(op); op.State != fleet.OperationSucceeded {
			t.Errorf("%s ended %s: %v", op.Kind, op.State, op.Fault)
		}
	}
}
