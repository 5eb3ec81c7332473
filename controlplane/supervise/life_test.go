package supervise

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// TestPauseIsStoredOnceItIsSo: until the processor has stopped, or goes on, the
// truth is the old phase, and when it does not, it stays that.
func TestPauseIsStoredOnceItIsSo(t *testing.T) {
	r := newRig(t)
	var fails atomic.Bool
	r.toggling = func(what string) error {
		want := map[string]instance.Phase{"pause": instance.Running, "resume": instance.Paused}[what]
		if got := r.s.Record().Phase; got != want {
			t.Errorf("before the %s it is %s", what, got)
		}
		if fails.Load() {
			return errBoom
		}
		return nil
	}
	r.running(Limits{})
	for _, c := range []struct {
		e    instance.Event
		want instance.Phase
	}{{instance.PauseRequested, instance.Paused}, {instance.ResumeRequested, instance.Running}} {
		fails.Store(true)
		before := r.s.Record().Phase
		if err := r.do(r.request(c.e)).end(); err == nil || r.s.Record().Phase != before {
			t.Errorf("a failed %s ended with %v, and it is %s", c.e, err, r.s.Record().Phase)
		}
		fails.Store(false)
		if err := r.do(r.request(c.e)).end(); err != nil {
			t.Errorf("%s: %v", c.e, err)
		}
		if r.until(c.want).Resting {
			t.Errorf("after a %s that somebody asked for it rests", c.e)
		}
	}
}

// TestDeleteCutsAStopShort: the power of what is removed need not be cut first.
func TestDeleteCutsAStopShort(t *testing.T) {
	r := newRig(t)
	said := make(chan struct{})
	r.powerOff = func() error { close(said); return errBoom }
	r.running(Limits{PowerOff: 24 * time.Hour})
	stop := r.do(r.request(instance.StopRequested))
	<-said
	if err := r.do(r.request(instance.DeleteRequested)).end(); err != nil {
		t.Errorf("the removal ended with %v", err)
	}
	if err := stop.end(); code(err) != CodeCanceled || r.count("stop") != 0 || !r.forgotten() {
		t.Errorf("the stop ended with %v; the power was cut %d times", err, r.count("stop"))
	}
}

// TestFullDiskCanBeEmptied: that a removal cannot be recorded does not stop it.
func TestFullDiskCanBeEmptied(t *testing.T) {
	r := newRig(t)
	var full atomic.Bool
	r.saving = func(Record) error {
		if full.Load() {
			return errBoom
		}
		return nil
	}
	r.running(Limits{})
	full.Store(true)
	if err := r.do(r.request(instance.DeleteRequested)).end(); err != nil || r.only() != nil || !r.forgotten() {
		t.Errorf("it ended with %v", err)
	}
}

// TestNobodyWaitsForWhatIsNoMore: requests that a removal overtakes end.
func TestNobodyWaitsForWhatIsNoMore(t *testing.T) {
	r := newRig(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	r.toggling = func(string) error { close(begun); <-goOn; return nil }
	r.running(Limits{})
	pause := r.do(r.request(instance.PauseRequested))
	<-begun
	stop, del := r.do(r.request(instance.StopRequested)), r.do(r.request(instance.DeleteRequested))
	r.until(instance.Deleting)
	close(goOn)
	if err := del.end(); err != nil {
		t.Errorf("the removal ended with %v", err)
	}
	if err := stop.end(); code(err) != CodeCanceled {
		t.Errorf("the stop ended with %v", err)
	}
	_ = pause.end() // done or cut short, as it came
}

// TestCancelledRestartStops: the stop goes on, the start does not come.
func TestCancelledRestartStops(t *testing.T) {
	r := newRig(t)
	said, goOn := make(chan struct{}), make(chan struct{})
	r.powerOff = func() error { close(said); <-goOn; return nil }
	r.running(Limits{})
	restart := r.do(r.request(instance.RestartRequested))
	<-said
	if err := r.s.Cancel(t.Context(), restart.ID); err != nil || r.stored.After != "" {
		t.Errorf("cancel: %v; after the stop comes %q", err, r.stored.After)
	}
	close(goOn)
	if err := restart.end(); code(err) != CodeCanceled {
		t.Errorf("the restart ended with %v", err)
	}
	if r.until(instance.Stopped); r.count("start") != 1 {
		t.Errorf("it was started %d times", r.count("start"))
	}
}

// TestRestart: a stop and a start, which is counted; the first is not.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.running(Limits{})
	if n := r.s.Record().Restarts; n != 0 {
		t.Errorf("after a create there were %d restarts", n)
	}
	if err := r.do(r.request(instance.RestartRequested)).end(); err != nil {
		t.Fatal(err)
	}
	if rec := r.until(instance.Running); rec.Restarts != 1 || rec.After != "" || r.count("start") != 2 {
		t.Errorf("%+v after %d starts", rec, r.count("start"))
	}
}

// TestCancelStoresWhereItGoes before anything is interrupted: a create to its
// removal, a start to a stop.
func TestCancelStoresWhereItGoes(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		r := newRig(t)
		want, hangs := instance.Stopping, make(chan struct{}, 2)
		var a *asked
		at := make(chan instance.Phase, 1)
		start := func(ctx context.Context) error {
			hangs <- struct{}{}
			<-ctx.Done()
			r.mu.Lock()
			defer r.mu.Unlock()
			at <- r.stored.Phase
			return ctx.Err()
		}
		if fresh {
			want, r.start, a = instance.Deleting, start, r.request(instance.StartRequested)
			r.run(r.fresh(), Limits{}, a.Request)
		} else {
			r.running(Limits{})
			if err := r.do(r.request(instance.StopRequested)).end(); err != nil {
				t.Fatal(err)
			}
			r.start = start
			a = r.do(r.request(instance.StartRequested))
		}
		<-hangs
		if err := r.s.Cancel(t.Context(), a.ID); err != nil {
			t.Errorf("fresh %t: %v", fresh, err)
		}
		if err := a.end(); code(err) != CodeCanceled {
			t.Errorf("fresh %t: it ended with %v", fresh, err)
		}
		if got := <-at; got != want {
			t.Errorf("fresh %t: when it was interrupted %s was stored, want %s", fresh, got, want)
		}
		if fresh {
			<-r.s.Gone()
		} else {
			r.until(instance.Stopped)
		}
		if (r.only() == nil) != fresh || r.forgotten() != fresh {
			t.Errorf("fresh %t: left is %+v, forgotten: %t", fresh, r.only(), r.forgotten())
		}
	}
}

// TestMachineIsFoundByItsID when nobody lived to store its handle; others' are
// left alone.
func TestMachineIsFoundByItsID(t *testing.T) {
	r := newRig(t)
	rec, other := r.fresh(), r.fresh()
	for _, id := range []instance.ID{other.ID, rec.ID} {
		r.machines[id] = &machine{r: r, id: id}
	}
	rec.Phase = instance.Deleting
	del := r.request(instance.DeleteRequested)
	r.run(rec, Limits{}, del.Request)
	if err := del.end(); err != nil {
		t.Error(err)
	}
	if m := r.only(); m == nil || m.id != other.ID {
		t.Errorf("left is %+v", m)
	}
}

// TestFoundAsItIs: a phase that was stored just before or after a pause is
// corrected by what the machine does.
func TestFoundAsItIs(t *testing.T) {
	for state, phase := range map[string]instance.Phase{stateRunning: instance.Running, statePaused: instance.Paused} {
		for _, stored := range []instance.Phase{instance.Running, instance.Paused} {
			r := newRig(t)
			rec := r.fresh()
			h := handleOf(rec.ID)
			rec.Phase, rec.Handle, rec.Guest = stored, &h, &Guest{}
			r.machines[rec.ID] = &machine{r: r, id: rec.ID, state: state, ended: make(chan struct{})}
			r.run(rec, Limits{})
			got := r.until(phase)
			if (got.Generation != rec.Generation) != (stored != phase) {
				t.Errorf("it was stored as %s, does %s, and is %+v", stored, state, got)
			}
		}
	}
}

// TestStaleReportsAreDropped: what an earlier watch says is about an earlier
// run.
func TestStaleReportsAreDropped(t *testing.T) {
	r := newRig(t)
	r.running(Limits{})
	for _, stale := range []report{
		{kind: machineExit, watch: -1, exit: vm.Exit{Reason: vm.ExitPanic}}, {kind: linkGaveUp, watch: -1, err: errBoom},
		{kind: linkSilent, watch: -1, state: statePaused, err: errBoom},
	} {
		r.s.reports <- stale
		_ = r.s.Cancel(t.Context(), "nobody") // it is answered behind the report
		if rec := r.s.Record(); rec.Phase != instance.Running {
			t.Errorf("after %s of long ago it is %s", stale.kind, rec.Phase)
		}
	}
	if fault, _ := r.s.Health(); fault != nil {
		t.Errorf("its health is %v", fault)
	}
}

// TestMachineEndsByItself: what that is called.
func TestMachineEndsByItself(t *testing.T) {
	for why, want := range map[vm.ExitReason]struct {
		phase instance.Phase
		code  string
	}{
		vm.ExitPowerOff: {instance.Stopped, codePoweredOff}, vm.ExitDestroyed: {instance.Stopped, codePoweredOff},
		vm.ExitPanic: {instance.Failed, codePanicked}, vm.ExitKilled: {instance.Failed, codeKilled}, vm.ExitUnknown: {instance.Failed, codeEnded},
	} {
		r := newRig(t)
		r.running(Limits{})
		r.only().die(why)
		if rec := r.until(want.phase); rec.Fault == nil || rec.Fault.Code != want.code {
			t.Errorf("%s: %v, want %s", why, rec.Fault, want.code)
		}
		if _, err := r.s.Link(t.Context()); code(err) != CodeState {
			t.Errorf("%s: the link is %v", why, err)
		}
	}
}
