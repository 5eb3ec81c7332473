package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
)

// machine implements vm.Instance, vm.Pauser and vm.Stopper.
type machine struct {
	d     *Driver
	id    instance.ID
	name  string // libvirt's
	files files

	// op is held by the one operation that changes the machine.
	op chan struct{}
	// monitorFree is held by the one QMP command in flight.
	monitorFree chan struct{}

	mu     sync.Mutex
	record record
	life   life
	since  time.Time
	// closed is set when Close has removed the machine.
	closed bool
	// ended is closed when the current run has ended; nil before the first.
	ended chan struct{}
	// settling is the ended that settle is about to close.
	settling chan struct{}
	proc     *hypervisor
	wire     *wire
	// subscribers receive QEMU's own events.
	subscribers map[chan qmp.Event]struct{}
}

var (
	_ vm.Instance = (*machine)(nil)
	_ vm.Pauser   = (*machine)(nil)
	_ vm.Stopper  = (*machine)(nil)
)

// hypervisor is the process of one run.
type hypervisor struct {
	pid  int
	file *os.File
	// gone is closed when the process has ended.
	gone chan struct{}
}

func (d *Driver) newMachine(id instance.ID) *machine {
	return &machine{
		d: d, id: id, name: domainName(id), files: d.filesOf(id),
		op: make(chan struct{}, 1), monitorFree: make(chan struct{}, 1),
		life: life{phase: phaseIdle}, since: time.Now(),
		subscribers: map[chan qmp.Event]struct{}{},
	}
}

// acquire locks the one object of an id, made when there is none. Who got an
// object that was forgotten while he waited for it takes the next.
func (d *Driver) acquire(ctx context.Context, id instance.ID) (m *machine, unlock func(), err error) {
	for {
		d.mu.Lock()
		m = d.machines[id]
		if m == nil {
			m = d.newMachine(id)
			d.machines[id] = m
		}
		d.mu.Unlock()
		if unlock, err = m.lock(ctx); err != nil {
			return nil, nil, err
		}
		if d.known(id) == m {
			return m, unlock, nil
		}
		unlock()
	}
}

// known returns the object of an id, or nil.
func (d *Driver) known(id instance.ID) *machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machines[id]
}

// forget drops an object, unless another has taken its place.
func (d *Driver) forget(m *machine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machines[m.id] == m {
		delete(d.machines, m.id)
	}
}

// made reports whether this process has made or recovered the machine.
func (m *machine) made() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.Version != 0
}

// lock takes the right to change the machine.
func (m *machine) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case m.op <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.d.closing:
		return nil, errClosed
	}
	if isClosed(m.d.closing) {
		<-m.op
		return nil, errClosed
	}
	return func() { <-m.op }, nil
}

// dispatch applies events until the driver ends.
func (d *Driver) dispatch() {
	for {
		select {
		case <-d.life.Done():
			return
		case <-d.inbox.wake:
		}
		events, lost := d.inbox.take()
		for _, e := range events {
			if m := d.known(instance.ID(e.id)); m != nil {
				m.observe(e)
			}
		}
		if lost {
			d.reconcile()
		}
	}
}

// reconcile looks for machines whose end nobody has told us.
func (d *Driver) reconcile() {
	for _, m := range d.all() {
		m.observe(event{gone: true})
	}
}

func (d *Driver) all() []*machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.machines))
}

// observe applies one event.
func (m *machine) observe(e event) {
	stop := e.gone || e.life != nil && e.life.Event == lv.DOMAIN_EVENT_STOPPED
	if stop && m.d.active(m.id) {
		return // about an earlier run, or not so
	}
	m.mu.Lock()
	if e.qmp != nil {
		m.publish(e.qmp)
	}
	before := m.life.phase
	ended := m.life.apply(e)
	if m.life.phase != before {
		m.since = time.Now()
	}
	m.mu.Unlock()
	if ended {
		m.settle()
	}
}

func (d *Driver) active(id instance.ID) bool {
	active := false
	err := d.withDomain(id, func(dom *lv.Domain) error {
		var err error
		active, err = dom.IsActive()
		return err
	})
	return err == nil && active
}

// settle completes the end of a run: who speaks to the guest is cut off, the
// record says how it went, and at last who waits is told.
func (m *machine) settle() {
	m.mu.Lock()
	ended := m.ended
	if m.life.phase != phaseEnded || ended == nil || isClosed(ended) || m.settling == ended {
		m.mu.Unlock()
		return
	}
	m.settling = ended
	wire := m.wire
	m.wire = nil
	m.mu.Unlock()
	wire.close() // it removes the socket, which the next run makes anew

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != ended { // a failed start has been undone meanwhile
		return
	}
	exit := m.life.exit
	if exit.Reason == vm.ExitPowerOff {
		exit = judgeReset(exit, tail(m.files.console(), maxConsole))
		m.life.exit = exit
	}
	if m.record.Run != nil && !m.closed {
		m.record.Run.Ended = &exit
		if err := m.record.save(m.files); err != nil && !errors.Is(err, os.ErrNotExist) {
			m.d.log.Warn("cannot record the end of a machine", "instance", m.id, "error", err)
		}
	}
	close(ended)
	m.d.log.Info("machine ended", "instance", m.id, "reason", exit.Reason, "detail", exit.Detail)
}

// settled waits until a run that has ended is settled.
func (m *machine) settled(ctx context.Context) error {
	m.mu.Lock()
	ended, phase := m.ended, m.life.phase
	m.mu.Unlock()
	if phase != phaseEnded || ended == nil {
		return nil
	}
	m.settle()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// shutdownReason reads the reason from QEMU's SHUTDOWN event.
func shutdownReason(details string) string {
	var data struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal([]byte(details), &data) != nil {
		return ""
	}
	return data.Reason
}

var panicLine = regexp.MustCompile(`Kernel panic - not syncing[^\r\n]{0,200}`)

// judgeReset tells a panic from a restart. With panic=-1 a kernel that panics
// asks for a reset, which ends the machine; only its last words differ. A
// guest that lies here lies about itself.
func judgeReset(exit vm.Exit, console []byte) vm.Exit {
	if exit.Detail != "guest-reset" {
		return vm.Exit{Reason: vm.ExitPowerOff}
	}
	if line := panicLine.Find(console); line != nil {
		return vm.Exit{Reason: vm.ExitPanic, Detail: fmt.Sprintf("%q", line)}
	}
	return vm.Exit{Reason: vm.ExitPowerOff, Detail: "the guest asked for a restart"}
}

// Wait blocks until the current run has ended.
func (m *machine) Wait(ctx context.Context) (vm.Exit, error) {
	for {
		m.mu.Lock()
		ended, phase, exit := m.ended, m.life.phase, m.life.exit
		m.mu.Unlock()
		if ended == nil {
			return vm.Exit{}, fmt.Errorf("cannot wait for machine %q: it was never started", m.id)
		}
		if phase == phaseEnded && isClosed(ended) {
			return exit, nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return vm.Exit{}, ctx.Err()
		case <-m.d.life.Done():
			return vm.Exit{}, errClosed
		}
	}
}

// goneGrace is how long libvirt may take to tell how a machine ended after its
// process has.
const goneGrace = 5 * time.Second

// attach finds the machine's hypervisor process and watches it.
func (m *machine) attach() error {
	pid, err := m.d.root.FindMachine(m.name, string(m.id))
	if err != nil {
		return err
	}
	if pid == 0 {
		return errors.New("cannot find the hypervisor's process")
	}
	file, err := embedded.OpenPIDFD(pid, m.d.root.Hypervisor(m.name, string(m.id)))
	if err != nil {
		return err
	}
	h := &hypervisor{pid: pid, file: file, gone: make(chan struct{})}
	m.mu.Lock()
	m.proc = h
	ended := m.ended
	m.mu.Unlock()
	if !m.d.spawn(func() { m.watch(h, ended) }) {
		_ = file.Close()
		return errClosed
	}
	return nil
}

// watch waits for the process's end. libvirt normally tells; if it does not,
// this does.
func (m *machine) watch(h *hypervisor, ended <-chan struct{}) {
	defer func() { _ = h.file.Close() }()
	if err := embedded.AwaitPIDFD(m.d.life, h.file); err != nil {
		return
	}
	close(h.gone)
	grace := time.NewTimer(goneGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-m.d.life.Done():
	case <-grace.C:
		m.d.inbox.push(event{id: string(m.id), gone: true})
	}
}

// detach lets go of the machine without touching it, once whoever changes it
// has finished. Nobody gets to change it afterwards.
func (m *machine) detach(ctx context.Context) {
	select {
	case m.op <- struct{}{}:
		defer func() { <-m.op }()
	case <-ctx.Done():
		m.d.log.Warn("detaching from a machine that is being changed", "instance", m.id)
	}
	m.mu.Lock()
	wire := m.wire
	m.wire = nil
	m.mu.Unlock()
	wire.close()
}
