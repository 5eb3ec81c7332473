package supervise

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

func code(err error) string {
	if err == nil {
		return ""
	}
	return instance.AsFault(err).Code
}

// TestStopTakesTheFirstAnswerBack: a create answers, and that it did cannot be
// recorded any more because a stop came; so its machine is undone, and the next
// start makes a new one instead of looking for the disk of the old one.
func TestStopTakesTheFirstAnswerBack(t *testing.T) {
	r := newRig(t)
	create, stop := r.request(instance.StartRequested), r.request(instance.StopRequested)
	create.mark = func(s Step) error {
		if s.Name != string(plan.StepAgent) || s.Mark != "did" {
			return nil
		}
		if r.s.Record().Guest == nil {
			t.Error("the answer was not stored")
		}
		r.do(stop)
		r.until(instance.Stopping) // the create has been cut short
		return errBoom
	}
	r.run(r.fresh(), Limits{}, create.Request)
	if err := create.end(); code(err) != CodeCanceled {
		t.Errorf("the create ended with %v", err)
	}
	if err := stop.end(); err != nil {
		t.Errorf("the stop ended with %v", err)
	}
	if rec := r.until(instance.Stopped); rec.Guest != nil || r.only() != nil {
		t.Errorf("it is stopped with the answer %+v and the machine %+v", rec.Guest, r.only())
	}
	if err := r.do(r.request(instance.StartRequested)).end(); err != nil {
		t.Fatalf("the next start ended with %v", err)
	}
	if rec := r.until(instance.Running); rec.Guest == nil || rec.Restarts != 0 || r.count("create") != 2 {
		t.Errorf("it runs with the answer %+v after %d creates and %d restarts", rec.Guest, r.count("create"), rec.Restarts)
	}
}

// TestFailedStartKeepsTheDisk: a machine that has run before is not removed when
// a start of it fails, and does not go on executing.
func TestFailedStartKeepsTheDisk(t *testing.T) {
	for _, why := range []string{"start", "agent"} {
		r := newRig(t)
		r.running(Limits{})
		if err := r.do(r.request(instance.StopRequested)).end(); err != nil {
			t.Fatal(err)
		}
		start := r.request(instance.StartRequested)
		if why == "start" {
			r.start = func(context.Context) error { return errBoom }
		} else {
			start.mark = func(s Step) error {
				if s.Name == string(plan.StepAgent) && s.Mark == "began" {
					return errBoom
				}
				return nil
			}
		}
		if err := r.do(start).end(); err == nil {
			t.Errorf("%s: the start succeeded", why)
		}
		rec, m := r.until(instance.Failed), r.only()
		if rec.Fault == nil || m == nil || m.executes() || r.count("close") != 0 {
			t.Errorf("%s: failed with %v, the machine is %+v", why, rec.Fault, m)
		}
	}
}

// TestLostDiskIsNotMadeAnew: a new disk would look like the old one.
func TestLostDiskIsNotMadeAnew(t *testing.T) {
	for _, e := range []instance.Event{instance.StartRequested, instance.StopRequested, instance.PauseRequested} {
		r := newRig(t)
		rec := r.fresh()
		h := handleOf(rec.ID)
		rec.Handle, rec.Guest = &h, &Guest{}
		a := r.request(e)
		rec.Phase = map[instance.Event]instance.Phase{
			instance.StartRequested: instance.Starting, instance.StopRequested: instance.Stopping, instance.PauseRequested: instance.Running,
		}[e]
		r.run(rec, Limits{}, a.Request)
		if e != instance.PauseRequested { // which finds a failed instance, and is denied
			if err := a.end(); code(err) != codeLost {
				t.Errorf("%s ended with %v", e, err)
			}
		}
		if rec := r.until(instance.Failed); code(rec.Fault) != codeLost || r.count("create") != 0 {
			t.Errorf("%s: it failed with %v after %d creates", e, rec.Fault, r.count("create"))
		}
	}
}

// TestUnstoredMachineIsUndone: what the store does not know must not be left.
func TestUnstoredMachineIsUndone(t *testing.T) {
	r := newRig(t)
	r.saving = func(next Record) error {
		if next.Handle != nil && next.Phase == instance.Provisioning {
			return errBoom
		}
		return nil
	}
	create := r.request(instance.StartRequested)
	r.run(r.fresh(), Limits{}, create.Request)
	if err := create.end(); err == nil {
		t.Error("the create succeeded")
	}
	if r.only() != nil || r.count("start") != 0 || !r.forgotten() {
		t.Errorf("after %d starts there is %+v, forgotten: %t", r.count("start"), r.only(), r.forgotten())
	}
}

// TestWhatCannotBeUndoneIsKept: an instance whose machine cannot be removed is
// not forgotten.
func TestWhatCannotBeUndoneIsKept(t *testing.T) {
	r := newRig(t)
	r.start = func(context.Context) error { return errBoom }
	r.closing = func() error { return errBoom }
	create := r.request(instance.StartRequested)
	r.run(r.fresh(), Limits{}, create.Request)
	if err := create.end(); err == nil {
		t.Error("the create succeeded")
	}
	if rec := r.until(instance.Failed); rec.Fault == nil || r.forgotten() || r.only() == nil {
		t.Errorf("%+v, forgotten: %t", rec, r.forgotten())
	}
}

// TestMachineThatEndsBeforeItAnswers is told at once, not at the deadline.
func TestMachineThatEndsBeforeItAnswers(t *testing.T) {
	r := newRig(t)
	create := r.request(instance.StartRequested)
	create.mark = func(s Step) error {
		if s.Name == string(plan.StepAgent) && s.Mark == "began" {
			m := r.only()
			m.mu.Lock()
			m.dial = func() error { m.die(vm.ExitPanic); return errBoom }
			m.mu.Unlock()
		}
		return nil
	}
	rec := r.fresh()
	rec.Plan.SetupTimeout = 24 * time.Hour
	r.run(rec, Limits{}, create.Request)
	if err := create.end(); code(err) != codePanicked {
		t.Errorf("the create ended with %v", err)
	}
}

// TestEndOfTheDaemonUndoesNothing: the next one goes on where this one stood.
func TestEndOfTheDaemonUndoesNothing(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		r := newRig(t)
		begun := make(chan struct{})
		var hangs atomic.Bool
		hangs.Store(fresh)
		r.start = func(ctx context.Context) error {
			if hangs.Load() {
				close(begun)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		a := r.request(instance.StartRequested)
		end := r.run(r.fresh(), Limits{}, a.Request)
		if !fresh {
			if err := a.end(); err != nil {
				t.Fatal(err)
			}
			if err := r.do(r.request(instance.StopRequested)).end(); err != nil {
				t.Fatal(err)
			}
			hangs.Store(true)
			a = r.do(r.request(instance.StartRequested))
		}
		<-begun
		stops := r.count("stop")
		end()
		if r.only() == nil || r.count("stop") != stops || r.stored.Phase != instance.Starting {
			t.Errorf("fresh %t: the machine is %+v, stored is %+v", fresh, r.only(), r.stored)
		}
		select {
		case err := <-a.ended:
			t.Errorf("fresh %t: the request has ended: %v", fresh, err)
		default:
		}
		hangs.Store(false)
		again := r.request(instance.StartRequested)
		r.run(*r.stored, Limits{}, again.Request)
		if err := again.end(); err != nil || r.count("create") != 1 {
			t.Errorf("fresh %t: in the next process it ended with %v after %d creates", fresh, err, r.count("create"))
		}
	}
}

// TestStopThatCameTooEarly: it waits while the files are made, and cuts the
// start short as soon as there is one.
func TestStopThatCameTooEarly(t *testing.T) {
	r := newRig(t)
	create, stop := r.request(instance.StartRequested), r.request(instance.StopRequested)
	create.mark = func(s Step) error {
		if s.Name == string(plan.StepMachine) && s.Mark == "began" {
			r.do(stop)
			_ = r.s.Cancel(t.Context(), "nobody") // it is answered behind the stop
		}
		return nil
	}
	r.start = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	r.run(r.fresh(), Limits{}, create.Request)
	if err := create.end(); code(err) != CodeCanceled {
		t.Errorf("the create ended with %v", err)
	}
	if err := stop.end(); err != nil {
		t.Errorf("the stop ended with %v", err)
	}
	if r.until(instance.Stopped); r.only() != nil {
		t.Errorf("it is stopped with %+v", r.only())
	}
}

// TestStartThatCannotBeTakenBack: what may execute is not called stopped; the
// stop that came tries again.
func TestStartThatCannotBeTakenBack(t *testing.T) {
	r := newRig(t)
	var phases []instance.Phase // stored one at a time
	r.saving = func(next Record) error { phases = append(phases, next.Phase); return nil }
	r.running(Limits{})
	if err := r.do(r.request(instance.StopRequested)).end(); err != nil {
		t.Fatal(err)
	}
	r.until(instance.Stopped)
	begun := make(chan struct{})
	r.start = func(ctx context.Context) error { close(begun); <-ctx.Done(); return ctx.Err() }
	fails := 1
	r.stop = func(context.Context) error {
		if fails--; fails >= 0 {
			return errBoom
		}
		return nil
	}
	start := r.do(r.request(instance.StartRequested))
	<-begun
	if err := r.do(r.request(instance.StopRequested)).end(); err != nil {
		t.Errorf("the stop ended with %v", err)
	}
	if err := start.end(); err == nil {
		t.Error("the start succeeded")
	}
	r.until(instance.Stopped)
	want := []instance.Phase{instance.Starting, instance.Stopping, instance.Failed, instance.Stopping, instance.Stopped}
	if got := phases[len(phases)-len(want):]; !slices.Equal(got, want) {
		t.Errorf("it went through %v, want %v", got, want)
	}
}
