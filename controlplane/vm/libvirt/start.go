package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// Start boots the machine from its disk.
func (m *machine) Start(ctx context.Context) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return fmt.Errorf("cannot start machine %q: %w", m.id, err)
	}
	defer unlock()
	m.mu.Lock()
	closed, phase := m.closed, m.life.phase
	m.mu.Unlock()
	switch {
	case closed:
		return fmt.Errorf("cannot start machine %q: %w", m.id, vm.ErrGone)
	case phase == phaseRunning || phase == phasePaused:
		return nil
	case m.record.Kernel == "":
		return fmt.Errorf("cannot start machine %q, only remove it: %w", m.id, errNoRecord)
	}
	if err := m.start(ctx); err != nil {
		return m.startFault(err)
	}
	return nil
}

// startFault adds what QEMU said, once, and the console.
func (m *machine) startFault(err error) error {
	err = fmt.Errorf("cannot start machine %q: %w", m.id, err)
	if f := new(instance.Fault); errors.As(err, &f) || errors.Is(err, context.Canceled) {
		return err
	}
	return &instance.Fault{
		Blame: instance.Host, Code: "machine.start_failed", Err: err,
		Hint: "libvirt's and QEMU's own words are in the daemon's log",
	}
}

// boot holds what one attempt to start knows and the next must not see.
type boot struct {
	m      *machine
	kvm    bool
	before struct {
		record record
		life   life
		ended  chan struct{}
	}
	link link
}

func (m *machine) start(ctx context.Context) error {
	b := &boot{m: m}
	b.kvm, _ = m.d.kvm(ctx)
	steps := []step{
		{"check", b.check, nil},
		{"link", b.listen, b.unlisten},
		{"journal", b.begin, b.rewind},
		{"domain", b.define, b.destroy},
		{"process", b.attach, nil},
		{"plug", b.plug, nil},
		{"resume", b.resume, nil},
		{"journal running", b.running, nil},
	}
	if err := perform(ctx, steps, m.d.cfg.fail); err != nil {
		return err
	}
	m.d.files.add(m.files.console(), maxConsoleFile)
	if path := m.hypervisorLog(); path != "" {
		m.d.files.add(path, maxHypervisorLog)
	}
	// It may have ended while we were at it, and nobody listened to the link.
	m.settle()
	return nil
}

// check repeats what must still hold: files may have been touched since Create.
func (b *boot) check(ctx context.Context) error {
	m := b.m
	if err := m.settled(ctx); err != nil { // the run before this one
		return err
	}
	for _, path := range []string{m.record.Kernel, m.record.RootDisk} {
		if err := checkShared(m.d.user, path); err != nil {
			return err
		}
	}
	return checkPass(m.d.user, m.files.dir())
}

// listen opens the device backend before QEMU needs it.
func (b *boot) listen(context.Context) error {
	if b.m.d.way != WayVhostUser {
		return nil
	}
	var err error
	b.link, err = b.m.openLink()
	return err
}

func (b *boot) unlisten(context.Context) error {
	if b.link == nil {
		return nil
	}
	return errors.Join(b.link.Close(), removeFile(b.m.files.socket()))
}

// begin records that the machine is about to run.
func (b *boot) begin(context.Context) error {
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	b.before.record, b.before.life, b.before.ended = m.record, m.life, m.ended
	m.record.Run = &run{Started: time.Now().UTC(), Way: m.d.way, KVM: b.kvm}
	m.life, m.ended, m.since = life{phase: phaseStarting, unborn: true}, make(chan struct{}), time.Now()
	return m.record.save(m.files)
}

// rewind makes the attempt not have been. Whoever waited for its end waits
// again, for what was before.
func (b *boot) rewind(ctx context.Context) error {
	m := b.m
	if err := m.settled(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ended := m.ended
	m.record, m.life, m.ended, m.since = b.before.record, b.before.life, b.before.ended, time.Now()
	if !isClosed(ended) {
		close(ended)
	}
	return m.record.save(m.files)
}

// define creates the domain, stopped before its first instruction. libvirt's
// call cannot be given up: whoever did would not know what it left.
func (b *boot) define(context.Context) error {
	m := b.m
	xml, err := domainXML(m.design(b.kvm))
	if err != nil {
		return err
	}
	dom, err := m.d.session.conn.DomainCreateXML(xml, lv.DOMAIN_START_PAUSED)
	if err != nil {
		return fmt.Errorf("cannot create domain %q: %w", m.name, err)
	}
	defer func() { _ = dom.Free() }()
	m.mu.Lock()
	m.life.unborn = false
	m.mu.Unlock()
	if m.d.way != WayKernel {
		return nil
	}
	live, err := dom.GetXMLDesc(0)
	if err != nil {
		return fmt.Errorf("cannot read domain %q: %w", m.name, err)
	}
	cid, err := contextID(live)
	if err != nil {
		return err
	}
	b.link = kernelLink{vsock.Kernel(cid)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record.Run.CID = cid
	return m.record.save(m.files)
}

func (m *machine) design(kvm bool) design {
	d := design{
		spec: m.record.spec(), name: m.name, owner: m.d.owner, emulator: m.d.emulator,
		kvm: kvm, way: m.d.way, files: m.files,
	}
	if !m.d.embedded() && os.Geteuid() == 0 {
		d.label = fmt.Sprintf("+%d:+%d", m.d.user.UID, m.d.user.GID)
	}
	return d
}

func (b *boot) destroy(ctx context.Context) error {
	m := b.m
	m.mu.Lock()
	m.life.ours = true
	m.mu.Unlock()
	if err := m.destroyDomain(ctx); err != nil {
		return err
	}
	return m.removeTraces()
}

func (b *boot) attach(context.Context) error { return b.m.attach() }

func (b *boot) plug(ctx context.Context) error {
	if b.m.d.way == WayVhostUser {
		if err := b.m.plug(ctx); err != nil {
			return err
		}
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.m.wire = wired(b.link)
	return nil
}

func (b *boot) resume(context.Context) error {
	m := b.m
	err := m.d.withDomain(m.id, (*lv.Domain).Resume)
	if err != nil {
		return fmt.Errorf("cannot let the machine run: %w", err)
	}
	return nil
}

func (b *boot) running(context.Context) error {
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record.Run.Resumed = true
	if m.life.phase == phaseStarting {
		m.life.phase, m.since = phaseRunning, time.Now()
	}
	return m.record.save(m.files)
}

// openLink listens for the machine's QEMU on the vhost-user way.
func (m *machine) openLink() (link, error) {
	if err := removeFile(m.files.socket()); err != nil {
		return nil, err
	}
	l, err := listenVhostUser(m.files.socket(), m.d.user, m.d.log.With("instance", m.id))
	if err != nil {
		return nil, fmt.Errorf("cannot offer a vsock device: %w", err)
	}
	return l, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove file: %w", err)
	}
	return nil
}
