package fleet_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// mortal is a store whose process dies at a chosen write: just before it, or
// just after. From then on nothing is stored, and no machine is touched.
type mortal struct {
	fleet.Store
	left  atomic.Int64 // writes until the death; 0: not armed
	after bool
	die   func()
	died  chan struct{}
}

func (m *mortal) Apply(ctx context.Context, c *fleet.Change) error {
	select {
	case <-m.died:
		return errDead
	default:
	}
	if m.left.Add(-1) != 0 {
		return m.Store.Apply(ctx, c)
	}
	if m.after {
		if err := m.Store.Apply(ctx, c); err != nil {
			return err
		}
	}
	m.die()
	close(m.died)
	return errDead
}

// TestDeathAtEveryWrite kills the process before and after every write of a
// create, stop, restart, pause and delete. The next one ends every operation,
// the instance is in a truthful phase, nothing is left over, and the next
// request works.
func TestDeathAtEveryWrite(t *testing.T) {
	for _, what := range []string{"create", "cancel", "stop", "restart", "pause", "delete"} {
		for _, after := range []bool{false, true} {
			if !after && what != "create" && what != "delete" {
				continue // what was not stored did not happen: two kinds show it
			}
			t.Run(fmt.Sprintf("%s, after=%t", what, after), func(t *testing.T) {
				t.Parallel()
				writes := int64(0)
				for dieAt(t, what, after, writes+1) && !t.Failed() {
					writes++
				}
				if writes < 3 {
					t.Errorf("died at %d writes only", writes)
				}
				t.Logf("died at each of %d writes", writes)
			})
		}
	}
}

// dieAt reports whether the request made as many writes as that.
func dieAt(t *testing.T, what string, after bool, n int64) bool {
	t.Helper()
	r := newRig(t)
	m := &mortal{after: after, die: func() { r.fault.dead.Store(true) }, died: make(chan struct{})}
	r.config = func(c *fleet.Config) { m.Store = c.Store; c.Store = m }
	r.open()
	if what != "create" && what != "cancel" {
		r.create("victim")
	}
	var op fleet.Operation
	var err error
	if what == "cancel" { // a create that hangs
		hook, reached := hang()
		r.fault.start = hook
		if op, err = r.demand("create"); err != nil {
			t.Fatal(err)
		}
		<-reached
		m.left.Store(n)
		_, _ = r.fleet.CancelOperation(t.Context(), op.ID) // it may die
	} else {
		m.left.Store(n)
		op, err = r.demand(what)
	}
	ended := make(chan struct{})
	if err == nil {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ch, watchErr := r.fleet.Watch(ctx, op.ID)
		if watchErr != nil {
			t.Fatal(watchErr)
		}
		go func() {
			for range ch { // until it ends, or the test does
			}
			close(ended)
		}()
	}
	died := true
	select {
	case <-m.died:
	case <-ended:
		select {
		case <-m.died:
		default:
			died = false
		}
	}
	r.close()
	r.config, r.fault.start = nil, nil
	r.open()
	r.truthful(what, fmt.Sprintf("died at write %d", n))
	if v, err := r.fleet.Get(t.Context(), "victim"); err == nil && v.Phase != instance.Running {
		if v.Phase == instance.Paused {
			r.act("victim", fleet.ActionResume)
		} else if op := r.act("victim", fleet.ActionStart); op.State != fleet.OperationSucceeded {
			t.Errorf("write %d: start afterwards: %v", n, op.Fault)
		}
	} else if err != nil {
		r.create("victim")
	}
	if out := r.run(r.get("victim"), "echo", "works"); out != "works\n" {
		t.Errorf("write %d: output is %q", n, out)
	}
	return died
}

func (r *rig) demand(what string) (fleet.Operation, error) {
	switch what {
	case "create":
		return r.fleet.Create(r.t.Context(), request("victim"))
	case "delete":
		return r.fleet.Delete(r.t.Context(), "victim", 0)
	}
	return r.fleet.Act(r.t.Context(), "victim", fleet.Action(what), fleet.ActOptions{})
}

// truthful waits until everything has ended, and compares what is said with
// what is.
func (r *rig) truthful(what, when string) {
	r.t.Helper()
	page, err := r.fleet.Operations(r.t.Context(), fleet.OperationFilter{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, op := range page.Operations {
		if !op.State.Done() {
			op = r.end(op)
		}
		if what == "cancel" && op.State == fleet.OperationCanceled {
			if v, err := r.fleet.Get(r.t.Context(), "victim"); err == nil && v.Phase != instance.Deleting {
				r.t.Errorf("%s: the create was cancelled, and the instance is %s", when, v.Phase)
			}
			r.gone("victim")
			continue
		}
		if op.Kind == "instance."+what && op.State != fleet.OperationSucceeded && op.Fault.Code != "operation.interrupted" {
			r.t.Errorf("%s: %s ended %s: %v", when, op.Kind, op.State, op.Fault)
		}
	}
	v, err := r.fleet.Get(r.t.Context(), "victim")
	if err != nil {
		if what != "create" && what != "delete" && what != "cancel" {
			r.t.Errorf("%s: the instance is gone: %v", when, err)
		}
		r.empty()
		return
	}
	found, err := r.driver.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	runs := v.Phase == instance.Running || v.Phase == instance.Paused
	if len(found) != 1 || found[0].ID != v.ID || found[0].Running != runs {
		r.t.Errorf("%s: it is %s, and the machines are %+v", when, v.Phase, found)
	}
	if orphans, err := r.fleet.Orphans(r.t.Context()); err != nil || len(orphans) > 0 {
		r.t.Errorf("%s: orphans: %+v, %v", when, orphans, err)
	}
}
