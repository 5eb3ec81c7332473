package stream

import "testing"

// FuzzPackets plays a hostile peer and an ordinary user against one Mux. Each
// step takes eight bytes; what must hold is checked after every one.
func FuzzPackets(f *testing.F) {
	seed := func(steps ...[8]byte) {
		var b []byte
		for _, s := range steps {
			b = append(b, s[:]...)
		}
		f.Add(b)
	}
	request := [8]byte{0, byte(OpRequest), 1, 0, 0, 0xff, 0, 0}
	seed(request, [8]byte{1}, [8]byte{0, byte(OpData), 1, 0, 200, 0xff, 0, 0}, [8]byte{2, 0, 100})
	seed(request, [8]byte{1}, [8]byte{3, 0, 50}, [8]byte{6, 0, 200}, [8]byte{0, byte(OpShutdown), 1, 3, 0, 0xff, 0, 0})
	seed([8]byte{4}, [8]byte{6, 0, 1}, [8]byte{0, byte(OpResponse), 0x81, 0, 0, 0xff, 0, 0}, [8]byte{3, 0, 9}, [8]byte{5, 0, 2})
	seed(request, request, [8]byte{7}, [8]byte{8}, [8]byte{9})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := NewMux(2, 3)
		m.Listen(testPort, 4)
		var conns []*Conn
		for ; len(b) >= 8; b = b[8:] {
			conns = step(m, conns, b[:8])
			m.check(t)
			if len(m.replies) > maxReplies+len(conns)+1 {
				t.Fatalf("%d replies", len(m.replies))
			}
		}
		for range drainTicks {
			m.Tick()
		}
		m.DropAll(ErrReset)
		m.check(t)
		if len(m.conns) != 0 || m.flying != 0 || m.ready.Len() != 0 {
			t.Fatalf("left over: %d connections, %d flying", len(m.conns), m.flying)
		}
	})
}

func step(m *Mux, conns []*Conn, b []byte) []*Conn {
	pick := func() *Conn {
		if len(conns) == 0 {
			return &Conn{mux: m, phase: Ended, closed: true, in: fifo{pool: &m.pool}, out: fifo{pool: &m.pool}}
		}
		return conns[int(b[1])%len(conns)]
	}
	switch b[0] % 10 {
	case 0:
		if m.Listening() {
			hostile(m, b)
		}
	case 1:
		if c := m.Accept(testPort); c != nil {
			conns = append(conns, c)
		}
	case 2:
		_, _ = pick().Read(make([]byte, 1+int(b[2])<<6))
	case 3:
		_, _ = pick().Write(make([]byte, int(b[2])<<10))
	case 4:
		if c := m.Dial(uint32(b[1])); c != nil {
			conns = append(conns, c)
		}
	case 5:
		switch c := pick(); b[2] % 4 {
		case 0:
			_ = c.CloseWrite()
		case 1:
			_ = c.CloseRead()
		case 2:
			c.Close()
		case 3:
			c.Abort(ErrReset)
		}
	case 6:
		for range 1 + b[2]%16 {
			m.Next(1 + int(b[3])<<8)
		}
	case 7:
		m.Tick()
	case 8:
		m.Fresh(ErrReset)
	case 9:
		m.DropAll(ErrReset)
	}
	return conns
}

// hostile makes a packet that has a chance to hit something.
func hostile(m *Mux, b []byte) {
	h := Header{
		SrcCID: 3, DstCID: 2, Type: typeStream, Op: Op(b[1] % 10),
		SrcPort: uint32(b[2] & 0x3f), DstPort: testPort,
		Flags: uint32(b[3]), Len: uint32(b[4]) << 8, BufAlloc: uint32(b[5]) << 10, FwdCnt: uint32(b[6]) << 8,
	}
	if b[2]&0x80 != 0 {
		h.DstPort = firstPort + uint32(b[2]>>4&7)
	}
	if b[7]&1 != 0 {
		h.FwdCnt = ^h.FwdCnt
	}
	if b[7]&2 != 0 {
		h.Type = uint16(b[7])
	}
	if b[7] == 0xff {
		h.SrcCID = 9
	}
	m.Receive(h, [][]byte{make([]byte, h.Len/3), make([]byte, h.Len-h.Len/3)})
}
