package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	lv "libvirt.org/go/libvirt"
)

// monitorLimit bounds one monitor command. A hypervisor that is stopped or
// hangs never answers, and libvirt would wait for ever.
const monitorLimit = 20 * time.Second

// maxSubscribed bounds the events kept for one subscriber that does not read.
const maxSubscribed = 64

// qmpError is QEMU's refusal of a command.
type qmpError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *qmpError) Error() string { return "QEMU: " + e.Desc }

// deviceNotFound is the class of an error about a device that is not there.
const deviceNotFound = "DeviceNotFound"

func isQMP(err error, class string) bool {
	var e *qmpError
	return errors.As(err, &e) && e.Class == class
}

// monitor speaks QMP with one machine through libvirt's own monitor, so that
// the monitor has one owner. It is bound to a context because the interface
// has none.
type monitor struct {
	ctx context.Context //nolint:containedctx // qmp.Monitor takes none
	m   *machine
}

var _ qmp.Monitor = monitor{}

func (m *machine) monitor(ctx context.Context) monitor { return monitor{ctx: ctx, m: m} }

// Connect does nothing: libvirt is connected.
func (monitor) Connect() error { return nil }

// Disconnect does nothing.
func (monitor) Disconnect() error { return nil }

// Run sends one command and returns QEMU's whole answer. One command is in
// flight per machine, also after its caller has given up.
func (mon monitor) Run(command []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(mon.ctx, monitorLimit)
	defer cancel()
	select {
	case mon.m.monitorFree <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot speak to QEMU: an earlier command is not answered: %w", ctx.Err())
	}
	answer := make(chan string, 1)
	err := mon.m.d.call(ctx, func() error {
		defer func() { <-mon.m.monitorFree }()
		return mon.m.d.withDomain(mon.m.id, func(dom *lv.Domain) error {
			out, err := dom.QemuMonitorCommand(string(command), lv.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
			answer <- out
			return err
		})
	})
	if errors.Is(err, errClosed) {
		<-mon.m.monitorFree
	}
	if err != nil {
		return nil, fmt.Errorf("cannot speak to QEMU: %w", err)
	}
	out := []byte(<-answer)
	var reply struct {
		Error *qmpError `json:"error"`
	}
	if err := json.Unmarshal(out, &reply); err != nil {
		return nil, fmt.Errorf("cannot read QEMU's answer: %w", err)
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return out, nil
}

// Events returns this machine's events, as far as the driver listens to them,
// until ctx ends. A subscriber that does not read loses events.
func (mon monitor) Events(ctx context.Context) (<-chan qmp.Event, error) {
	ch := make(chan qmp.Event, maxSubscribed)
	m := mon.m
	m.mu.Lock()
	m.subscribers[ch] = struct{}{}
	m.mu.Unlock()
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		delete(m.subscribers, ch)
		m.mu.Unlock()
	})
	return ch, nil
}

// publish hands one of QEMU's events to the subscribers. m.mu is held.
func (m *machine) publish(e *lv.DomainQemuMonitorEvent) {
	out := qmp.Event{Event: e.Event}
	out.Timestamp.Seconds, out.Timestamp.Microseconds = e.Seconds, int64(e.Micros)
	if e.Details != "" && json.Unmarshal([]byte(e.Details), &out.Data) != nil {
		return
	}
	for ch := range m.subscribers {
		select {
		case ch <- out:
		default:
		}
	}
}

// execute runs a command that go-qemu has no type for.
func (mon monitor) execute(name string, args any) error {
	raw, err := json.Marshal(qmp.Command{Execute: name, Args: args})
	if err != nil {
		return fmt.Errorf("cannot encode command %q: %w", name, err)
	}
	_, err = mon.Run(raw)
	return err
}
