package supervise

import (
	"context"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// save changes the record if the change can be stored, and not otherwise. A
// change that returns an error is not made.
func (s *Supervisor) save(ctx context.Context, n Note, change func(*Record) error) error {
	_, err := s.store(ctx, n, true, change)
	return err
}

// note records what has happened. It is so whether it can be stored or not;
// what could not be is stored again later.
func (s *Supervisor) note(ctx context.Context, n Note, change func(*Record)) {
	_, err := s.store(ctx, n, false, func(r *Record) error { change(r); return nil })
	if err != nil {
		s.log.ErrorContext(ctx, "cannot store the instance", "error", err)
	}
}

// Update changes what its owner may change of a record, in one step with its
// storing, and returns the new one. An error of change is returned as it is.
func (s *Supervisor) Update(ctx context.Context, n Note, change func(*Record) error) (Record, error) {
	select {
	case <-s.gone:
		return Record{}, notFound(s.Record())
	default:
	}
	return s.store(ctx, n, true, change)
}

func (s *Supervisor) store(ctx context.Context, n Note, strict bool, change func(*Record) error) (Record, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	old := s.Record()
	next := old.clone()
	if err := change(&next); err != nil {
		return old, err
	}
	next.UpdatedAt = s.cfg.Now()
	next.Generation++
	err := s.cfg.Store.Save(context.WithoutCancel(ctx), old, next, n)
	if err != nil {
		err = fmt.Errorf("cannot store instance %q: %w", old.Name, err)
		if strict {
			return old, err
		}
	}
	s.mu.Lock()
	s.record, s.unsaved = next, err != nil
	if old.Phase != instance.Running && next.Phase == instance.Running {
		s.runsSince = s.cfg.Now() // nobody could use it before
	}
	s.notify()
	s.mu.Unlock()
	s.stir()
	return next.clone(), err
}

// notify wakes everyone who waits for a change; s.mu is held.
func (s *Supervisor) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
