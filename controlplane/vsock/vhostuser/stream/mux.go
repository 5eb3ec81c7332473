package stream

import "container/list"

// Bounds on what the peer can make grow. The windows of all connections
// together stay below 100 MiB each way.
const (
	maxConns    = 4096
	maxTaken    = maxConns / 2 // the peer may not use up what our dials need
	maxFlying   = 64           // dials the peer has not answered
	maxReplies  = 256          // resets queued before we stop listening to the peer
	largeWindow = 256 << 10
	smallWindow = 16 << 10
	manyConns   = 128 // from here on a new connection gets the small window
)

// Ticks of the owner's coarse clock (twice a second) that a closed connection
// may rest without progress: after the peer was asked to close, and while it
// does not take what is still queued.
const (
	closeTicks = 4
	drainTicks = 60
)

// firstPort starts the range of local ports for dials.
const firstPort = 1 << 30

// Stats are counters since the Mux was made.
type Stats struct {
	PacketsIn, PacketsOut uint64
	BytesIn, BytesOut     uint64 // payload
	Dialed, Accepted      uint64 // connections asked for by us, and taken from the peer
	DialsRefused          uint64
	Refused               uint64 // packets of the peer for no connection or listener
	Resets                uint64 // open connections cut by the peer
	Breaches              uint64 // connections cut because the peer broke the protocol
	Dropped               uint64 // packets with foreign addresses
	Conns                 int    // connections now
}

type listener struct {
	queue   []*Conn
	backlog int
}

// Mux is all connections between two ends. Not safe for concurrent use.
type Mux struct {
	// Wake is called when a connection's user has something to look at, and
	// WakeListener when a port has a connection to accept. Neither may call
	// back. Both may be nil.
	Wake         func(*Conn)
	WakeListener func(port uint32)

	local, peer uint64
	conns       map[key]*Conn
	closing     map[*Conn]struct{} // Open, and closed by our user
	listeners   map[uint32]*listener
	ready       list.List // of *Conn with something for the peer, in turn
	dials       list.List // of *Conn that the peer has not been asked for
	flying      int       // dials that it has been asked for and did not answer
	replies     []Header
	port        uint32
	pool        blocks
	segs        [][]byte // scratch of Next
	stats       Stats
}

// NewMux returns the end with address local of a link to peer.
func NewMux(local, peer uint64) *Mux {
	return &Mux{
		local: local, peer: peer,
		conns:     map[key]*Conn{},
		closing:   map[*Conn]struct{}{},
		listeners: map[uint32]*listener{},
		port:      firstPort,
	}
}

// Stats returns the counters.
func (m *Mux) Stats() Stats {
	s := m.stats
	s.Conns = len(m.conns)
	return s
}

// Dial asks the peer for a connection to port. It returns nil when there are
// too many connections.
func (m *Mux) Dial(port uint32) *Conn {
	if len(m.conns) >= maxConns {
		return nil
	}
	k := key{peer: port}
	for {
		k.local = m.port
		m.port++
		if m.port >= firstPort<<1 {
			m.port = firstPort
		}
		if m.conns[k] == nil && m.listeners[k.local] == nil {
			break
		}
	}
	c := m.newConn(k, Dialing)
	c.owe = oweRequest
	c.turn = m.dials.PushBack(c)
	m.stats.Dialed++
	return c
}

// Listen lets the peer connect to a local port; at most backlog connections
// wait to be accepted. It says no when the port is taken.
func (m *Mux) Listen(port uint32, backlog int) bool {
	if m.listeners[port] != nil {
		return false
	}
	m.listeners[port] = &listener{backlog: backlog}
	return true
}

// Unlisten closes a port and resets the connections that wait there.
func (m *Mux) Unlisten(port uint32) {
	l := m.listeners[port]
	if l == nil {
		return
	}
	delete(m.listeners, port)
	for _, c := range l.queue {
		c.end(ErrClosed, true)
	}
}

// Accept returns the next connection that waits on a port, or nil.
func (m *Mux) Accept(port uint32) *Conn {
	l := m.listeners[port]
	if l == nil || len(l.queue) == 0 {
		return nil
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c
}

// Tick advances the coarse clock, twice a second while the link runs, and
// resets the closed connections that do not get on.
func (m *Mux) Tick() {
	for c := range m.closing {
		c.idle++
		limit := drainTicks
		if c.shutSent == shutBoth {
			limit = closeTicks
		}
		if c.idle >= limit {
			c.end(ErrClosed, true)
		}
	}
}

// Ticking says whether Tick has anything to do.
func (m *Mux) Ticking() bool { return len(m.closing) > 0 }

// DropAll ends every connection with err, dials included, and tells the peer.
func (m *Mux) DropAll(err error) {
	for _, c := range m.conns {
		c.end(err, c.owe&oweRequest == 0)
	}
	for _, l := range m.listeners {
		l.queue = nil
	}
}

// Fresh is for a peer that has forgotten everything: every connection that it
// knew of ends with err, dials that it has not seen stay, and nothing is told.
func (m *Mux) Fresh(err error) {
	for _, c := range m.conns {
		if c.owe&oweRequest == 0 {
			c.end(err, false)
		}
	}
	for _, l := range m.listeners {
		l.queue = nil
	}
	m.replies = nil
}

func (m *Mux) newConn(k key, phase Phase) *Conn {
	c := &Conn{mux: m, key: k, phase: phase, opened: phase == Open}
	c.in.pool, c.out.pool = &m.pool, &m.pool
	c.credit.window = largeWindow
	if len(m.conns) >= manyConns {
		c.credit.window = smallWindow
	}
	m.conns[k] = c
	return c
}

func (m *Mux) wake(c *Conn) {
	if m.Wake != nil {
		m.Wake(c)
	}
}
