package supervise

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// bare is a driver without machines.
type bare struct{}

func (bare) Capabilities(context.Context) (vm.Capabilities, error) { return vm.Capabilities{}, nil }
func (bare) Create(context.Context, vm.Spec) (vm.Instance, vm.Handle, error) {
	return nil, vm.Handle{}, vm.ErrUnavailable
}
func (bare) Recover(context.Context, vm.Handle) (vm.Instance, error) { return nil, vm.ErrGone }
func (bare) List(context.Context) ([]vm.Found, error)                { return nil, nil }
func (bare) Close() error                                            { return nil }

// ends is a tracker that tells how a request ended.
type ends chan error

func (ends) Step(context.Context, Step) error   { return nil }
func (e ends) End(_ context.Context, err error) { e <- err }

// TestStartThatCameUpAllTheSame: a start is cancelled, or cut short by a stop,
// at the moment in which it succeeds. Where the instance is bound for has been
// stored then, and somebody must take it there.
func TestStartThatCameUpAllTheSame(t *testing.T) {
	code := func(err error) string {
		if err == nil {
			return ""
		}
		return instance.AsFault(err).Code
	}
	for name, c := range map[string]struct {
		bound    instance.Phase
		canceled bool
		waits    instance.Event
		start    string // how the start ends
		end      instance.Phase
		removed  bool
	}{
		"a start is cancelled":        {instance.Stopping, true, "", CodeCanceled, instance.Stopped, false},
		"a create is cancelled":       {instance.Deleting, true, "", CodeCanceled, instance.Deleting, true},
		"a stop cuts it short":        {instance.Stopping, false, instance.StopRequested, CodeCanceled, instance.Stopped, false},
		"a delete cuts it short":      {instance.Deleting, false, instance.DeleteRequested, CodeCanceled, instance.Deleting, true},
		"a cancelled one, and a stop": {instance.Stopping, true, instance.StopRequested, CodeCanceled, instance.Stopped, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := New(Config{Store: paper{}, Driver: bare{}, Log: slog.New(slog.DiscardHandler), Now: time.Now}, Record{Phase: c.bound})
			start := &Request{ID: "start", Event: instance.StartRequested, Track: make(ends, 1), canceled: c.canceled, working: instance.StartRequested}
			s.queue.busy = start
			if c.waits != "" {
				s.queue.waiting = []*Request{{ID: "next", Event: c.waits, Track: make(ends, 1)}}
			}
			removed := s.finish(ctx, result{request: start, event: instance.Answered})
			for s.queue.busy != nil && !removed {
				select {
				case res := <-s.results:
					removed = s.finish(ctx, res)
				case <-ctx.Done():
					t.Fatal("nobody works")
				}
			}
			if phase := s.Record().Phase; phase != c.end || removed != c.removed {
				t.Errorf("it is %s, removed %t", phase, removed)
			}
			if err := <-start.Track.(ends); code(err) != c.start {
				t.Errorf("the start ended with %v", err)
			}
			s.wg.Wait()
		})
	}
}
