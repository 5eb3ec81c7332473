package stream

import "container/list"

// Listening says whether Receive may be called: a peer that does not take
// our resets must wait with its packets.
func (m *Mux) Listening() bool { return len(m.replies) < maxReplies }

// enqueue gives the connection its turn if it has something for the peer.
func (m *Mux) enqueue(c *Conn) {
	if c.turn == nil && c.pending() {
		c.turn = m.ready.PushBack(c)
	}
}

// Ready says whether Next has a packet, given room for at least one byte.
func (m *Mux) Ready() bool {
	if len(m.replies) > 0 {
		return true
	}
	for e := m.ready.Front(); e != nil && !conn(e).pending(); e = m.ready.Front() {
		m.pop(&m.ready) // it has lost its reason meanwhile
	}
	return m.ready.Len() > 0 || m.dialDue()
}

func (m *Mux) dialDue() bool { return m.dials.Len() > 0 && m.flying < maxFlying }

func conn(e *list.Element) *Conn { return e.Value.(*Conn) }

// pop takes the first connection out of its line.
func (m *Mux) pop(line *list.List) *Conn {
	c := conn(line.Front())
	line.Remove(c.turn)
	c.turn = nil
	return c
}

// Next returns the next packet for the peer with at most space ≥ 1 bytes of
// payload. The pieces of payload are good until the next call of any method.
// Counters are filled in now, not when the packet was thought of, so that
// they are never stale.
func (m *Mux) Next(space int) (Header, [][]byte, bool) {
	if !m.Ready() {
		return Header{}, nil, false
	}
	m.stats.PacketsOut++
	if len(m.replies) > 0 {
		h := m.replies[0]
		m.replies = m.replies[1:]
		return h, nil, true
	}
	if m.dialDue() {
		c := m.pop(&m.dials)
		m.flying++
		c.owe &^= oweRequest
		return m.fill(c, OpRequest), nil, true
	}
	c := m.pop(&m.ready)
	h, payload := m.packet(c, space)
	m.enqueue(c) // behind the others
	return h, payload, true
}

// packet makes the next packet of one connection. Order matters: the answer
// comes first, the end of writing after the last byte.
func (m *Mux) packet(c *Conn, space int) (Header, [][]byte) {
	if c.owe&oweResponse != 0 {
		c.owe &^= oweResponse
		return m.fill(c, OpResponse), nil
	}
	if n := min(c.sendable(), space); n > 0 {
		m.segs = c.out.peek(m.segs[:0], n)
		c.out.discard(n)
		c.credit.sent += uint32(n)
		c.idle = 0
		m.stats.BytesOut += uint64(n)
		h := m.fill(c, OpData)
		h.Len = uint32(n)
		m.wake(c)
		return h, m.segs
	}
	if flags := c.shutDue(); flags != 0 {
		c.shutSent |= flags
		c.idle = 0
		h := m.fill(c, OpShutdown)
		h.Flags = flags
		return h, nil
	}
	return m.fill(c, OpCreditUpdate), nil
}

// fill makes a header that tells the peer our credit, which is then no longer
// owed.
func (m *Mux) fill(c *Conn, op Op) Header {
	h := m.header(c.key, op)
	h.BufAlloc, h.FwdCnt = c.credit.window, c.credit.taken
	c.credit.told = c.credit.taken
	c.owe &^= oweCredit
	return h
}

func (m *Mux) header(k key, op Op) Header {
	return Header{
		SrcCID: m.local, DstCID: m.peer,
		SrcPort: k.local, DstPort: k.peer,
		Type: typeStream, Op: op,
	}
}
