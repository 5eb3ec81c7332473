package converge_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

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

// script is a run whose every call may fail, and what it must come to.
type script struct {
	n     int
	fails map[string]bool // calls that fail
	ends  string          // the call at which the context ends; empty: none
	cause error
	end   context.CancelCauseFunc
	log   []string
}

var errBroken = errors.New("broken")

// call is one call of a step or of the journal.
func (s *script) call(ctx context.Context, name string, bound bool) error {
	s.log = append(s.log, name)
	if s.ends == name {
		s.end(s.cause)
	}
	if bound && ctx.Err() != nil {
		return ctx.Err()
	}
	if s.fails[name] {
		return errBroken
	}
	return nil
}

func (s *script) Mark(ctx context.Context, step converge.Step, mark converge.Mark, _ error) error {
	return s.call(ctx, string(mark)+step.Name, true)
}

func (s *script) steps() (steps []converge.Step) {
	for i := range s.n {
		name := strconv.Itoa(i)
		looks := 0
		steps = append(steps, converge.Step{
			Name: name,
			Done: func(ctx context.Context) (bool, error) {
				looks++
				if looks == 1 {
					return s.fails["there"+name], s.call(ctx, "measure"+name, true)
				}
				return !s.fails["lie"+name], s.call(ctx, "verify"+name, true)
			},
			Do:   func(ctx context.Context) error { return s.call(ctx, "do"+name, true) },
			Undo: func(ctx context.Context) error { return s.call(ctx, "undo"+name, true) },
		})
	}
	return steps
}

// want is the log that a run must leave: everything in its order up to the
// first thing that goes wrong, then the undoing of all steps from there back,
// whatever goes wrong meanwhile; or nothing more, if the process ends.
func (s *script) want() (log []string, failed, undoFails bool) {
	ended := false
	say := func(name string) bool {
		log = append(log, name)
		if s.ends == name {
			ended = true
		}
		return !ended && !s.fails[name]
	}
	one := func(i int) bool {
		name := strconv.Itoa(i)
		if ended {
			return false
		}
		if !say("measure" + name) {
			return false
		}
		if s.fails["there"+name] {
			return say("skipped" + name)
		}
		return say("began"+name) && say("do"+name) && say("verify"+name) && !s.fails["lie"+name] && say("did"+name)
	}
	for i := range s.n {
		if one(i) {
			continue
		}
		if ended && errors.Is(s.cause, converge.ErrDetached) {
			return log, true, false
		}
		log = append(log, "failed"+strconv.Itoa(i))
		for ; i >= 0; i-- {
			name := strconv.Itoa(i)
			log = append(log, "undo"+name)
			if s.fails["undo"+name] {
				undoFails = true
			} else {
				log = append(log, "undone"+name)
			}
		}
		return log, true, undoFails
	}
	return log, false, false
}

// TestRunOfAnything lets any calls of any run fail, and the context end at any
// of them.
func TestRunOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &script{n: rapid.IntRange(1, 4).Draw(t, "steps"), fails: map[string]bool{}}
		var calls []string
		for i := range s.n {
			for _, what := range []string{"measure", "there", "began", "do", "verify", "lie", "did", "skipped", "failed"} {
				calls = append(calls, what+strconv.Itoa(i))
			}
			for _, what := range []string{"undo", "undone"} {
				s.fails[what+strconv.Itoa(i)] = rapid.IntRange(0, 2).Draw(t, what) == 0
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "failures") {
			s.fails[rapid.SampledFrom(calls).Draw(t, "failure")] = true
		}
		if rapid.Bool().Draw(t, "ends") {
			s.ends = rapid.SampledFrom(calls).Draw(t, "end")
			s.cause = rapid.SampledFrom([]error{converge.ErrDetached, context.Canceled}).Draw(t, "cause")
		}
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		s.end = end
		err := converge.Run(ctx, s, s.steps())
		want, failed, undoFails := s.want()
		if !slices.Equal(s.log, want) {
			t.Fatalf("the run was\n%q, want\n%q", s.log, want)
		}
		var stepErr *converge.StepError
		if (err != nil) != failed || failed && (!errors.As(err, &stepErr) || (stepErr.UndoErr != nil) != undoFails) {
			t.Fatalf("it ended with %v", err)
		}
	})
}
