package stream

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const testPort = 7

// two are two ends and the packets between them.
type two struct {
	t    rapid.TB
	ends [2]*Mux
	wire [2][]packet // from end 0, from end 1
}

type packet struct {
	h    Header
	data []byte
}

func newTwo(t rapid.TB) *two {
	w := &two{t: t, ends: [2]*Mux{NewMux(2, 3), NewMux(3, 2)}}
	for _, m := range w.ends {
		m.Listen(testPort, 8)
	}
	return w
}

// send takes one packet out of an end.
func (w *two) send(i, space int) bool {
	h, payload, ok := w.ends[i].Next(space)
	if !ok {
		return false
	}
	p := packet{h: h}
	for _, b := range payload {
		p.data = append(p.data, b...)
	}
	if int(h.Len) != len(p.data) || len(p.data) > space {
		w.t.Fatalf("packet of %d bytes carries %d, room for %d", h.Len, len(p.data), space)
	}
	w.wire[i] = append(w.wire[i], p)
	return true
}

// deliver gives the oldest packet of an end to the other.
func (w *two) deliver(i int) bool {
	if len(w.wire[i]) == 0 {
		return false
	}
	p := w.wire[i][0]
	w.wire[i] = w.wire[i][1:]
	cut := len(p.data) / 2
	w.ends[1-i].Receive(p.h, [][]byte{p.data[:cut], p.data[cut:], []byte("not ours")})
	w.check()
	return true
}

// settle moves packets until none is left.
func (w *two) settle() {
	for moved := true; moved; {
		moved = false
		for i := range w.ends {
			for w.send(i, MaxPayload) {
				moved = true
			}
			for w.deliver(i) {
				moved = true
			}
		}
	}
}

// check is what holds at every moment, whoever the peer is.
func (m *Mux) check(t rapid.TB) {
	if len(m.conns) > maxConns || m.flying < 0 || m.flying > maxFlying {
		t.Fatalf("%d connections, %d dials flying", len(m.conns), m.flying)
	}
	if m.ready.Len()+m.dials.Len() > len(m.conns) || len(m.closing) > len(m.conns) {
		t.Fatalf("%d ready, %d dials, %d closing of %d", m.ready.Len(), m.dials.Len(), len(m.closing), len(m.conns))
	}
	for _, c := range m.conns {
		if c.in.len > int(c.credit.window) || c.out.len > int(c.credit.window) {
			t.Fatalf("%d bytes in, %d out, window %d", c.in.len, c.out.len, c.credit.window)
		}
		if held := c.credit.got - c.credit.taken; held != uint32(c.in.len) {
			t.Fatalf("%d bytes held, %d counted", c.in.len, held)
		}
		if c.phase == Ended || c.mux != m || c.pending() && c.turn == nil {
			t.Fatalf("connection in phase %d is kept, or has no turn", c.phase)
		}
	}
}

func (w *two) check() {
	for _, m := range w.ends {
		m.check(w.t)
		if m.stats.Breaches != 0 || m.stats.Dropped != 0 {
			w.t.Fatalf("one end says that the other broke the protocol: %+v", m.stats)
		}
	}
}

// user is one end of one connection as a model sees it: it writes the bytes
// 0, 1, 2, … and expects them.
type user struct {
	c             *Conn
	wrote, read   int
	peer          *user
	noMore        bool // says that it writes no more
	closed, eof   bool
	deaf, errored bool
}

func (u *user) write(t rapid.TB, n int) {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(u.wrote + i)
	}
	n, err := u.c.Write(b)
	switch {
	case u.noMore && err == nil:
		t.Fatalf("write of %d bytes after the end", n)
	case err != nil:
		u.errored = true
	}
	u.wrote += n
}

func (u *user) take(t rapid.TB, n int) int {
	b := make([]byte, n)
	n, err := u.c.Read(b)
	for i := range b[:n] {
		if b[i] != byte(u.read+i) {
			t.Fatalf("byte %d is %d", u.read+i, b[i])
		}
	}
	u.read += n
	if errors.Is(err, io.EOF) && !u.deaf && !u.closed {
		u.eof = true
		if u.peer != nil && u.read != u.peer.wrote {
			t.Fatalf("end of stream after %d bytes of %d", u.read, u.peer.wrote)
		}
	}
	return n
}

// TestTwoEnds lets users on two ends do anything in any order and compares
// with what streams must do.
func TestTwoEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwo(t)
		var users []*user
		pick := func(t *rapid.T) *user {
			if len(users) == 0 {
				t.Skip("no connection")
			}
			return users[rapid.IntRange(0, len(users)-1).Draw(t, "user")]
		}
		end := rapid.IntRange(0, 1)
		t.Repeat(map[string]func(*rapid.T){
			"dial": func(t *rapid.T) {
				users = append(users, &user{c: w.ends[end.Draw(t, "end")].Dial(testPort)})
			},
			"accept": func(t *rapid.T) {
				if c := w.ends[end.Draw(t, "end")].Accept(testPort); c != nil {
					u := &user{c: c}
					for _, o := range users {
						if o.c.mux != c.mux && o.c.key == (key{local: c.key.peer, peer: c.key.local}) {
							u.peer, o.peer = o, u
						}
					}
					users = append(users, u)
				}
			},
			"write": func(t *rapid.T) {
				if u := pick(t); u.c.Phase() != Dialing {
					u.write(t, rapid.IntRange(0, 300<<10).Draw(t, "n"))
				}
			},
			"read": func(t *rapid.T) {
				if u := pick(t); u.c.Phase() != Dialing {
					u.take(t, rapid.IntRange(1, 300<<10).Draw(t, "n"))
				}
			},
			"half":  func(t *rapid.T) { u := pick(t); u.noMore = true; _ = u.c.CloseWrite() },
			"deaf":  func(t *rapid.T) { u := pick(t); u.deaf = true; _ = u.c.CloseRead() },
			"close": func(t *rapid.T) { u := pick(t); u.closed, u.noMore = true, true; u.c.Close() },
			"send": func(t *rapid.T) {
				w.send(end.Draw(t, "end"), rapid.SampledFrom([]int{1, 4052, MaxPayload}).Draw(t, "space"))
			},
			"deliver": func(t *rapid.T) { w.deliver(end.Draw(t, "end")) },
			"":        func(*rapid.T) { w.check() },
		})
		finish(t, w, users)
	})
}

// finish lets everything arrive, ends all, and proves that nothing is left.
func finish(t *rapid.T, w *two, users []*user) {
	for progress := true; progress; {
		w.settle()
		progress = false
		for _, u := range users {
			for !u.closed && !u.deaf && u.take(t, 64<<10) > 0 {
				progress = true
			}
		}
	}
	for _, u := range users {
		p := u.peer
		if p == nil || u.closed || u.deaf || p.c.Err() != nil && !p.closed {
			continue
		}
		if u.read != p.wrote {
			t.Fatalf("read %d of %d bytes", u.read, p.wrote)
		}
		if p.noMore && p.c.Opened() && !u.eof {
			t.Fatal("reader never saw the end")
		}
	}
	for _, u := range users {
		u.c.Close()
	}
	for range drainTicks + closeTicks + 2 {
		w.settle()
		for _, m := range w.ends {
			m.Tick()
		}
	}
	for _, m := range w.ends {
		for c := m.Accept(testPort); c != nil; c = m.Accept(testPort) {
			c.Close()
		}
	}
	w.settle()
	for _, m := range w.ends {
		if m.Ticking() || len(m.conns) != 0 || m.ready.Len() != 0 || m.flying != 0 || len(m.replies) != 0 {
			t.Fatalf("left over: %d connections, %d replies", len(m.conns), len(m.replies))
		}
	}
}

// opened returns both ends of a connection.
func (w *two) opened() (a, b *Conn) {
	a = w.ends[0].Dial(testPort)
	w.settle()
	b = w.ends[1].Accept(testPort)
	if b == nil || a.Phase() != Open {
		w.t.Fatalf("connection did not come about: %v", a.Err())
	}
	return a, b
}

func TestWriterStopsAtCredit(t *testing.T) {
	w := newTwo(t)
	a, b := w.opened()
	total := 0
	for {
		n, err := a.Write(make([]byte, 100<<10))
		if err != nil {
			t.Fatal(err)
		}
		w.settle()
		if total += n; n == 0 {
			break
		}
	}
	if want := 2 * largeWindow; total != want { // the peer's buffer and ours
		t.Errorf("a writer without reader wrote %d bytes, want %d", total, want)
	}
	read := 0
	for read < total {
		n, err := b.Read(make([]byte, 1000))
		if err != nil || n == 0 {
			t.Fatalf("reader stalls after %d of %d bytes: %v", read, total, err)
		}
		read += n
		w.settle()
	}
}

func TestDialEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(w *two, c *Conn)
		want error
	}{
		"refused":  {func(w *two, _ *Conn) { w.settle() }, ErrRefused},
		"canceled": {func(_ *two, c *Conn) { c.Close() }, ErrClosed},
		"dropped":  {func(w *two, _ *Conn) { w.ends[0].DropAll(ErrReset) }, ErrReset},
		"canceled on the way": {func(w *two, c *Conn) {
			w.send(0, 1)
			c.Close()
			w.settle()
		}, ErrClosed},
		"fresh peer": {func(w *two, _ *Conn) {
			w.send(0, 1)
			w.ends[0].Fresh(ErrReset)
		}, ErrReset},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwo(t)
			c := w.ends[0].Dial(testPort + 1)
			tc.do(w, c)
			if c.Phase() != Ended || !errors.Is(c.Err(), tc.want) {
				t.Errorf("phase %d, %v, want %v", c.Phase(), c.Err(), tc.want)
			}
			if m := w.ends[0]; len(m.conns) != 0 || m.flying != 0 || m.dials.Len() != 0 {
				t.Errorf("left over: %d connections, %d flying, %d dials", len(m.conns), m.flying, m.dials.Len())
			}
		})
	}
}

func TestFreshKeepsDialsThatThePeerHasNotSeen(t *testing.T) {
	w := newTwo(t)
	c := w.ends[0].Dial(testPort)
	w.ends[0].Fresh(ErrReset)
	w.settle()
	if c.Phase() != Open {
		t.Errorf("phase %d, %v", c.Phase(), c.Err())
	}
}

func TestDialsInFlightAreBounded(t *testing.T) {
	m := NewMux(2, 3)
	for range maxConns {
		m.Dial(testPort)
	}
	if m.Dial(testPort) != nil {
		t.Error("one connection too many")
	}
	n := 0
	for {
		h, _, ok := m.Next(1)
		if !ok {
			break
		}
		if h.Op != OpRequest {
			t.Fatalf("op %d", h.Op)
		}
		n++
	}
	if n != maxFlying {
		t.Errorf("%d dials in flight, want %d", n, maxFlying)
	}
}

func TestPeerCannotExhaustUs(t *testing.T) {
	m := NewMux(2, 3)
	m.Listen(testPort, 8)
	h := Header{SrcCID: 3, DstCID: 2, DstPort: testPort, Type: typeStream, Op: OpRequest}
	for m.Listening() { // nothing is ever taken from us
		h.SrcPort++
		m.Receive(h, nil)
		m.check(t)
	}
	if len(m.conns) != 8 || len(m.replies) != maxReplies {
		t.Errorf("%d connections, %d replies", len(m.conns), len(m.replies))
	}
	accepted := 0
	for m.Next(1); ; m.Next(1) {
		h.SrcPort++
		m.Receive(h, nil)
		if m.Accept(testPort) == nil {
			continue
		}
		if accepted++; len(m.conns) >= maxTaken {
			break
		}
	}
	if m.Dial(1) == nil {
		t.Error("the peer's connections leave no room for ours")
	}
	var memory int
	for _, c := range m.conns {
		memory += int(c.credit.window)
	}
	if memory > 100<<20 {
		t.Errorf("the peer may fill %d MiB", memory>>20)
	}
}

// TestBreaches sends what no driver sends to an open connection.
func TestBreaches(t *testing.T) {
	open := func(t *testing.T) (*two, *Conn, Header) {
		w := newTwo(t)
		a, b := w.opened()
		return w, b, Header{
			SrcCID: 2, DstCID: 3, SrcPort: a.LocalPort(), DstPort: testPort, Type: typeStream, BufAlloc: 1 << 16,
		}
	}
	for name, change := range map[string]func(*Header){
		"second request":       func(h *Header) { h.Op = OpRequest },
		"second response":      func(h *Header) { h.Op = OpResponse },
		"unknown op":           func(h *Header) { h.Op = 99 },
		"unknown type":         func(h *Header) { h.Op, h.Type = OpData, 2 },
		"too long":             func(h *Header) { h.Op, h.Len = OpData, MaxPayload+1 },
		"more taken than sent": func(h *Header) { h.Op, h.FwdCnt = OpCreditUpdate, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			w, c, h := open(t)
			change(&h)
			w.ends[1].Receive(h, [][]byte{make([]byte, h.Len)})
			if c.Phase() != Ended || !errors.Is(c.Err(), syscall.ECONNRESET) {
				t.Errorf("phase %d, %v", c.Phase(), c.Err())
			}
		})
	}
	t.Run("overrun", func(t *testing.T) {
		w, c, h := open(t)
		h.Op, h.Len = OpData, MaxPayload
		for range largeWindow/MaxPayload + 1 {
			w.ends[1].Receive(h, [][]byte{make([]byte, h.Len)})
		}
		if c.Phase() != Ended || c.in.len > largeWindow {
			t.Errorf("phase %d with %d bytes", c.Phase(), c.in.len)
		}
	})
	t.Run("foreign address", func(t *testing.T) {
		w, c, h := open(t)
		h.Op, h.SrcCID = OpReset, 77
		w.ends[1].Receive(h, nil)
		if c.Phase() != Open {
			t.Errorf("phase %d", c.Phase())
		}
	})
}

func TestReadAfterReset(t *testing.T) {
	w := newTwo(t)
	a, b := w.opened()
	if _, err := a.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	w.settle()
	a.Abort(ErrReset)
	w.settle()
	got := make([]byte, 100)
	n, err := b.Read(got)
	if string(got[:n]) != "last words" || err != nil {
		t.Errorf("read %q, %v", got[:n], err)
	}
	if _, err := b.Read(got); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("then %v, want ECONNRESET", err)
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.Make[Header]().Draw(t, "header")
		var b [HeaderSize]byte
		h.Put(&b)
		if diff := cmp.Diff(h, ParseHeader(&b)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestFifoAgainstAPlainSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fifo{pool: &blocks{}}
		var model []byte
		next := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 3*blockSize).Draw(t, "n"))
				for i := range p {
					p[i], next = next, next+1
				}
				f.write(p)
				model = append(model, p...)
			},
			"read": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 3*blockSize).Draw(t, "n"))
				n := f.read(p)
				if n != min(len(p), len(model)) || string(p[:n]) != string(model[:n]) {
					t.Fatalf("read %d bytes, or other ones", n)
				}
				model = model[n:]
			},
			"peek": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				var got []byte
				for _, s := range f.peek(nil, n) {
					got = append(got, s...)
				}
				if string(got) != string(model[:n]) {
					t.Fatal("peeked other bytes")
				}
				f.discard(n)
				model = model[n:]
			},
			"": func(t *rapid.T) {
				if f.len != len(model) || len(f.queue) > len(model)/blockSize+2 || len(model) == 0 && f.queue != nil {
					t.Fatalf("%d bytes in %d blocks, want %d", f.len, len(f.queue), len(model))
				}
			},
		})
	})
}
