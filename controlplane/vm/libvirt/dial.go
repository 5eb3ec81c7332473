package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// wire is one run's link, which may still be on its way after a recovery.
type wire struct {
	// ready is closed when link or err is set.
	ready chan struct{}
	link  link
	err   error
	// cancel ends the attempt to get there; done is closed when it has ended.
	cancel context.CancelFunc
}

// wireWait bounds how long Dial waits for a link that is being plugged again.
const wireWait = 10 * time.Second

// Dial connects to a port of the guest.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	m.mu.Lock()
	phase, wire, closed := m.life.phase, m.wire, m.closed
	m.mu.Unlock()
	switch {
	case closed || phase == phaseEnded:
		return nil, fmt.Errorf("cannot dial port %d of machine %q: %w", port, m.id, vm.ErrGone)
	case phase == phaseIdle || phase == phaseStarting || wire == nil:
		return nil, fmt.Errorf("cannot dial port %d of machine %q: it is not running", port, m.id)
	}
	limit := time.NewTimer(wireWait)
	defer limit.Stop()
	select {
	case <-wire.ready:
	case <-limit.C:
		return nil, fmt.Errorf("cannot dial port %d of machine %q: its vsock device is being plugged again", port, m.id)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if wire.err != nil {
		return nil, fmt.Errorf("cannot dial port %d of machine %q: %w", port, m.id, wire.err)
	}
	conn, err := wire.link.Dial(ctx, port)
	if err != nil {
		if m.gone() {
			err = errors.Join(vm.ErrGone, err)
		}
		return nil, fmt.Errorf("cannot dial port %d of machine %q: %w", port, m.id, err)
	}
	return conn, nil
}

func (m *machine) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed || m.life.phase == phaseEnded
}

// wired returns a wire that is ready.
func wired(l link) *wire {
	w := &wire{ready: make(chan struct{}), link: l, cancel: func() {}}
	close(w.ready)
	return w
}

// close ends a link, or the attempt to get it. Safe on nil.
func (w *wire) close() {
	if w == nil {
		return
	}
	w.cancel()
	<-w.ready
	if w.link != nil {
		w.link.DropAll()
		_ = w.link.Close()
	}
}
