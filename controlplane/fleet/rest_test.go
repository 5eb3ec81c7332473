package fleet_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const idleStop = "lifecycle: {idle: {timeout_seconds: 1, action: stop}}\n"

// TestRenewedWhileItEnds: whose end was moved while it was being stopped for it
// stays, as it says; what it had is not removed.
func TestRenewedWhileItEnds(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	r.fault.stop = func(ctx context.Context) error {
		select {
		case <-release:
			return nil // its agent has ended it in order
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.open()
	v := r.create("saved")
	if _, err := r.fleet.Renew(t.Context(), "saved", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r.until("saved", instance.Stopping)
	if v, err := r.fleet.Renew(t.Context(), "saved", time.Hour); err != nil || time.Until(v.ExpiresAt) < time.Minute {
		t.Fatalf("renewed: %+v, %v", v, err)
	}
	close(release)
	page, err := r.fleet.Operations(t.Context(), fleet.OperationFilter{Instance: v.ID, Kind: "instance.expire"})
	if err != nil || len(page.Operations) != 1 {
		t.Fatalf("operations of the expiry: %+v, %v", page, err)
	}
	if op := r.end(page.Operations[0]); op.State != fleet.OperationCanceled {
		t.Errorf("the expiry ended %s: %v", op.State, op.Fault)
	}
	if v := r.until("saved", instance.Stopped); time.Until(v.ExpiresAt) < time.Minute {
		t.Errorf("it is %+v", v)
	}
	r.fault.stop = nil
	if op := r.act("saved", fleet.ActionStart); op.State != fleet.OperationSucceeded {
		t.Errorf("start: %v", op.Fault)
	}
	if out := r.run(r.get("saved"), "echo", "here"); out != "here\n" {
		t.Errorf("output is %q", out)
	}
}

// TestRestIsRememberedByTheNextDaemon: a daemon dies when it has paused an idle
// machine and before it could say so. The next use wakes it none the less.
func TestRestIsRememberedByTheNextDaemon(t *testing.T) {
	r := newRig(t)
	m := &mortal{die: func() { r.fault.dead.Store(true) }, died: make(chan struct{})}
	r.config = func(c *fleet.Config) { m.Store = c.Store; c.Store = m }
	r.fault.pause = func(context.Context) error { m.left.Store(1); return nil }
	r.open()
	v := r.createFrom(requestWith("dozing", idlePause))
	<-m.died
	r.close()
	r.config, r.fault.pause = nil, nil
	r.open()
	if v := r.until("dozing", instance.Paused); !v.Resting || v.Reason != "idle" {
		t.Errorf("after the death it is %+v", v)
	}
	if out := r.run(v, "echo", "awake"); out != "awake\n" {
		t.Errorf("output is %q", out)
	}
}

// TestWhatIsStoppedByHandStaysSo, also if it had been at rest before.
func TestWhatIsStoppedByHandStaysSo(t *testing.T) {
	for _, c := range []struct {
		more   string
		phase  instance.Phase
		action fleet.Action
	}{{idlePause, instance.Paused, fleet.ActionPause}, {idleStop, instance.Stopped, fleet.ActionStop}} {
		t.Run(string(c.action), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.open()
			r.createFrom(requestWith("held", c.more))
			v := r.until("held", c.phase)
			if op := r.act("held", c.action); op.State != fleet.OperationSucceeded {
				t.Fatal(op.Fault)
			}
			if v := r.get("held"); v.Resting || v.Reason != "request" {
				t.Errorf("it is %+v", v)
			}
			defer r.fleet.Touch(v.ID)()
			if _, err := r.fleet.Link(t.Context(), v.ID); faultCode(err) != "instance.state" {
				t.Errorf("link to one that is %s by hand: %v", c.phase, err)
			}
		})
	}
}

// slow is a store that takes its time to note that an idle machine is stopped.
type slow struct {
	fleet.Store
	once         sync.Once
	begins, goOn chan struct{}
}

func (s *slow) Apply(ctx context.Context, c *fleet.Change) error {
	if c.Save != nil && c.Save.Phase == instance.Stopping && c.Save.Resting {
		s.once.Do(func() { close(s.begins); <-s.goOn })
	}
	return s.Store.Apply(ctx, c)
}

// TestNobodyIsGivenAMachineThatParts: who comes while an idle machine is about to
// be stopped waits until it runs again. A command begun before would be lost.
func TestNobodyIsGivenAMachineThatParts(t *testing.T) {
	r := newRig(t)
	s := &slow{begins: make(chan struct{}), goOn: make(chan struct{})}
	r.config = func(c *fleet.Config) { s.Store = c.Store; c.Store = s }
	r.open()
	v := r.createFrom(requestWith("leaving", idleStop))
	<-s.begins
	defer r.fleet.Touch(v.ID)()
	got := make(chan error, 1)
	go func() {
		_, err := r.fleet.Link(context.WithoutCancel(t.Context()), v.ID)
		got <- err
	}()
	early := time.NewTimer(200 * time.Millisecond)
	defer early.Stop()
	select {
	case err := <-got:
		t.Errorf("a link was given to a machine that is being stopped: %v", err)
		got <- err
	case <-early.C:
	}
	close(s.goOn)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if v := r.get("leaving"); v.Phase != instance.Running || v.Restarts != 1 {
		t.Errorf("it is %+v", v)
	}
}

// TestBootsAndLinksOfAllTenants are told: metrics are the host's.
func TestBootsAndLinksOfAllTenants(t *testing.T) {
	var boots atomic.Int64
	r := newRig(t)
	r.config = func(c *fleet.Config) {
		c.Booted = func(provider, _ string, took time.Duration) {
			if provider == "host" && took > 0 {
				boots.Add(1)
			}
		}
	}
	r.open()
	r.create("ours")
	theirs := fleet.WithTenant(t.Context(), "other")
	op, err := r.fleet.Create(theirs, request("theirs"))
	if err != nil {
		t.Fatal(err)
	}
	changes, err := r.fleet.Watch(theirs, op.ID)
	if err != nil {
		t.Fatal(err)
	}
	for op = range changes { // to its end
	}
	if op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	if up, silent := r.fleet.Links(); up != 2 || silent != 0 || boots.Load() != 2 {
		t.Errorf("links are up %d, silent %d after %d boots; want 2, 0 and 2", up, silent, boots.Load())
	}
	if op, err = r.fleet.Delete(theirs, "theirs", 0); err != nil {
		t.Fatal(err)
	}
	if changes, err = r.fleet.Watch(theirs, op.ID); err != nil {
		t.Fatal(err)
	}
	for range changes { // to its end
	}
}

// eager is a store that shows each new stop to somebody before the request for
// it is on its way.
type eager struct {
	fleet.Store
	once sync.Once // it is pending for a while
	show func(fleet.Operation)
}

func (e *eager) Apply(ctx context.Context, c *fleet.Change) error {
	err := e.Store.Apply(ctx, c)
	if op := c.Operation; op != nil && op.Kind == "instance.stop" && op.State == fleet.OperationPending && err == nil {
		e.once.Do(func() { e.show(*op) })
	}
	return err
}

// TestCancelOfWhatIsOnItsWay: whoever sees an operation can cancel it, however
// early.
func TestCancelOfWhatIsOnItsWay(t *testing.T) {
	r := newRig(t)
	answer := make(chan error, 1)
	e := &eager{show: func(op fleet.Operation) {
		go func() {
			_, err := r.fleet.CancelOperation(context.WithoutCancel(t.Context()), op.ID)
			answer <- err
		}()
		early := time.NewTimer(100 * time.Millisecond)
		defer early.Stop()
		select {
		case err := <-answer:
			answer <- err
		case <-early.C:
		}
	}}
	r.config = func(c *fleet.Config) { e.Store = c.Store; c.Store = e }
	hook, reached := hang()
	r.fault.pause = hook
	r.open()
	r.create("busy")
	pause, err := r.fleet.Act(t.Context(), "busy", fleet.ActionPause, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	stop, err := r.fleet.Act(t.Context(), "busy", fleet.ActionStop, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("cancel: %v", err)
	}
	if op := r.end(stop); op.State != fleet.OperationCanceled {
		t.Errorf("the stop ended %s: %v", op.State, op.Fault)
	}
	if _, err := r.fleet.Delete(t.Context(), "busy", 0); err != nil { // it cuts the pause short
		t.Fatal(err)
	}
	r.end(pause)
}
