package supervise

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// TestStopAsksTheGuestFirst: unless it is forced, and also one that is paused,
// which must go on to hear it.
func TestStopAsksTheGuestFirst(t *testing.T) {
	for _, c := range []struct {
		paused, force  bool
		asked, resumed int
	}{{false, false, 1, 0}, {true, false, 1, 1}, {false, true, 0, 0}, {true, true, 0, 0}} {
		r := newRig(t)
		r.running(Limits{})
		if c.paused {
			if err := r.do(r.request(instance.PauseRequested)).end(); err != nil {
				t.Fatal(err)
			}
		}
		stop := r.request(instance.StopRequested)
		stop.Force = c.force
		if err := r.do(stop).end(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		r.until(instance.Stopped)
		if a, b := r.count("power-off"), r.count("resume"); a != c.asked || b != c.resumed || r.only().executes() {
			t.Errorf("%+v: asked %d times, resumed %d times", c, a, b)
		}
	}
}

// TestForceHurriesTheStopAtWork: a guest that says yes and goes on is waited
// for no longer once somebody wants it to end at once.
func TestForceHurriesTheStopAtWork(t *testing.T) {
	r := newRig(t)
	said := make(chan struct{})
	r.powerOff = func() error { close(said); return errBoom }
	r.running(Limits{PowerOff: 24 * time.Hour})
	stop, force := r.request(instance.StopRequested), r.request(instance.StopRequested)
	force.Force = true
	r.do(stop)
	<-said
	r.do(force)
	for _, a := range []*asked{stop, force} {
		if err := a.end(); err != nil {
			t.Error(err)
		}
	}
	r.until(instance.Stopped)
}

// TestPowerThatCannotBeCutIsAFault: nobody says stopped of what executes.
func TestPowerThatCannotBeCutIsAFault(t *testing.T) {
	r := newRig(t)
	r.powerOff = func() error { return errBoom }
	r.stop = func(context.Context) error { return errBoom }
	r.running(Limits{PowerOff: time.Millisecond})
	if err := r.do(r.request(instance.StopRequested)).end(); err == nil {
		t.Error("the stop succeeded")
	}
	if rec := r.until(instance.Failed); rec.Fault == nil || !r.only().executes() {
		t.Errorf("%+v", rec)
	}
}

// TestRemovalThatFailsIsTriedAgain: the record stays while there is a machine,
// or while the store cannot forget it; the next request, or time, has another
// try.
func TestRemovalThatFailsIsTriedAgain(t *testing.T) {
	r := newRig(t)
	var broken atomic.Bool
	broken.Store(true)
	r.closing = func() error {
		if broken.Load() {
			return errBoom
		}
		return nil
	}
	r.running(Limits{Retry: 24 * time.Hour})
	if err := r.do(r.request(instance.DeleteRequested)).end(); err == nil {
		t.Error("the removal succeeded")
	}
	if rec := r.until(instance.Deleting); r.forgotten() || r.only() == nil {
		t.Errorf("%+v, forgotten: %t", rec, r.forgotten())
	}
	if err := r.do(r.request(instance.StartRequested)).end(); code(err) != CodeState {
		t.Errorf("a start ended with %v", err)
	}
	broken.Store(false)
	refusals := 3
	r.removing = func() error {
		if refusals--; refusals >= 0 {
			return errBoom
		}
		return nil
	}
	if err := r.do(r.request(instance.DeleteRequested)).end(); err != nil {
		t.Errorf("the second removal ended with %v", err)
	}
	if !r.forgotten() || r.only() != nil {
		t.Errorf("left is %+v, forgotten: %t", r.only(), r.forgotten())
	}
}

// TestRemovalIsTriedAgainInTime: nobody has to ask.
func TestRemovalIsTriedAgainInTime(t *testing.T) {
	r := newRig(t)
	tries := 0
	r.closing = func() error {
		if tries++; tries < 3 {
			return errBoom
		}
		return nil
	}
	r.running(Limits{Retry: time.Millisecond})
	if err := r.do(r.request(instance.DeleteRequested)).end(); err == nil {
		t.Error("the removal succeeded")
	}
	select {
	case <-r.s.Gone():
	case <-time.After(patience):
		t.Fatal("it is still there")
	}
	if !r.forgotten() {
		t.Error("it is not forgotten")
	}
}

// TestWhatIsNotStoredIsNotBegun: and what has happened is stored later.
func TestWhatIsNotStoredIsNotBegun(t *testing.T) {
	r := newRig(t)
	var full atomic.Bool
	late := make(chan struct{}, 1)
	r.saving = func(next Record) error {
		switch {
		case full.Load():
			return errBoom
		case next.Phase == instance.Failed:
			late <- struct{}{}
		}
		return nil
	}
	r.running(Limits{Retry: time.Millisecond})
	full.Store(true)
	if err := r.do(r.request(instance.StopRequested)).end(); err == nil {
		t.Error("a stop that could not be stored succeeded")
	}
	if rec := r.s.Record(); rec.Phase != instance.Running || !r.only().executes() || r.count("power-off") != 0 {
		t.Errorf("it is %s", rec.Phase)
	}
	r.only().die(vm.ExitKilled)
	if rec := r.until(instance.Failed); code(rec.Fault) != codeKilled {
		t.Errorf("it failed with %v", rec.Fault)
	}
	full.Store(false)
	select {
	case <-late:
	case <-time.After(patience):
		t.Error("its end is not stored although it can be")
	}
}
