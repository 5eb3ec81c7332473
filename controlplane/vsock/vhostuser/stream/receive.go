package stream

// Receive takes a packet from the peer. payload holds at least h.Len bytes in
// pieces; it is not kept. A packet that makes no sense costs the peer its
// connection and nothing else.
func (m *Mux) Receive(h Header, payload [][]byte) {
	m.stats.PacketsIn++
	if h.SrcCID != m.peer || h.DstCID != m.local {
		m.stats.Dropped++
		return
	}
	k := key{local: h.DstPort, peer: h.SrcPort}
	c := m.conns[k]
	switch {
	case h.Type != typeStream || h.Len > MaxPayload:
		if c != nil {
			c.end(ErrReset, true)
		} else {
			m.refuse(k, h.Op)
		}
	case c != nil:
		c.receive(h, payload)
	case h.Op == OpRequest:
		m.requested(k, h)
	default:
		m.refuse(k, h.Op)
	}
}

// refuse answers a packet for no connection, but never a reset with a reset.
func (m *Mux) refuse(k key, op Op) {
	if op == OpReset {
		return
	}
	m.stats.Refused++
	m.replies = append(m.replies, m.header(k, OpReset))
}

// requested takes a connection that the peer asks for.
func (m *Mux) requested(k key, h Header) {
	l := m.listeners[k.local]
	if l == nil || len(l.queue) >= l.backlog || len(m.conns) >= maxTaken {
		m.refuse(k, h.Op)
		return
	}
	c := m.newConn(k, Open)
	c.credit.peerWindow = h.BufAlloc
	c.owe = oweResponse
	l.queue = append(l.queue, c)
	m.stats.Accepted++
	m.enqueue(c)
	if m.WakeListener != nil {
		m.WakeListener(k.local)
	}
}

func (c *Conn) receive(h Header, payload [][]byte) {
	// A reset for a connection that the peer has forgotten counts nothing.
	if h.Op != OpReset && !c.credit.learn(h.BufAlloc, h.FwdCnt) {
		c.breach(h.Op)
		return
	}
	c.idle = 0
	if c.phase == Dialing {
		c.answered(h)
		return
	}
	switch h.Op {
	case OpData:
		c.receiveData(int(h.Len), payload)
	case OpCreditUpdate:
	case OpCreditRequest:
		c.owe |= oweCredit
	case OpShutdown:
		c.receiveShutdown(h.Flags)
	case OpReset:
		c.receiveReset()
	default:
		c.breach(h.Op)
		return
	}
	if c.phase == Open {
		c.mux.enqueue(c)
	}
}

// answered takes the reply to a dial.
func (c *Conn) answered(h Header) {
	switch {
	case c.owe&oweRequest != 0: // an answer to a question never asked
		c.breach(h.Op)
	case h.Op == OpResponse:
		c.mux.flying--
		c.phase, c.opened = Open, true
		c.mux.enqueue(c)
		c.mux.wake(c)
	case h.Op == OpReset:
		c.mux.stats.DialsRefused++
		c.end(ErrRefused, false)
	default:
		c.breach(h.Op)
	}
}

func (c *Conn) receiveData(n int, payload [][]byte) {
	if c.shutPeer&shutSend != 0 || !c.credit.accept(uint32(n)) {
		c.breach(OpData)
		return
	}
	if c.shutWant&shutReceive != 0 {
		// The peer may have sent it before it learnt that nobody reads.
		if c.credit.take(uint32(n)) {
			c.owe |= oweCredit
		}
		return
	}
	c.mux.stats.BytesIn += uint64(n)
	for _, seg := range payload {
		seg = seg[:min(len(seg), n)]
		c.in.write(seg)
		n -= len(seg)
	}
	c.mux.wake(c)
}

func (c *Conn) receiveShutdown(flags uint32) {
	c.shutPeer |= flags & shutBoth
	if c.shutPeer&shutReceive != 0 {
		c.out.clear()
	}
	if c.shutPeer == shutBoth {
		// The peer waits for this reset before it forgets the connection. All
		// it had to say is in our queue by now.
		c.end(nil, true)
		return
	}
	c.mux.wake(c)
}

// receiveReset is the end in good order when either side had said all before.
func (c *Conn) receiveReset() {
	if c.shutSent == shutBoth || c.shutPeer&shutSend != 0 {
		c.end(nil, false)
		return
	}
	c.mux.stats.Resets++
	c.end(ErrReset, false)
}

// breach ends a connection whose peer broke the protocol.
func (c *Conn) breach(op Op) {
	c.mux.stats.Breaches++
	c.end(ErrReset, op != OpReset)
}
