package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// step is one part of making or starting a machine, and its undoing. undo may
// be nil and must work after a do that failed half-way.
type step struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

// undoLimit bounds the undoing of one failed sequence.
const undoLimit = time.Minute

// perform does the steps in order. When one fails, what has been done is undone
// in reverse, that of the failed step included. When ctx ends before a step was
// begun, that step is not undone: its undoing may rely on what its do noted.
func perform(ctx context.Context, steps []step, fail func(string) error) error {
	for i, s := range steps {
		if err := ctx.Err(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), undo(ctx, steps[:i]))
		}
		err := s.do(ctx)
		if err == nil && fail != nil {
			err = fail(s.name)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), undo(ctx, steps[:i+1]))
		}
	}
	return nil
}

func undo(ctx context.Context, steps []step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	var errs []error
	for _, s := range slices.Backward(steps) {
		if s.undo == nil {
			continue
		}
		if err := s.undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cannot undo %q: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}
