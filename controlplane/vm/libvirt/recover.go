package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"
	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// Recover takes a machine over from an earlier process.
func (d *Driver) Recover(ctx context.Context, h vm.Handle) (vm.Instance, error) {
	m, err := d.recover(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("cannot recover machine: %w", err)
	}
	return m, nil
}

func (d *Driver) recover(ctx context.Context, h vm.Handle) (*machine, error) {
	id, err := readHandle(h)
	if err != nil {
		return nil, err
	}
	m, unlock, err := d.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if m.made() {
		return m, nil
	}
	rec, err := loadRecord(m.files)
	if errors.Is(err, errNoRecord) || errors.Is(err, errBadRecord) {
		// Who has the machine must be able to end and to remove it.
		rec, err = m.orphan()
	}
	if err == nil {
		err = m.adopt(ctx, rec)
	}
	if err != nil {
		d.forget(m)
		return nil, err
	}
	return m, nil
}

// orphan makes a record for a machine that has lost its own. It can be dialled
// and closed, not started again.
func (m *machine) orphan() (record, error) {
	rec := record{Version: recordVersion, ID: m.id, Run: &run{Way: m.d.way, Resumed: true}}
	if m.d.session != nil {
		_, _, err := m.d.state(m.id)
		if err == nil {
			return rec, os.MkdirAll(m.files.dir(), 0o711)
		}
		if !noDomain(err) {
			return record{}, err
		}
	}
	if _, err := os.Stat(m.files.dir()); err != nil {
		return record{}, vm.ErrGone
	}
	rec.Run = nil // files of a creation that was cut short
	return rec, nil
}

// adopt takes over what a record tells of, as it is now.
func (m *machine) adopt(ctx context.Context, rec record) error {
	if rec.Run == nil {
		m.set(rec, life{phase: phaseIdle}, nil)
		return nil
	}
	ended := make(chan struct{})
	now, err := m.present(ctx)
	if err != nil {
		return err
	}
	if now.phase == phaseEnded || !rec.Run.Resumed {
		if now.phase != phaseEnded {
			// Our predecessor died between making the domain and letting it run.
			if err := m.destroyDomain(ctx); err != nil {
				return err
			}
		}
		exit := m.lastExit(rec)
		rec.Run.Ended = &exit
		close(ended)
		m.set(rec, life{phase: phaseEnded, exit: exit}, ended)
		return rec.save(m.files)
	}
	rec.Run.Ended = nil
	m.set(rec, now, ended)
	if err := m.attach(); err != nil {
		return err
	}
	m.d.files.add(m.files.console(), maxConsoleFile)
	if path := m.hypervisorLog(); path != "" {
		m.d.files.add(path, maxHypervisorLog)
	}
	return m.rewire(rec.Run)
}

func (m *machine) set(rec record, l life, ended chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record, m.life, m.ended, m.since = rec, l, ended, time.Now()
}

// present asks what a machine is doing now. Just after connecting libvirt
// tells what it knew before; a monitor command makes it look.
func (m *machine) present(ctx context.Context) (life, error) {
	if m.d.session == nil {
		return life{phase: phaseEnded}, nil
	}
	if _, err := raw.NewMonitor(m.monitor(ctx)).QueryStatus(); err != nil && ctx.Err() != nil {
		return life{}, ctx.Err()
	}
	state, _, err := m.d.state(m.id)
	if noDomain(err) {
		return life{phase: phaseEnded}, nil
	}
	if err != nil {
		return life{}, err
	}
	switch state {
	case lv.DOMAIN_RUNNING, lv.DOMAIN_BLOCKED:
		return life{phase: phaseRunning}, nil
	case lv.DOMAIN_SHUTOFF, lv.DOMAIN_CRASHED:
		return life{phase: phaseEnded}, nil
	default:
		return life{phase: phasePaused}, nil
	}
}

// lastExit says how a machine ended that nobody watched.
func (m *machine) lastExit(rec record) vm.Exit {
	if rec.Run.Ended != nil {
		return *rec.Run.Ended
	}
	if !rec.Run.Resumed {
		return vm.Exit{Reason: vm.ExitUnknown, Detail: "the control plane ended while it was being started"}
	}
	console := tail(m.files.console(), maxConsole)
	if line := panicLine.Find(console); line != nil {
		return vm.Exit{Reason: vm.ExitUnknown, Detail: fmt.Sprintf("ended while nobody watched; its console says %q", line)}
	}
	return vm.Exit{Reason: vm.ExitUnknown, Detail: "ended while nobody watched"}
}

// rewireLimit bounds the plugging of a recovered machine's vsock device. The
// guest must give the old one up, and may be paused or still booting.
const rewireLimit = 5 * time.Minute

// rewire gives a running machine its link again. On the vhost-user way the
// device died with its backend, our predecessor, and must be plugged anew;
// that goes on in the background, and Dial waits for it.
func (m *machine) rewire(r *run) error {
	if r.Way == WayKernel {
		m.mu.Lock()
		m.wire = wired(kernelLink{vsock.Kernel(r.CID)})
		m.mu.Unlock()
		return nil
	}
	l, err := m.openLink()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.d.life, rewireLimit)
	w := &wire{ready: make(chan struct{}), link: l, cancel: cancel}
	m.mu.Lock()
	m.wire = w
	m.mu.Unlock()
	ok := m.d.spawn(func() {
		defer cancel()
		defer close(w.ready)
		err := m.unplug(ctx)
		if err == nil {
			err = m.plug(ctx)
		}
		if err == nil {
			return
		}
		w.err = err
		if !m.gone() && !errors.Is(err, context.Canceled) {
			m.d.log.Error("cannot plug a recovered machine's vsock device", "instance", m.id, "error", err)
		}
	})
	if !ok {
		cancel()
		return errors.Join(errClosed, l.Close())
	}
	return nil
}
