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

// perform does the steps in order. When one fails, or ctx ends, what has been
// done is undone in reverse, that of the failed step included.
func perform(ctx context.Context, steps []step, fail func(string) error) error {
	for i, s := range steps {
		err := ctx.Err()
		if err == nil {
			err = s.do(ctx)
		}
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
