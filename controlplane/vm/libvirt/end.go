package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
)

// politeLimit is how long libvirt may try to end a machine before we kill the
// hypervisor. libvirt itself would wait ten seconds.
const politeLimit = 3 * time.Second

// Stop cuts the power; the disk stays.
func (m *machine) Stop(ctx context.Context) error {
	unlock, err := m.lock(ctx)
	if err == nil {
		defer unlock()
		err = m.cut(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot stop machine %q: %w", m.id, err)
	}
	return nil
}

// cut ends the current run, if there is one.
func (m *machine) cut(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.life.ours = true
	wire := m.wire
	m.mu.Unlock()
	if wire != nil {
		wire.cancel()
	}
	if err := m.destroyDomain(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	if m.life.phase != phaseIdle && m.life.phase != phaseEnded {
		m.life.finish(vm.ExitDestroyed, "")
		m.since = time.Now()
	}
	m.mu.Unlock()
	if err := m.settled(ctx); err != nil {
		return err
	}
	return removeFile(m.files.socket())
}

// destroyDomain ends the domain and returns when its process is gone. A domain
// that does not exist is no error.
func (m *machine) destroyDomain(ctx context.Context) error {
	if m.d.session == nil {
		return nil
	}
	m.mu.Lock()
	proc := m.proc
	m.mu.Unlock()
	done := make(chan error, 1)
	ok := m.d.spawn(func() {
		done <- m.d.withDomain(m.id, func(dom *lv.Domain) error { return dom.DestroyFlags(lv.DOMAIN_DESTROY_DEFAULT) })
	})
	if !ok {
		return errClosed
	}
	force := time.NewTimer(politeLimit)
	defer force.Stop()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-done:
			waiting = false
		case <-force.C:
			m.d.log.Warn("libvirt does not end the machine in time; killing its hypervisor", "instance", m.id)
			if proc != nil {
				err = embedded.KillPIDFD(proc.file)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil && !notRunning(err) {
		return fmt.Errorf("cannot destroy domain %q: %w", m.name, err)
	}
	if proc == nil {
		return nil
	}
	select {
	case <-proc.gone:
		return nil
	case <-m.d.life.Done():
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("cannot see the hypervisor end (pid %d): %w", proc.pid, ctx.Err())
	}
}

// Close destroys the machine and removes everything of it.
func (m *machine) Close(ctx context.Context) error {
	unlock, err := m.lock(ctx)
	if err == nil {
		defer unlock()
		err = m.remove(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot remove machine %q: %w", m.id, err)
	}
	return nil
}

func (m *machine) remove(ctx context.Context) error {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return nil
	}
	if err := m.cut(ctx); err != nil {
		return err
	}
	m.d.files.drop(m.files.console())
	if err := m.removeTraces(); err != nil {
		return err
	}
	if err := os.RemoveAll(m.files.dir()); err != nil {
		return fmt.Errorf("cannot remove files: %w", err)
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.d.forget(m)
	return nil
}

// hypervisorLog is QEMU's log, where the embedded driver keeps it.
func (m *machine) hypervisorLog() string {
	if !m.d.embedded() {
		return ""
	}
	return filepath.Join(m.d.root.Dir, "log", "qemu", m.name+".log")
}

// removeTraces removes what libvirt leaves in its root after a machine.
func (m *machine) removeTraces() error {
	path := m.hypervisorLog()
	if path == "" {
		return nil
	}
	m.d.files.drop(path)
	dirs, err := embedded.Traces(m.d.root.Dir, m.name)
	errs := []error{removeFile(path), removeFile(path + rotated), err}
	for _, dir := range dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// Pause stops the guest's processors.
func (m *machine) Pause(ctx context.Context) error {
	return m.toggle(ctx, "pause", phaseRunning, phasePaused, (*lv.Domain).Suspend)
}

// Resume lets a paused guest go on.
func (m *machine) Resume(ctx context.Context) error {
	return m.toggle(ctx, "resume", phasePaused, phaseRunning, (*lv.Domain).Resume)
}

// toggle moves between running and paused. Being there already is no error.
func (m *machine) toggle(ctx context.Context, verb string, from, to phase, f func(*lv.Domain) error) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return fmt.Errorf("cannot %s machine %q: %w", verb, m.id, err)
	}
	defer unlock()
	m.mu.Lock()
	phase, closed := m.life.phase, m.closed
	m.mu.Unlock()
	switch {
	case closed || phase == phaseEnded:
		return fmt.Errorf("cannot %s machine %q: %w", verb, m.id, vm.ErrGone)
	case phase == to:
		return nil
	case phase != from:
		return fmt.Errorf("cannot %s machine %q while it is %s", verb, m.id, phase)
	}
	err = m.d.call(ctx, func() error { return m.d.withDomain(m.id, f) })
	if err != nil {
		if noDomain(err) {
			err = errors.Join(vm.ErrGone, err)
		}
		return fmt.Errorf("cannot %s machine %q: %w", verb, m.id, err)
	}
	m.mu.Lock()
	if m.life.phase == from {
		m.life.phase, m.since = to, time.Now()
	}
	m.mu.Unlock()
	return nil
}
