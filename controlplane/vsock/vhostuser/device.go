// Package vhostuser is a vhost-user-vsock device in this process: QEMU gives
// its guest a virtio-vsock device and leaves the work to us, so that a host
// without the kernel's vhost-vsock reaches its guests all the same.
//
//	guest ── virtqueues in shared memory ──► session ── packets ──► endpoint ── net.Conn
//	QEMU ─── vhost-user on a unix socket ──────┘
//
// virtq reads the queues, stream is the connection state machine, endpoint
// puts net.Conn on it, and this package speaks vhost-user, maps the guest's
// memory, and pumps. One Device serves one machine through any number of
// unplugs and plugs: QEMU connects anew to the same socket.
//
// The guest is hostile and so, for this purpose, is QEMU: neither can make
// the process panic, block, or grow without bound. The package knows nothing
// of machines, QMP, or the protocol on top of the streams.
//
// End of stream proves no completeness: a guest that unplugs its device or
// dies may look as if it had closed. Protocols above must carry their own end.
package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/endpoint"
)

// hostCID is our address as the guest sees it.
const hostCID = 2

// tick is the coarse clock by which closed connections are given up.
const tick = 500 * time.Millisecond

// acceptPause is how long a failed accept waits before the next.
const acceptPause = time.Second

// Config says where QEMU finds the device and what the guest sees.
type Config struct {
	// Socket is the unix socket that QEMU connects to as a client. Listen
	// makes it, replacing one left behind, and Close removes it.
	Socket string
	// Owner is the uid that gets Socket, so that an unprivileged QEMU can
	// connect; -1 keeps ours. Nobody else can but root.
	Owner int
	// GuestCID is the guest's address, 3 to 2^32-2. Guests of different
	// Devices may share one.
	GuestCID uint64
	// Hybrid, unless empty, is a second unix socket, on which other programs
	// dial the guest by "CONNECT <port>\n". It stays ours.
	Hybrid string
	// Log gets what an operator may want to know; nil for nothing.
	Log *slog.Logger
}

// Device is one guest's vsock device. Safe for concurrent use.
type Device struct {
	cfg    Config
	log    *slog.Logger
	ep     *endpoint.Endpoint
	socket *net.UnixListener
	hybrid *hybrid // nil without one
	work   chan struct{}
	done   chan struct{}
	tasks  sync.WaitGroup

	mu       sync.Mutex
	sess     *session
	closed   bool
	changed  chan struct{} // closed at every start and end of the guest's driver
	sessions uint64
	halts    uint64
}

// gone is how streams end that did not end in good order by their peer.
type gone string

func (g gone) Error() string { return string(g) }

// Is makes the error both of what callers look for.
func (g gone) Is(target error) bool {
	return target == vsock.ErrDown || target == syscall.ECONNRESET
}

const (
	errGone    gone = "vsock device was unplugged or its machine ended"
	errReset   gone = "guest has restarted its vsock driver"
	errDropped gone = "all vsock streams of the machine were dropped"
	errClosed  gone = "vsock device was closed"
)

// Listen makes the sockets and serves the device until Close.
func Listen(cfg Config) (*Device, error) {
	if cfg.GuestCID <= hostCID || cfg.GuestCID >= math.MaxUint32 {
		return nil, fmt.Errorf("cannot make a vsock device: guest CID %d is reserved or too large", cfg.GuestCID)
	}
	d := &Device{
		cfg: cfg, log: cfg.Log,
		work:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		changed: make(chan struct{}),
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.ep = endpoint.New(hostCID, uint32(cfg.GuestCID), d.poke)
	var err error
	if d.socket, err = listenUnix(cfg.Socket, cfg.Owner); err != nil {
		return nil, fmt.Errorf("cannot make a vsock device: %w", err)
	}
	if cfg.Hybrid != "" {
		l, err := listenUnix(cfg.Hybrid, -1)
		if err != nil {
			_ = d.socket.Close()
			return nil, fmt.Errorf("cannot make a vsock device: %w", err)
		}
		d.hybrid = newHybrid(l, d.Dial, d.log)
		d.tasks.Go(d.hybrid.serve)
	}
	d.tasks.Go(d.accept)
	d.tasks.Go(d.loop)
	return d, nil
}

// listenUnix makes a socket that owner alone can connect to.
func listenUnix(path string, owner int) (*net.UnixListener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("cannot remove an old socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err = os.Chmod(path, 0o600); err == nil && owner >= 0 {
		err = os.Lchown(path, owner, -1)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Dial connects to a port of the guest. It fails at once with
// vsock.ErrNotReady while the guest has no driver running or the device is
// not plugged, and with vsock.ErrRefused when nobody listens on the port.
// While the machine is paused it waits, as long as ctx allows.
//
// The connection is a net.Conn with CloseRead and CloseWrite. Reading ends
// with io.EOF when the guest closed in good order; a reset by the guest is
// syscall.ECONNRESET, and an unplug or the guest's death is vsock.ErrDown too.
func (d *Device) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	c, err := d.ep.Dial(ctx, port)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Listen accepts connections that the guest makes to a port of CID 2. It
// works before the guest is there and survives unplugs.
func (d *Device) Listen(port uint32) (net.Listener, error) {
	l, err := d.ep.Listen(port)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Connected says whether the guest's driver runs now: QEMU is there, the
// driver has started, and the machine is not paused.
func (d *Device) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sess != nil && d.sess.running
}

// WaitReady waits until the guest's driver runs.
func (d *Device) WaitReady(ctx context.Context) error {
	for {
		d.mu.Lock()
		ready, closed, changed := d.sess != nil && d.sess.running, d.closed, d.changed
		d.mu.Unlock()
		switch {
		case closed:
			return fmt.Errorf("cannot wait for the guest's vsock driver: %w", vsock.ErrDown)
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the guest's vsock driver: %w", ctx.Err())
		}
	}
}

// DropAll resets every stream at once and fails the dials that wait. Call it
// before device_del, and when QMP says RESET or SHUTDOWN: the device itself
// learns of these only seconds later, or not at all.
func (d *Device) DropAll() { d.ep.Drop(errDropped) }

// Close unplugs the device from our side: all streams end, the sockets are
// removed, and every goroutine of the Device has returned.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("cannot close the vsock device: %w", net.ErrClosed)
	}
	d.closed = true
	if d.sess != nil {
		d.sess.hangUp()
	}
	d.announce()
	d.mu.Unlock()
	close(d.done)
	err := d.socket.Close()
	d.ep.Down(errClosed, vsock.ErrDown)
	d.ep.CloseListeners()
	if d.hybrid != nil {
		err = errors.Join(err, d.hybrid.close())
	}
	d.tasks.Wait()
	d.ep.Down(errClosed, vsock.ErrDown) // the session's own end said less
	return err
}

// accept serves one QEMU after the other.
func (d *Device) accept() {
	for {
		conn, err := acceptUnix(d.socket, d.done, d.log)
		if err != nil {
			return
		}
		d.serve(conn)
	}
}

// acceptUnix waits for a connection until the listener is closed. Running out
// of descriptors, say, passes, and must not end the device.
func acceptUnix(l *net.UnixListener, done <-chan struct{}, log *slog.Logger) (*net.UnixConn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		log.Warn("vsock device cannot accept a connection, will try again", "error", err)
		timer := time.NewTimer(acceptPause)
		select {
		case <-done:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (d *Device) serve(conn *net.UnixConn) {
	s := newSession(d, conn)
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		_ = conn.Close()
		return
	}
	d.sess = s
	d.sessions++
	d.mu.Unlock()

	err := s.serve()

	_ = conn.Close()
	d.mu.Lock()
	d.sess = nil
	s.close()
	closed := d.closed
	d.mu.Unlock()
	s.kicks.Wait()
	if err != nil && !closed {
		d.log.Warn("vsock device session ended", "error", err)
	}
}

// loop pumps packets whenever there is something to do.
func (d *Device) loop() {
	timer := time.NewTimer(tick)
	timer.Stop()
	defer timer.Stop()
	ticking := false
	for {
		select {
		case <-d.done:
			return
		case <-d.work:
		case <-timer.C:
			ticking = false
			d.tick()
		}
		for d.pump() {
			select {
			case <-d.done:
				return
			default:
			}
		}
		if !ticking && d.Connected() && d.ep.Ticking() {
			ticking = true
			timer.Reset(tick)
		}
	}
}

func (d *Device) tick() {
	if d.Connected() { // a paused guest is not late
		d.ep.Tick()
	}
}

func (d *Device) pump() (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sess
	if s == nil || !s.running {
		return false
	}
	var err error
	if fault := guarded(func() { more, err = s.pump() }); fault != nil {
		err = fault
	}
	if err != nil {
		s.halt(err)
		return false
	}
	return more
}

// poke wakes the loop. Never blocks.
func (d *Device) poke() {
	select {
	case d.work <- struct{}{}:
	default:
	}
}

// announce wakes WaitReady, with d.mu held.
func (d *Device) announce() {
	close(d.changed)
	d.changed = make(chan struct{})
}
