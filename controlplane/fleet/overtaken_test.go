package fleet_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// gated is a log that holds up who says that the agent has answered, which is the
// last thing a start does before it is over.
type gated struct {
	slog.Handler
	reached, open chan struct{}
	once          *sync.Once
}

func (g gated) Enabled(context.Context, slog.Level) bool { return true }

func (g gated) WithAttrs(attrs []slog.Attr) slog.Handler {
	g.Handler = g.Handler.WithAttrs(attrs)
	return g
}

func (g gated) Handle(ctx context.Context, r slog.Record) error {
	did := map[string]string{}
	r.Attrs(func(a slog.Attr) bool { did[a.Key] = a.Value.String(); return true })
	if r.Message == "step" && did["step"] == "agent" && did["mark"] == "did" {
		g.once.Do(func() { close(g.reached); <-g.open })
	}
	if r.Level < slog.LevelInfo {
		return nil
	}
	return g.Handler.Handle(ctx, r)
}

// TestEndOfAStartThatHasSucceeded: what cuts a start short when its machine has
// just come up, too late to interrupt anything, is carried out all the same.
func TestEndOfAStartThatHasSucceeded(t *testing.T) {
	for what, want := range map[string]instance.Phase{
		"cancel": instance.Stopped, "stop": instance.Stopped, "restart": instance.Running, "delete": "",
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			g := gated{reached: make(chan struct{}), open: make(chan struct{}), once: &sync.Once{}}
			r.config = func(c *fleet.Config) { g.Handler = c.Log.Handler(); c.Log = slog.New(g) }
			r.open()
			start, err := r.fleet.Create(t.Context(), request("quick"))
			if err != nil {
				t.Fatal(err)
			}
			<-g.reached
			var op fleet.Operation
			switch what {
			case "cancel":
				r.cancel(start)
			case "delete":
				op, err = r.fleet.Delete(t.Context(), "quick", 0)
			default:
				op, err = r.fleet.Act(t.Context(), "quick", fleet.Action(what), fleet.ActOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			if what == "delete" {
				r.until("quick", instance.Deleting)
			} else {
				r.until("quick", instance.Stopping)
			}
			close(g.open)
			if start = r.end(start); start.State != fleet.OperationCanceled {
				t.Errorf("the create ended %s: %v", start.State, start.Fault)
			}
			if op.ID != "" {
				if op = r.end(op); op.State != fleet.OperationSucceeded {
					t.Errorf("the %s ended %s: %v", what, op.State, op.Fault)
				}
			}
			if want == "" {
				r.gone("quick")
				return
			}
			v := r.until("quick", want)
			if found, err := r.driver.List(t.Context()); err != nil || len(found) != 1 || found[0].Running != (want == instance.Running) {
				t.Errorf("it is %s, its machine: %+v, %v", v.Phase, found, err)
			}
		})
	}
}

// TestWhatCutsShortIsNotTakenBack: a delete that has begun to take the work of
// another request back cannot be cancelled any more, not by the next daemon
// either: nobody must be told that a machine stays which is being removed.
func TestWhatCutsShortIsNotTakenBack(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("doomed")
	undo := make(chan struct{})
	reached := make(chan struct{}, 16)
	r.fault.stop = func(context.Context) error { reached <- struct{}{}; <-undo; return errBoom }
	stop, err := r.fleet.Act(t.Context(), "doomed", fleet.ActionStop, fleet.ActOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	del, err := r.fleet.Delete(t.Context(), "doomed", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.until("doomed", instance.Deleting)
	if _, err := r.fleet.CancelOperation(t.Context(), del.ID); faultCode(err) != supervise.CodeNotCancelable {
		t.Errorf("cancel of a delete that has begun: %v", err)
	}
	close(undo)
	r.end(stop)
	if del = r.end(del); del.State != fleet.OperationSucceeded {
		t.Errorf("the delete ended %s: %v", del.State, del.Fault)
	}
	r.gone("doomed")
}

// cancelled is a store in which an operation has been asked to end, as by a
// process that died before it could find out that it cannot.
type cancelled struct {
	fleet.Store
	id string
}

func (c cancelled) Operations(ctx context.Context, f fleet.OperationFilter) (fleet.OperationPage, error) {
	page, err := c.Store.Operations(ctx, f)
	for i := range page.Operations {
		if page.Operations[i].ID == c.id {
			page.Operations[i].Canceling = true
		}
	}
	return page, err
}

// keeping is a store that forgets no instance.
type keeping struct{ fleet.Store }

func (k keeping) Apply(ctx context.Context, c *fleet.Change) error {
	if c.Remove != nil {
		return errBoom
	}
	return k.Store.Apply(ctx, c)
}

func TestNextDaemonRemovesInSpiteOfACancel(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("doomed")
	r.close()
	r.config = func(c *fleet.Config) { c.Store = keeping{c.Store} }
	r.open()
	del, err := r.fleet.Delete(t.Context(), "doomed", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.until("doomed", instance.Deleting)
	r.close()
	r.config = func(c *fleet.Config) { c.Store = cancelled{c.Store, del.ID} }
	r.open()
	if del = r.end(del); del.State != fleet.OperationSucceeded {
		t.Errorf("the delete ended %s: %v", del.State, del.Fault)
	}
	r.gone("doomed")
}

// TestDeleteEndsWhatWaits: what waits behind a delete was asked of an instance
// that there was.
func TestDeleteEndsWhatWaits(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("leaving")
	hook, reached := hang()
	r.fault.pause = hook
	if _, err := r.fleet.Act(t.Context(), "leaving", fleet.ActionPause, fleet.ActOptions{}); err != nil {
		t.Fatal(err)
	}
	<-reached
	stop, err := r.fleet.Act(t.Context(), "leaving", fleet.ActionStop, fleet.ActOptions{})
	if err != nil {
		t.Fatal(err)
	}
	del, err := r.fleet.Delete(t.Context(), "leaving", 0)
	if err != nil {
		t.Fatal(err)
	}
	if stop = r.end(stop); stop.State != fleet.OperationCanceled ||
		stop.Fault.Error() != "the stop was cut short: the machine is being removed" {
		t.Errorf("the stop that waited ended %s: %v", stop.State, stop.Fault)
	}
	if del = r.end(del); del.State != fleet.OperationSucceeded {
		t.Errorf("the delete ended %s: %v", del.State, del.Fault)
	}
}
