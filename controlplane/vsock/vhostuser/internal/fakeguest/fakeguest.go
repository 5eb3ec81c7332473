// Package fakeguest is a QEMU and a guest in one, for tests of the device: it
// speaks the front-end's side of vhost-user in the order QEMU 7.2 does, owns
// real virtqueues in a memfd, and drives them as a guest's driver would. What
// runs in the guest is an endpoint, so both ends of a stream are net.Conn.
//
// Only tests import it.
package fakeguest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/endpoint"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

// Options choose the features that the guest's driver accepts.
type Options struct {
	EventIdx, Indirect bool
	// RxSize is the size of one receive buffer, header included; 0 for 4 KiB.
	RxSize int
}

const (
	memorySize = 8 << 20
	guestBase  = 0            // guest address of the memory
	userBase   = 0x7f00 << 24 // where our QEMU pretends to see it
)

// Guest is a machine with a vsock device. Its methods but those of the
// endpoint are for one goroutine.
type Guest struct {
	*endpoint.Endpoint

	opts   Options
	file   int // the memfd
	memory []byte
	conn   *net.UnixConn

	mu      sync.Mutex // guards the rings and running
	rx, tx  *driverRing
	running bool

	work  chan struct{}
	done  chan struct{}
	tasks sync.WaitGroup
	rings [2]wires
}

// wires are the eventfds of one ring.
type wires struct {
	kick   int
	call   *os.File
	callFD int
}

// New makes a machine that is off.
func New(cid uint32, opts Options) (*Guest, error) {
	if opts.RxSize == 0 {
		opts.RxSize = 4096
	}
	fd, err := unix.MemfdCreate("fakeguest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	g := &Guest{opts: opts, file: fd, work: make(chan struct{}, 1), done: make(chan struct{})}
	if err := unix.Ftruncate(fd, memorySize); err != nil {
		return nil, err
	}
	if g.memory, err = unix.Mmap(fd, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	g.Endpoint = endpoint.New(cid, 2, g.poke)
	g.tasks.Go(g.loop)
	return g, nil
}

// Close switches the machine off.
func (g *Guest) Close() error {
	g.Crash()
	close(g.done)
	g.tasks.Wait()
	return errors.Join(unix.Munmap(g.memory), unix.Close(g.file))
}

// Truncate takes the guest's memory away beneath everyone.
func (g *Guest) Truncate() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = false
	return unix.Ftruncate(g.file, 0)
}

// Spoil makes the ring to the host claim more entries than it has, and kicks.
func (g *Guest) Spoil() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = false
	virtq.Store16(g.tx.avail[2:], g.tx.availIdx+ringSize+1)
	one := [8]byte{1}
	_, err := unix.Write(g.rings[1].kick, one[:])
	return err
}

// Plug connects to the device and realizes it. The driver does not run yet.
func (g *Guest) Plug(socket string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	g.conn = c
	for i := range g.rings {
		if g.rings[i], err = g.newWires(); err != nil {
			return err
		}
	}
	return g.realize()
}

// newWires makes the eventfds of a ring and takes its interrupts.
func (g *Guest) newWires() (wires, error) {
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return wires{}, err
	}
	call, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return wires{}, err
	}
	w := wires{kick: kick, callFD: call, call: os.NewFile(uintptr(call), "call")}
	g.tasks.Go(func() {
		var b [8]byte
		for {
			if _, err := w.call.Read(b[:]); err != nil {
				return
			}
			g.poke()
		}
	})
	return w, nil
}

// Start loads the guest's driver: new rings, nothing remembered.
func (g *Guest) Start() error {
	g.mu.Lock()
	g.rx, g.tx = g.newRing(0), g.newRing(1)
	for g.rx.postRx() {
	}
	g.mu.Unlock()
	g.Endpoint.Fresh(io.ErrUnexpectedEOF)
	return g.run(0, 0)
}

func (g *Guest) run(rxBase, txBase uint32) error {
	if err := g.startRings(rxBase, txBase); err != nil {
		return err
	}
	g.mu.Lock()
	g.running = true
	g.mu.Unlock()
	g.Up()
	g.poke()
	return nil
}

// Pause stops the machine as QMP stop does, and returns the ring bases.
func (g *Guest) Pause() (rxBase, txBase uint32, err error) {
	g.mu.Lock()
	g.running = false
	g.mu.Unlock()
	return g.stopRings()
}

// Resume goes on from a Pause.
func (g *Guest) Resume(rxBase, txBase uint32) error { return g.run(rxBase, txBase) }

// Unplug removes the device in good order.
func (g *Guest) Unplug() error {
	_, _, err := g.Pause()
	g.Crash()
	return err
}

// Crash kills QEMU.
func (g *Guest) Crash() {
	g.mu.Lock()
	g.running = false
	g.mu.Unlock()
	g.Down(vsock.ErrDown, vsock.ErrNotReady)
	if g.conn == nil {
		return
	}
	_ = g.conn.Close()
	g.conn = nil
	for i := range g.rings {
		_ = unix.Close(g.rings[i].kick)
		_ = g.rings[i].call.Close()
	}
}

// loop is the guest's driver.
func (g *Guest) loop() {
	for {
		select {
		case <-g.done:
			return
		case <-g.work:
		}
		for g.drive() {
		}
	}
}

func (g *Guest) poke() {
	select {
	case g.work <- struct{}{}:
	default:
	}
}
