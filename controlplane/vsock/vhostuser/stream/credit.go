package stream

// credit is the flow control of one connection. All counters run modulo 2^32
// as the wire has them; only differences mean anything.
type credit struct {
	// What we let the peer send: it may have window bytes that our user has
	// not taken. told is the value of taken that the peer knows.
	window, got, taken, told uint32
	// What the peer lets us send.
	peerWindow, sent, peerTaken uint32
}

// allowed is how many bytes we may send now.
func (c *credit) allowed() uint32 {
	flying := c.sent - c.peerTaken
	if flying >= c.peerWindow {
		return 0 // a peer may also shrink its window beneath what is flying
	}
	return c.peerWindow - flying
}

// learn takes the peer's counters from a packet. It says no to a peer that
// claims to have taken more than was sent, or less than it said before.
func (c *credit) learn(bufAlloc, fwdCnt uint32) bool {
	if fwdCnt-c.peerTaken > c.sent-c.peerTaken {
		return false
	}
	c.peerWindow, c.peerTaken = bufAlloc, fwdCnt
	return true
}

// accept counts n bytes from the peer. It says no when they overrun what the
// peer was allowed.
func (c *credit) accept(n uint32) bool {
	if n > c.window-(c.got-c.taken) {
		return false
	}
	c.got += n
	return true
}

// take counts n bytes taken by our user and says whether the peer should be
// told. Every quarter of the window is often enough: a peer out of credit has
// filled it all, and a user that empties it passes the mark.
func (c *credit) take(n uint32) bool {
	c.taken += n
	return c.taken-c.told >= c.window/4
}
