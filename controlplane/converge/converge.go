// Package converge carries out ordered steps: measure, act, verify, undo.
//
// A step first measures whether the world is already as it wants, acts only
// if not, and measures again afterwards. When a step fails or the context
// ends, the steps that acted are undone in reverse, the failing one included:
// it may have done half of its work. So a plan that was cut short, by a fault
// or by the death of the process, can simply be run again.
//
// The package knows nothing of machines; steps close over what they need.
package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// undoTimeout bounds the undo of one step. Undo runs after the caller's
// context has ended, so it needs a bound of its own.
const undoTimeout = 60 * time.Second

// Step is one idempotent piece of work.
type Step struct {
	// Name is shown to people and stored in the journal.
	Name string
	// Percent of the whole that is done once this step is.
	Percent int
	// Done measures: true means there is nothing to do. May be nil for steps
	// whose Do is itself cheap and idempotent.
	Done func(ctx context.Context) (bool, error)
	// Do acts. It must be safe to repeat.
	Do func(ctx context.Context) error
	// Undo removes what Do made, also after a Do that failed half-way or never
	// began. May be nil.
	Undo func(ctx context.Context) error
}

// Mark is what happened to a step.
type Mark string

// The marks of the journal.
const (
	Began   Mark = "began"
	Skipped Mark = "skipped" // measured: nothing to do
	Did     Mark = "did"
	Failed  Mark = "failed"
	Undone  Mark = "undone"
)

// Journal records progress before and after each step. A journal that fails
// stops the run: work that cannot be recorded is not begun.
type Journal interface {
	Mark(ctx context.Context, step Step, mark Mark, cause error) error
}

// StepError says which step failed.
type StepError struct {
	Step string
	Err  error
	// UndoErr is set when something could not be undone and is left over.
	UndoErr error
}

func (e *StepError) Error() string {
	if e.UndoErr != nil {
		return fmt.Sprintf("%s: %v; and could not undo all of it: %v", e.Step, e.Err, e.UndoErr)
	}
	return fmt.Sprintf("%s: %v", e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// ErrDetached as the cause of a context's end says that the process ends: what
// has been done stays as it is, for the next process to go on with.
var ErrDetached = errors.New("the process ends")

// Run carries the steps out in order. It returns nil when all are done, and
// otherwise a *StepError after undoing what was done.
func Run(ctx context.Context, journal Journal, steps []Step) error {
	for i, step := range steps {
		err := one(ctx, journal, step)
		if err == nil {
			continue
		}
		if errors.Is(context.Cause(ctx), ErrDetached) {
			return &StepError{Step: step.Name, Err: ErrDetached}
		}
		// The cause is told already; a journal that fails must not keep us
		// from undoing.
		_ = journal.Mark(context.WithoutCancel(ctx), step, Failed, err)
		return &StepError{Step: step.Name, Err: err, UndoErr: undo(ctx, journal, steps[:i+1])}
	}
	return nil
}

func one(ctx context.Context, journal Journal, step Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if step.Done != nil {
		done, err := step.Done(ctx)
		if err != nil {
			return fmt.Errorf("cannot measure: %w", err)
		}
		if done {
			return journal.Mark(ctx, step, Skipped, nil)
		}
	}
	if err := journal.Mark(ctx, step, Began, nil); err != nil {
		return err
	}
	if err := step.Do(ctx); err != nil {
		return err
	}
	if step.Done != nil {
		done, err := step.Done(ctx)
		if err != nil {
			return fmt.Errorf("cannot verify: %w", err)
		}
		if !done {
			return errors.New("it was done, and yet is not so")
		}
	}
	return journal.Mark(ctx, step, Did, nil)
}

// undo takes steps back, newest first. It goes on after an error, so that one
// stuck step leaves as little as possible behind.
func undo(ctx context.Context, journal Journal, steps []Step) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, step := range slices.Backward(steps) {
		if step.Undo == nil {
			continue
		}
		stepCtx, cancel := context.WithTimeout(ctx, undoTimeout)
		err := step.Undo(stepCtx)
		if err == nil {
			_ = journal.Mark(stepCtx, step, Undone, nil) // it is undone whether that is recorded or not
		}
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.Name, err))
		}
	}
	return errors.Join(errs...)
}
