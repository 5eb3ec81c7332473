package libvirt

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	lv "libvirt.org/go/libvirt"
)

// session is one libvirt connection with its event loop.
type session struct {
	conn *lv.Connect
	life int // registration of lifecycle events
	qmp  int // registration of QEMU's own events

	stopping atomic.Bool
	done     chan struct{}
}

// monitorEvents are QEMU's own events we look at. None of them can be raised
// in numbers by a guest: that would be a way to keep us busy.
const monitorEvents = "^(DEVICE_DELETED|DEVICE_UNPLUG_GUEST_ERROR|SHUTDOWN)$"

// connect opens uri and sends all events to in. With pin the thread stays on
// one CPU meanwhile: libvirt's cache of QEMU's capabilities holds the CPU's
// identity, which differs between CPUs, and probing anew costs seconds.
func connect(uri string, pin bool, in *inbox) (*session, error) {
	if err := lv.EventRegisterDefaultImpl(); err != nil {
		return nil, fmt.Errorf("cannot register libvirt's event loop: %w", err)
	}
	conn, err := open(uri, pin)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, done: make(chan struct{})}
	s.life, err = conn.DomainEventLifecycleRegister(nil, func(_ *lv.Connect, dom *lv.Domain, e *lv.DomainEventLifecycle) {
		if id, err := dom.GetUUIDString(); err == nil {
			in.push(event{id: id, life: e})
		}
	})
	if err != nil {
		_, _ = conn.Close()
		return nil, fmt.Errorf("cannot register for events: %w", err)
	}
	s.qmp, err = conn.DomainQemuMonitorEventRegister(nil, monitorEvents,
		func(_ *lv.Connect, dom *lv.Domain, e *lv.DomainQemuMonitorEvent) {
			if id, err := dom.GetUUIDString(); err == nil {
				in.push(event{id: id, qmp: e})
			}
		}, lv.CONNECT_DOMAIN_QEMU_MONITOR_EVENT_REGISTER_REGEX)
	if err != nil {
		_ = conn.DomainEventDeregister(s.life)
		_, _ = conn.Close()
		return nil, fmt.Errorf("cannot register for QEMU's events: %w", err)
	}
	go s.loop()
	return s, nil
}

func (s *session) loop() {
	defer close(s.done)
	for !s.stopping.Load() {
		if err := lv.EventRunDefaultImpl(); err != nil {
			return
		}
	}
}

// close deregisters, disconnects and ends the event loop.
func (s *session) close() error {
	_ = s.conn.DomainEventDeregister(s.life)
	_ = s.conn.DomainQemuEventDeregister(s.qmp)
	_, err := s.conn.Close()
	s.stopping.Store(true)
	// The loop sleeps in poll; a timer of libvirt's own is what wakes it.
	if timer, timerErr := lv.EventAddTimeout(10, func(int) {}); timerErr == nil {
		<-s.done
		_ = lv.EventRemoveTimeout(timer)
	}
	if err != nil {
		return fmt.Errorf("cannot disconnect from libvirt: %w", err)
	}
	return nil
}

func open(uri string, pin bool) (*lv.Connect, error) {
	if pin {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer pinThread()()
	}
	conn, err := lv.NewConnect(uri)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %q: %w", uri, err)
	}
	return conn, nil
}

// pinThread binds the calling thread to its first CPU and returns the undoing,
// which also widens threads that were started meanwhile and inherited it. A
// host that refuses only loses the cache.
func pinThread() (restore func()) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return func() {}
	}
	for cpu := range len(all) * strconv.IntSize {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return func() {}
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &all)
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task.Name()))
			if err != nil {
				continue
			}
			var now unix.CPUSet
			if err := unix.SchedGetaffinity(tid, &now); err == nil && now == one {
				_ = unix.SchedSetaffinity(tid, &all)
			}
		}
	}
}

// event is one thing that happened to a machine, by libvirt's uuid.
type event struct {
	id   string
	life *lv.DomainEventLifecycle
	qmp  *lv.DomainQemuMonitorEvent
	// gone means that the hypervisor process has ended and libvirt has said
	// nothing about it.
	gone bool
}

// maxInbox bounds the events not yet looked at.
const maxInbox = 4096

// inbox hands events from libvirt's thread, which must never block, to ours.
type inbox struct {
	wake chan struct{}

	mu     sync.Mutex
	events []event
	lost   bool
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (in *inbox) push(e event) {
	in.mu.Lock()
	if len(in.events) < maxInbox {
		in.events = append(in.events, e)
	} else {
		in.lost = true
	}
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// take returns all events; lost says that there were more.
func (in *inbox) take() (events []event, lost bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	events, lost = in.events, in.lost
	in.events, in.lost = nil, false
	return events, lost
}
