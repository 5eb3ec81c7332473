package endpoint

import (
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Listener accepts connections that the peer makes to one port.
type Listener struct {
	ep   *Endpoint
	port uint32

	// Guarded by ep.mu.
	changed sync.Cond
	closed  bool
}

// Listen takes connections of the peer to a port of ours. It works before the
// peer is there, and outlives its coming and going.
func (e *Endpoint) Listen(port uint32) (*Listener, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.mux.Listen(port, backlog) {
		return nil, fmt.Errorf("cannot listen on vsock port %d: %w", port, syscall.EADDRINUSE)
	}
	l := &Listener{ep: e, port: port}
	l.changed.L = &e.mu
	e.listeners[port] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	l.ep.mu.Lock()
	defer l.ep.mu.Unlock()
	for !l.closed {
		if s := l.ep.mux.Accept(l.port); s != nil {
			return l.ep.newConn(s), nil
		}
		l.changed.Wait()
	}
	return nil, &net.OpError{Op: "accept", Net: "vsock", Addr: l.Addr(), Err: net.ErrClosed}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.ep.mu.Lock()
	defer l.ep.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: "vsock", Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.closed = true
	l.ep.mux.Unlisten(l.port)
	delete(l.ep.listeners, l.port)
	l.changed.Broadcast()
	l.ep.kick()
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr(l.ep.local, l.port) }

// CloseListeners closes every listener; Accept then fails with net.ErrClosed.
func (e *Endpoint) CloseListeners() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for port, l := range e.listeners {
		l.closed = true
		e.mux.Unlisten(port)
		delete(e.listeners, port)
		l.changed.Broadcast()
	}
}
