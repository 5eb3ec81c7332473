package stream

import (
	"container/list"
	"errors"
	"io"
	"syscall"
)

// Why a connection ended, other than in good order.
var (
	// ErrRefused: the peer answered a dial with a reset.
	ErrRefused = errors.New("connection refused by the peer")
	// ErrReset: the peer, or a breach of the protocol, cut an open connection.
	ErrReset error = syscall.ECONNRESET
	// ErrClosed: our own user closed it.
	ErrClosed = errors.New("connection is closed")
)

// Phase is where a connection is in its life.
type Phase int

// The phases of a connection.
const (
	Dialing Phase = iota // requested, the peer has not answered
	Open                 // both ends know of it
	Ended                // forgotten by the Mux; received bytes may remain
)

// key names a connection within one Mux.
type key struct {
	local, peer uint32 // ports
}

// What a connection owes its peer besides data and shutdowns.
const (
	oweRequest = 1 << iota
	oweResponse
	oweCredit
)

// Conn is one connection. Its methods are calls into its Mux, under the same
// lock of the owner.
type Conn struct {
	// User is the owner's to use.
	User any

	mux   *Mux
	key   key
	phase Phase
	err   error // why it ended; nil after an end in good order
	owe   int

	in, out fifo
	credit  credit

	shutWant uint32 // what our user no longer does
	shutSent uint32 // what of it the peer knows
	shutPeer uint32 // what the peer no longer does

	opened bool          // has been Open
	closed bool          // our user is gone
	turn   *list.Element // its place in mux.dials or mux.ready, or nil
	idle   int           // ticks without progress since closed
}

// LocalPort and PeerPort name the connection's two ends.
func (c *Conn) LocalPort() uint32 { return c.key.local }

// PeerPort is the port at the peer's end.
func (c *Conn) PeerPort() uint32 { return c.key.peer }

// Phase says where the connection is in its life.
func (c *Conn) Phase() Phase { return c.phase }

// Opened says whether the connection ever came about. A peer may accept,
// speak and close before anyone looks.
func (c *Conn) Opened() bool { return c.opened }

// Err says why the connection ended; nil while it lives and after an end in
// good order.
func (c *Conn) Err() error { return c.err }

// Read moves received bytes to p. It returns 0 and no error when there is
// nothing yet, and io.EOF once the peer has said that nothing more will come.
// What the peer sent before a reset is still delivered.
func (c *Conn) Read(p []byte) (int, error) {
	if c.closed {
		return 0, ErrClosed
	}
	if c.shutWant&shutReceive != 0 {
		return 0, io.EOF
	}
	if c.in.len > 0 {
		n := c.in.read(p)
		if c.credit.take(uint32(n)) && c.phase == Open {
			c.owe |= oweCredit
			c.mux.enqueue(c)
		}
		return n, nil
	}
	switch {
	case c.shutPeer&shutSend != 0:
		return 0, io.EOF
	case c.phase == Ended && c.err != nil:
		return 0, c.err
	case c.phase == Ended:
		return 0, io.EOF
	}
	return 0, nil
}

// Write queues bytes of p for the peer and returns how many; 0 and no error
// when there is no room now.
func (c *Conn) Write(p []byte) (int, error) {
	switch {
	case c.closed:
		return 0, ErrClosed
	case c.phase == Ended && c.err != nil:
		return 0, c.err
	case c.phase == Ended, c.shutWant&shutSend != 0, c.shutPeer&shutReceive != 0:
		return 0, syscall.EPIPE
	}
	n := min(len(p), int(c.credit.window)-c.out.len)
	c.out.write(p[:n])
	c.mux.enqueue(c)
	return n, nil
}

// CloseWrite says that nothing more will be written; what is queued still
// goes out before the peer learns it.
func (c *Conn) CloseWrite() error { return c.shut(shutSend) }

// CloseRead says that nothing more will be read, and drops what has come.
func (c *Conn) CloseRead() error {
	if err := c.shut(shutReceive); err != nil {
		return err
	}
	c.dropInput()
	return nil
}

func (c *Conn) shut(how uint32) error {
	switch {
	case c.closed:
		return ErrClosed
	case c.phase == Ended && c.err != nil:
		return c.err
	}
	c.shutWant |= how
	c.mux.enqueue(c)
	return nil
}

// Close lets go of the connection. Queued bytes still go out while the peer
// takes them; the peer is then asked to close, and reset when it does not.
func (c *Conn) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.shutWant = shutBoth
	c.dropInput()
	switch c.phase {
	case Dialing:
		c.end(ErrClosed, c.owe&oweRequest == 0)
	case Open:
		c.mux.closing[c] = struct{}{}
		c.mux.enqueue(c)
	}
}

// Abort ends the connection at once with err and resets the peer's end.
func (c *Conn) Abort(err error) { c.end(err, true) }

// dropInput counts received bytes as taken, so that the peer's writer is not
// held up by a reader that is gone.
func (c *Conn) dropInput() {
	c.credit.take(uint32(c.in.len))
	c.in.clear()
}

// end forgets the connection in the Mux. err is nil for an end in good order.
func (c *Conn) end(err error, reset bool) {
	if c.phase == Ended {
		return
	}
	m := c.mux
	switch {
	case c.phase == Dialing && c.owe&oweRequest == 0:
		m.flying--
	case c.phase == Dialing:
		m.dials.Remove(c.turn)
	case c.turn != nil:
		m.ready.Remove(c.turn)
	}
	c.turn = nil
	c.phase, c.err, c.owe = Ended, err, 0
	c.out.clear()
	delete(m.conns, c.key)
	delete(m.closing, c)
	if reset {
		m.replies = append(m.replies, m.header(c.key, OpReset))
	}
	m.wake(c)
}

// pending says whether the connection has a packet for the peer.
func (c *Conn) pending() bool {
	return c.phase == Open && (c.owe != 0 || c.sendable() > 0 || c.shutDue() != 0)
}

// sendable is how many data bytes may go out now.
func (c *Conn) sendable() int {
	if c.shutPeer&shutReceive != 0 {
		return 0
	}
	return min(c.out.len, int(c.credit.allowed()), MaxPayload)
}

// shutDue returns the shutdown flags to send now, or 0. The end of writing
// waits until all is written.
func (c *Conn) shutDue() uint32 {
	want := c.shutWant
	if c.out.len > 0 {
		want &^= shutSend
	}
	if want&^c.shutSent == 0 {
		return 0
	}
	return want
}
