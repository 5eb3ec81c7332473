package converge_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
)

// world is what the steps of the tests change: a set of things that exist.
type world struct {
	things map[string]bool
	log    []string
}

func (w *world) Mark(_ context.Context, step converge.Step, mark converge.Mark, _ error) error {
	w.log = append(w.log, fmt.Sprintf("%s %s", step.Name, mark))
	return nil
}

func (w *world) step(name string, fail error) converge.Step {
	return converge.Step{
		Name: name,
		Done: func(context.Context) (bool, error) { return w.things[name], nil },
		Do: func(context.Context) error {
			w.things[name] = true // half-made even when it fails
			return fail
		},
		Undo: func(context.Context) error {
			delete(w.things, name)
			return nil
		},
	}
}

func TestRunDoesEveryStepInOrder(t *testing.T) {
	w := &world{things: map[string]bool{"b": true}}
	if err := converge.Run(t.Context(), w, []converge.Step{w.step("a", nil), w.step("b", nil), w.step("c", nil)}); err != nil {
		t.Fatal(err)
	}
	want := []string{"a began", "a did", "b skipped", "c began", "c did"}
	if !slices.Equal(w.log, want) {
		t.Errorf("journal is %q, want %q", w.log, want)
	}
}

// TestRunFailsAtEveryStep fails the plan at step 0, 1, 2 … and wants a clean
// slate each time, and a run that then succeeds.
func TestRunFailsAtEveryStep(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	boom := errors.New("boom")
	for at := range names {
		w := &world{things: map[string]bool{}}
		steps := make([]converge.Step, len(names))
		for i, n := range names {
			steps[i] = w.step(n, nil)
			if i == at {
				steps[i] = w.step(n, boom)
			}
		}
		err := converge.Run(t.Context(), w, steps)
		var stepErr *converge.StepError
		if !errors.As(err, &stepErr) || stepErr.Step != names[at] || !errors.Is(err, boom) {
			t.Fatalf("failing at %q: got %v", names[at], err)
		}
		if len(w.things) != 0 {
			t.Errorf("failing at %q left %v", names[at], w.things)
		}
		steps[at] = w.step(names[at], nil)
		if err := converge.Run(t.Context(), w, steps); err != nil {
			t.Errorf("second run after failing at %q: %v", names[at], err)
		}
	}
}

func TestRunStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{things: map[string]bool{}}
	a := w.step("a", nil)
	do := a.Do
	a.Do = func(ctx context.Context) error { cancel(); return do(ctx) }
	err := converge.Run(ctx, w, []converge.Step{a, w.step("b", nil)})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if len(w.things) != 0 {
		t.Errorf("left %v", w.things)
	}
}

func TestRunReportsWhatCouldNotBeUndone(t *testing.T) {
	w := &world{things: map[string]bool{}}
	a := w.step("a", nil)
	a.Undo = func(context.Context) error { return errors.New("stuck") }
	err := converge.Run(t.Context(), w, []converge.Step{a, w.step("b", errors.New("boom"))})
	if err == nil || !strings.Contains(err.Error(), "boom") || !strings.Contains(err.Error(), "a: stuck") {
		t.Errorf("got %v, want both causes", err)
	}
}

func TestRunVerifies(t *testing.T) {
	w := &world{things: map[string]bool{}}
	lie := converge.Step{
		Name: "lie",
		Done: func(context.Context) (bool, error) { return false, nil },
		Do:   func(context.Context) error { return nil },
	}
	if err := converge.Run(t.Context(), w, []converge.Step{lie}); err == nil {
		t.Error("a step that did not do what it says was believed")
	}
}
