// Package endpoint makes a stream.Mux usable by many goroutines: connections
// are net.Conn with deadlines, ports are net.Listener, and a carrier moves
// the packets.
//
//	callers ── Dial, Listen, Conn ──► Endpoint ◄── Deliver, Send, Tick ── carrier
//
// One mutex guards all of it and nothing blocks while it is held. The
// Endpoint knows no rings and no machines; the carrier says when the peer is
// there (Up, Fresh) and when it is gone (Down).
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	mdvsock "github.com/mdlayher/vsock"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"
)

// backlog bounds the connections that wait at one listener.
const backlog = 128

// ErrTooMany is returned by Dial when the bound on connections is reached.
var ErrTooMany = errors.New("too many connections to the guest")

// Endpoint is one end of a vsock link. Safe for concurrent use.
type Endpoint struct {
	local, peer uint32
	wake        func()

	mu        sync.Mutex
	mux       *stream.Mux
	down      error // why Dial fails at once; nil while the peer is there
	listeners map[uint32]*Listener
}

// New returns an endpoint with address local, whose peer is not there yet.
// wake tells the carrier that Send may have something; it must not block nor
// call back.
func New(local, peer uint32, wake func()) *Endpoint {
	e := &Endpoint{
		local: local, peer: peer, wake: wake,
		mux:       stream.NewMux(uint64(local), uint64(peer)),
		down:      vsock.ErrNotReady,
		listeners: map[uint32]*Listener{},
	}
	e.mux.Wake = func(s *stream.Conn) {
		if c, ok := s.User.(*Conn); ok {
			c.changed.Broadcast()
		}
	}
	e.mux.WakeListener = func(port uint32) {
		if l := e.listeners[port]; l != nil {
			l.changed.Broadcast()
		}
	}
	return e
}

// Dial connects to a port of the peer. While the peer pauses, the request
// waits for it as long as ctx allows.
func (e *Endpoint) Dial(ctx context.Context, port uint32) (*Conn, error) {
	fail := func(err error) (*Conn, error) {
		return nil, fmt.Errorf("cannot dial vsock %d:%d: %w", e.peer, port, err)
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != nil {
		return fail(e.down)
	}
	s := e.mux.Dial(port)
	if s == nil {
		return fail(ErrTooMany)
	}
	c := e.newConn(s)
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	e.kick()
	for s.Phase() == stream.Dialing && ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case s.Opened():
		return c, nil
	case s.Phase() == stream.Dialing:
		s.Close()
		e.kick()
		return fail(ctx.Err())
	case errors.Is(s.Err(), stream.ErrRefused):
		return fail(vsock.ErrRefused)
	case errors.Is(s.Err(), vsock.ErrDown) && e.down != nil:
		return fail(e.down)
	case errors.Is(s.Err(), vsock.ErrDown):
		return fail(vsock.ErrNotReady) // dropped, and a next driver may come
	}
	return fail(s.Err())
}

// Up lets Dial through: the peer is there, or will be soon.
func (e *Endpoint) Up() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = nil
}

// Down ends every connection with cut, and fails every Dial with err until Up.
func (e *Endpoint) Down(cut, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = err
	e.mux.DropAll(cut)
}

// Drop ends every connection with cut and tells the peer.
func (e *Endpoint) Drop(cut error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mux.DropAll(cut)
	e.kick()
}

// Fresh ends the connections that the peer has forgotten, because it started
// anew. Dials that it has not seen yet go on.
func (e *Endpoint) Fresh(cut error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mux.Fresh(cut)
}

// Deliver takes a packet from the peer. payload is not kept.
func (e *Endpoint) Deliver(h stream.Header, payload [][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mux.Receive(h, payload)
}

// Listening says whether Deliver may be called now.
func (e *Endpoint) Listening() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mux.Listening()
}

// Ready says whether Send has a packet.
func (e *Endpoint) Ready() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mux.Ready()
}

// Send gives the next packet for the peer, of at most space ≥ 1 bytes of
// payload, to put, which copies it away. It says no when there is none.
func (e *Endpoint) Send(space int, put func(h stream.Header, payload [][]byte)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	h, payload, ok := e.mux.Next(space)
	if ok {
		put(h, payload)
	}
	return ok
}

// Tick is to be called twice a second while the peer runs.
func (e *Endpoint) Tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mux.Tick()
}

// Ticking says whether Tick has anything to do.
func (e *Endpoint) Ticking() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mux.Ticking()
}

// Stats returns the counters of the link.
func (e *Endpoint) Stats() stream.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mux.Stats()
}

// kick tells the carrier, with e.mu held.
func (e *Endpoint) kick() {
	if e.mux.Ready() {
		e.wake()
	}
}

func addr(cid, port uint32) net.Addr {
	return &mdvsock.Addr{ContextID: cid, Port: port}
}
