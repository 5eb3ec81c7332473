package fleet_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// hang makes a hook that waits for the end of its context, and says when it
// is reached.
func hang() (hook func(context.Context) error, reached chan struct{}) {
	reached = make(chan struct{}, 16)
	return func(ctx context.Context) error {
		reached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, reached
}

func (r *rig) cancel(op fleet.Operation) {
	r.t.Helper()
	got, err := r.fleet.CancelOperation(r.t.Context(), op.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	if !got.Canceling && !got.State.Done() {
		r.t.Errorf("after a cancel: %+v", got)
	}
}

// TestCancelledCreateLeavesNothing cancels a create at each step that can hang.
func TestCancelledCreateLeavesNothing(t *testing.T) {
	for _, step := range []string{"image", "boot"} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t)
			r.open()
			hook, reached := hang()
			if step == "image" {
				r.shelf.ensure = hook
			} else {
				r.fault.start = hook
			}
			op, err := r.fleet.Create(t.Context(), request("never"))
			if err != nil {
				t.Fatal(err)
			}
			<-reached
			r.cancel(op)
			if op = r.end(op); op.State != fleet.OperationCanceled {
				t.Errorf("it ended %s: %v", op.State, op.Fault)
			}
			r.gone("never")
			r.empty()
			if _, err := r.fleet.CancelOperation(t.Context(), op.ID); faultCode(err) != "operation.ended" {
				t.Errorf("second cancel: %v", err)
			}
			r.shelf.ensure, r.fault.start = nil, nil
			r.create("never")
		})
	}
}

func TestCancelledStartStops(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("ready")
	r.act("ready", fleet.ActionStop)
	hook, reached := hang()
	r.fault.start = hook
	for _, action := range []fleet.Action{fleet.ActionStart, fleet.ActionRestart} {
		op, err := r.fleet.Act(t.Context(), "ready", action, fleet.ActOptions{})
		if err != nil {
			t.Fatal(err)
		}
		<-reached
		r.cancel(op)
		if op = r.end(op); op.State != fleet.OperationCanceled {
			t.Errorf("%s ended %s: %v", action, op.State, op.Fault)
		}
		if v := r.get("ready"); v.Phase != instance.Stopped || v.Fault != nil {
			t.Errorf("after a cancelled %s it is %s (%v)", action, v.Phase, v.Fault)
		}
	}
	r.fault.start = nil
	if op := r.act("ready", fleet.ActionStart); op.State != fleet.OperationSucceeded {
		t.Error(op.Fault)
	}
}

// TestCancelOfWhatWaitsOrCannot: what waits ends at once, what cannot be undone
// goes on.
func TestCancelOfWhatWaitsOrCannot(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("held")
	hook, reached := hang()
	r.fault.pause = hook
	pause, err := r.fleet.Act(t.Context(), "held", fleet.ActionPause, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	stop, err := r.fleet.Act(t.Context(), "held", fleet.ActionStop, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.fleet.CancelOperation(t.Context(), pause.ID); faultCode(err) != "operation.not_cancelable" {
		t.Errorf("cancel of a pause at work: %v", err)
	}
	if op, _ := r.fleet.Operation(t.Context(), pause.ID); op.Canceling {
		t.Error("the pause says that it is being cancelled")
	}
	r.cancel(stop)
	if stop = r.end(stop); stop.State != fleet.OperationCanceled {
		t.Errorf("the stop that waited ended %s: %v", stop.State, stop.Fault)
	}
	del, err := r.fleet.Delete(t.Context(), "held", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.end(pause)
	if del = r.end(del); del.State != fleet.OperationSucceeded {
		t.Errorf("delete: %v", del.Fault)
	}
}

// TestDeleteOvertakes: what a delete cuts short is no failure of the machine.
func TestDeleteOvertakes(t *testing.T) {
	r := newRig(t)
	r.open()
	for _, action := range []fleet.Action{fleet.ActionStop, fleet.ActionRestart, fleet.ActionPause} {
		name := string(action)
		r.create(name)
		hook, reached := hang()
		r.fault.stop, r.fault.pause = hook, hook
		op, err := r.fleet.Act(t.Context(), name, action, fleet.ActOptions{Force: true})
		if err != nil {
			t.Fatal(err)
		}
		<-reached
		del, err := r.fleet.Delete(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		op = r.end(op)
		if want := "the " + name + " was cut short: the machine is being removed"; op.State != fleet.OperationCanceled ||
			op.Fault.Code != supervise.CodeCanceled || op.Fault.Error() != want {
			t.Errorf("%s ended %s: %v, want it canceled: %s", action, op.State, op.Fault, want)
		}
		if del = r.end(del); del.State != fleet.OperationSucceeded {
			t.Errorf("delete: %v", del.Fault)
		}
		r.fault.stop, r.fault.pause = nil, nil
	}
}

// TestCancelSurvivesTheDaemon: a create whose end was asked for does not come
// up in the next process.
func TestCancelSurvivesTheDaemon(t *testing.T) {
	r := newRig(t)
	r.open()
	hook, reached := hang()
	r.fault.start = hook
	op, err := r.fleet.Create(t.Context(), request("halted"))
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	r.fault.dead.Store(true) // nothing is undone any more
	r.cancel(op)
	r.close()
	r.fault.start = nil
	r.open()
	if op = r.end(op); op.State != fleet.OperationCanceled {
		t.Errorf("it ended %s: %v", op.State, op.Fault)
	}
	r.gone("halted")
	r.empty()
}

func TestOperationsAreListed(t *testing.T) {
	r := newRig(t)
	r.open()
	a, b := r.create("one"), r.create("two")
	r.act("one", fleet.ActionStop)
	r.act("two", fleet.ActionResume) // ignored, a success
	r.act("one", fleet.ActionPause)  // denied
	r.close()
	r.open()
	for name, c := range map[string]struct {
		f     fleet.OperationFilter
		kinds []string
	}{
		"all":      {fleet.OperationFilter{}, []string{"pause", "resume", "stop", "create", "create"}},
		"instance": {fleet.OperationFilter{Instance: b.ID}, []string{"resume", "create"}},
		"state":    {fleet.OperationFilter{State: fleet.OperationFailed}, []string{"pause"}},
		"kind":     {fleet.OperationFilter{Kind: "instance.create", Instance: a.ID}, []string{"create"}},
		"tenant":   {fleet.OperationFilter{Tenant: "other"}, nil},
	} {
		var kinds []string
		for f, more := c.f, true; more; {
			f.Limit = 2
			page, err := r.fleet.Operations(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range page.Operations {
				kinds = append(kinds, op.Kind[len("instance."):])
			}
			f.After, more = page.Next, page.Next != ""
		}
		if !slices.Equal(kinds, c.kinds) {
			t.Errorf("%s: %q, want %q", name, kinds, c.kinds)
		}
	}
	page, err := r.fleet.Operations(t.Context(), fleet.OperationFilter{Instance: a.ID, Kind: "instance.create"})
	if err != nil {
		t.Fatal(err)
	}
	var marks []string
	for _, s := range page.Operations[0].Steps {
		marks = append(marks, s.Name+" "+s.Mark)
	}
	want := []string{
		"image began", "image did", "machine began", "machine did", "boot began", "boot did", "agent began", "agent did",
	}
	if !slices.Equal(marks, want) {
		t.Errorf("the journal is %q, want %q", marks, want)
	}
	if op, err := r.fleet.Operation(t.Context(), page.Operations[0].ID); err != nil || op.State != fleet.OperationSucceeded {
		t.Errorf("an old operation: %+v, %v", op, err)
	}
}

// full is a store whose disk is full until something frees it.
type full struct {
	fleet.Store
	is atomic.Bool
}

func (f *full) Apply(ctx context.Context, c *fleet.Change) error {
	if f.is.Load() {
		return &instance.Fault{Blame: instance.Host, Code: "store.full", Hint: "free some", Err: errBoom}
	}
	return f.Store.Apply(ctx, c)
}

// TestFullDisk: what cannot be recorded is not begun, and says why; but an
// instance can be removed, which frees what it had.
func TestFullDisk(t *testing.T) {
	r := newRig(t)
	f := &full{}
	r.config = func(c *fleet.Config) { f.Store = c.Store; c.Store = f }
	r.open()
	r.create("big")
	f.is.Store(true)
	if _, err := r.fleet.Create(t.Context(), request("more")); faultCode(err) != "store.full" {
		t.Errorf("create: %v", err)
	}
	if _, err := r.fleet.Act(t.Context(), "big", fleet.ActionStop, fleet.ActOptions{}); faultCode(err) != "store.full" {
		t.Errorf("stop: %v", err)
	}
	if _, err := r.fleet.Renew(t.Context(), "big", 0); faultCode(err) != "store.full" {
		t.Errorf("renew: %v", err)
	}
	if v := r.get("big"); v.Phase != instance.Running {
		t.Errorf("it is %s", v.Phase)
	}
	r.fault.closed = func() { f.is.Store(false) }
	op, err := r.fleet.Delete(t.Context(), "big", 0)
	if err != nil {
		t.Fatal(err)
	}
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		t.Errorf("delete ended %s: %v", op.State, op.Fault)
	}
	r.gone("big")
	r.empty()
	r.create("big")
	if err := r.fleet.Ready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
}

// TestEndThatCouldNotBeStoredIsStoredLater: when there is room again.
func TestEndThatCouldNotBeStoredIsStoredLater(t *testing.T) {
	r := newRig(t)
	f := &full{}
	r.config = func(c *fleet.Config) {
		f.Store = c.Store
		c.Store, c.OrphanGrace = f, 400*time.Millisecond
	}
	r.open()
	r.create("held")
	hook, reached := hang()
	r.fault.pause = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return hook(ctx)
	}
	op, err := r.fleet.Act(t.Context(), "held", fleet.ActionPause, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	f.is.Store(true)
	if op = r.end(op); op.State != fleet.OperationFailed {
		t.Errorf("it ended %s", op.State)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	from := r.fleet.LastEvent()
	f.is.Store(false)
	events, err := r.fleet.Follow(ctx, from, fleet.EventFilter{Types: []string{fleet.EventOperationEnded}})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Operation != op.ID || e.Reason != string(fleet.OperationFailed) {
		t.Errorf("the end is told as %+v", e)
	}
	page, err := r.fleet.Operations(t.Context(), fleet.OperationFilter{Kind: "instance.pause"})
	if err != nil || len(page.Operations) != 1 || page.Operations[0].State != fleet.OperationFailed {
		t.Errorf("stored: %+v, %v", page, err)
	}
}
