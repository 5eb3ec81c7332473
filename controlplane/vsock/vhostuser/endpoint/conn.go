package endpoint

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"
)

// Conn is one connection. It implements net.Conn, and half close as
// net.TCPConn does. Reading ends with io.EOF when the peer has closed in good
// order, and with an error that is syscall.ECONNRESET when it has not.
type Conn struct {
	ep *Endpoint
	s  *stream.Conn

	writing sync.Mutex // one Write at a time, whole

	// Guarded by ep.mu.
	changed       sync.Cond
	closed        bool
	readBy, wrtBy deadline
}

// deadline is a point in time that wakes waiters once.
type deadline struct {
	timer  *time.Timer
	set    uint64 // how often it was set, to tell a stale timer
	passed bool
}

func (e *Endpoint) newConn(s *stream.Conn) *Conn {
	c := &Conn{ep: e, s: s}
	c.changed.L = &e.mu
	s.User = c
	return c
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	for {
		if err := c.usable(&c.readBy); err != nil {
			return 0, c.fail("read", err)
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := c.s.Read(p)
		if n > 0 {
			c.ep.kick()
			return n, nil
		}
		if err != nil {
			return 0, c.fail("read", err)
		}
		c.changed.Wait()
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	total := 0
	for {
		if err := c.usable(&c.wrtBy); err != nil {
			return total, c.fail("write", err)
		}
		n, err := c.s.Write(p[total:])
		if err != nil {
			return total, c.fail("write", err)
		}
		total += n
		if n > 0 {
			c.ep.kick()
		}
		if total == len(p) {
			return total, nil
		}
		if n == 0 {
			c.changed.Wait()
		}
	}
}

// CloseWrite ends our half: the peer reads what was written, then EOF.
func (c *Conn) CloseWrite() error { return c.half((*stream.Conn).CloseWrite) }

// CloseRead drops what has come and tells the peer that nobody reads.
func (c *Conn) CloseRead() error { return c.half((*stream.Conn).CloseRead) }

func (c *Conn) half(shut func(*stream.Conn) error) error {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	if err := shut(c.s); err != nil {
		return c.fail("close", err)
	}
	c.changed.Broadcast()
	c.ep.kick()
	return nil
}

// Close implements net.Conn. What was written still goes out while the peer
// takes it.
func (c *Conn) Close() error {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	c.closed = true
	c.s.Close()
	c.setDeadline(&c.readBy, time.Time{})
	c.setDeadline(&c.wrtBy, time.Time{})
	c.changed.Broadcast()
	c.ep.kick()
	if c.s.Phase() == stream.Open {
		c.ep.wake() // the carrier must start its clock
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr(c.ep.local, c.s.LocalPort()) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.ep.peer, c.s.PeerPort()) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy, &c.wrtBy) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.wrtBy) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	if c.closed {
		return c.fail("set deadline", net.ErrClosed)
	}
	for _, d := range ds {
		c.setDeadline(d, t)
	}
	c.changed.Broadcast()
	return nil
}

func (c *Conn) setDeadline(d *deadline, t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.set++
	d.passed = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.passed = true
		return
	}
	this := d.set
	d.timer = time.AfterFunc(wait, func() {
		c.ep.mu.Lock()
		defer c.ep.mu.Unlock()
		if d.set == this {
			d.passed = true
			c.changed.Broadcast()
		}
	})
}

func (c *Conn) usable(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case d.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// fail wraps err as package net does; io.EOF stays bare.
func (c *Conn) fail(op string, err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if errors.Is(err, stream.ErrClosed) {
		err = net.ErrClosed
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "vsock", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
