package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Stop kills the agent and all processes of its runs.
func (m *Machine) Stop(ctx context.Context) error {
	m.act.Lock()
	defer m.act.Unlock()
	if err := m.ready(ctx, "stop"); err != nil {
		return err
	}
	return m.kill(ctx)
}

// kill ends the process and waits for it. Called with act held.
func (m *Machine) kill(ctx context.Context) error {
	l, runs := m.current()
	if !runs {
		return nil
	}
	m.mu.Lock()
	l.ours = true
	m.mu.Unlock()
	if err := killTree(ctx, l.proc.stat); err != nil {
		return fmt.Errorf("cannot stop machine %q: %w", m.spec.ID, err)
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot stop machine %q: %w", m.spec.ID, ctx.Err())
	}
}

// Close kills the agent and removes everything of the machine.
func (m *Machine) Close(ctx context.Context) error {
	m.act.Lock()
	defer m.act.Unlock()
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return nil
	}
	if m.driver.isClosed() {
		return errClosed
	}
	if err := m.kill(ctx); err != nil {
		return err
	}
	if l, _ := m.current(); l != nil {
		<-l.watched
	}
	if err := m.driver.remove(m.spec.ID); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.life != nil {
		// However it ended before: now it has been destroyed.
		m.life = nil
	}
	return nil
}

// Pause stops every process of the machine where it is.
func (m *Machine) Pause(ctx context.Context) error {
	return m.each(ctx, "pause", func(root stat) error {
		var errs []error
		for _, p := range freeze(root) {
			errs = append(errs, p.awaitStopped(ctx))
			p.release()
		}
		return errors.Join(errs...)
	})
}

// Resume lets them go on, children first, so that the agent finds them awake.
func (m *Machine) Resume(ctx context.Context) error {
	return m.each(ctx, "resume", func(root stat) error {
		var errs []error
		for _, s := range slices.Backward(tree(processes(), root)) {
			p, err := hold(s)
			if err != nil {
				continue // it has ended meanwhile
			}
			errs = append(errs, p.signal(unix.SIGCONT))
			p.release()
		}
		return errors.Join(errs...)
	})
}

func (m *Machine) each(ctx context.Context, verb string, f func(root stat) error) error {
	m.act.Lock()
	defer m.act.Unlock()
	if err := m.ready(ctx, verb); err != nil {
		return err
	}
	l, runs := m.current()
	if !runs {
		return fmt.Errorf("cannot %s machine %q: it does not run", verb, m.spec.ID)
	}
	return f(l.proc.stat)
}
