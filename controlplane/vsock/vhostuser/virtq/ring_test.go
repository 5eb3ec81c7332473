package virtq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	memSize  = 1 << 20
	userBase = 0x7f0000000000
	descAt   = 0x1000
	availAt  = 0x2002
	usedAt   = 0x3000
	tableAt  = 0x4000
	dataAt   = 0x10000
)

// guest is memory in two regions that meet at half of it, and a driver.
type guest struct {
	bytes []byte
	mem   Memory
	size  uint16
	idx   uint16
}

func newGuest(t testing.TB, size uint16) *guest {
	t.Helper()
	b, err := unix.Mmap(-1, 0, memSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	mem, err := NewMemory([]Region{
		{GuestAddr: 0, UserAddr: userBase, Bytes: b[:memSize/2]},
		{GuestAddr: memSize / 2, UserAddr: userBase + memSize, Bytes: b[memSize/2:]},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &guest{bytes: b, mem: mem, size: size}
}

func (g *guest) layout() Layout {
	return Layout{Size: uint32(g.size), Desc: userBase + descAt, Avail: userBase + availAt, Used: userBase + usedAt, Indirect: true}
}

func (g *guest) desc(table, i int, addr uint64, n uint32, flags, next uint16) {
	b := g.bytes[table+16*i:]
	binary.LittleEndian.PutUint64(b, addr)
	binary.LittleEndian.PutUint32(b[8:], n)
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
}

func (g *guest) offer(head uint16) {
	Store16(g.bytes[availAt+4+2*int(g.idx%g.size):], head)
	g.idx++
	Store16(g.bytes[availAt+2:], g.idx)
}

func (g *guest) ring(t testing.TB) *Ring {
	t.Helper()
	r, err := New(g.mem, g.layout())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChainRoundTrip(t *testing.T) {
	for name, build := range map[string]func(*guest){
		"direct": func(g *guest) {
			g.desc(descAt, 0, dataAt, 4, descNext, 2)
			g.desc(descAt, 2, dataAt+100, 6, descNext, 1)
			g.desc(descAt, 1, dataAt+200, 3, descNext|descWrite, 3)
			g.desc(descAt, 3, dataAt+300, 7, descWrite, 0)
		},
		"indirect": func(g *guest) {
			g.desc(descAt, 0, tableAt, 64, descIndirect, 0)
			g.desc(tableAt, 0, dataAt, 4, descNext, 2)
			g.desc(tableAt, 2, dataAt+100, 6, descNext, 1)
			g.desc(tableAt, 1, dataAt+200, 3, descNext|descWrite, 3)
			g.desc(tableAt, 3, dataAt+300, 7, descWrite, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, 8)
			r := g.ring(t)
			var c Chain
			for range 100 { // several times around
				build(g)
				copy(g.bytes[dataAt:], "head")
				copy(g.bytes[dataAt+100:], "-tail!")
				g.offer(0)
				if ok, err := r.Pop(&c); !ok || err != nil {
					t.Fatalf("pop: %v, %v", ok, err)
				}
				if c.Readable() != 10 || c.Writable() != 10 {
					t.Fatalf("%d readable, %d writable", c.Readable(), c.Writable())
				}
				var head [5]byte
				c.Peek(head[:])
				rest := bytes.Join(c.After(nil, 5), nil)
				if string(head[:]) != "head-" || string(rest) != "tail!" {
					t.Fatalf("read %q, %q", head, rest)
				}
				c.Write([]byte("ab"))
				c.Write([]byte("cdefgh"))
				r.Push(&c, c.Written())
				if c.Written() != 8 || !r.Publish() || r.Publish() {
					t.Fatal("written or interrupt is wrong")
				}
				if got := string(g.bytes[dataAt+200:][:3]) + string(g.bytes[dataAt+300:][:5]); got != "abcdefgh" {
					t.Fatalf("wrote %q", got)
				}
				if got := Load16(g.bytes[usedAt+2:]); got != g.idx {
					t.Fatalf("used index %d, want %d", got, g.idx)
				}
				if ok, err := r.Pop(&c); ok || err != nil {
					t.Fatalf("pop of nothing: %v, %v", ok, err)
				}
			}
		})
	}
}

func TestBufferAcrossRegions(t *testing.T) {
	g := newGuest(t, 8)
	r := g.ring(t)
	g.desc(descAt, 0, memSize/2-3, 10, 0, 0)
	copy(g.bytes[memSize/2-3:], "0123456789")
	g.offer(0)
	var c Chain
	if ok, err := r.Pop(&c); !ok || err != nil {
		t.Fatal(err)
	}
	if got := c.After(nil, 0); len(got) != 2 || string(bytes.Join(got, nil)) != "0123456789" {
		t.Errorf("read %q", got)
	}
}

func TestBrokenQueues(t *testing.T) {
	for name, spoil := range map[string]func(*guest){
		"too many entries":        func(g *guest) { Store16(g.bytes[availAt+2:], 9) },
		"head out of range":       func(g *guest) { g.offer(8) },
		"next out of range":       func(g *guest) { g.desc(descAt, 0, dataAt, 1, descNext, 9); g.offer(0) },
		"loop":                    func(g *guest) { g.desc(descAt, 0, dataAt, 1, descNext, 0); g.offer(0) },
		"empty loop":              func(g *guest) { g.desc(descAt, 0, dataAt, 0, descNext, 0); g.offer(0) },
		"outside of memory":       func(g *guest) { g.desc(descAt, 0, memSize, 1, 0, 0); g.offer(0) },
		"leaves memory":           func(g *guest) { g.desc(descAt, 0, memSize-1, 2, 0, 0); g.offer(0) },
		"wraps":                   func(g *guest) { g.desc(descAt, 0, math.MaxUint64, 2, 0, 0); g.offer(0) },
		"too long":                func(g *guest) { g.desc(descAt, 0, 0, math.MaxUint32, 0, 0); g.offer(0) },
		"readable after writable": func(g *guest) { g.desc(descAt, 0, dataAt, 1, 3, 1); g.desc(descAt, 1, dataAt, 1, 0, 0); g.offer(0) },
		"indirect and next":       func(g *guest) { g.desc(descAt, 0, tableAt, 16, descIndirect|descNext, 1); g.offer(0) },
		"indirect of odd length":  func(g *guest) { g.desc(descAt, 0, tableAt, 17, descIndirect, 0); g.offer(0) },
		"indirect of no length":   func(g *guest) { g.desc(descAt, 0, tableAt, 0, descIndirect, 0); g.offer(0) },
		"indirect too long":       func(g *guest) { g.desc(descAt, 0, 0, (maxChain+1)*16, descIndirect, 0); g.offer(0) },
		"indirect across regions": func(g *guest) { g.desc(descAt, 0, memSize/2-16, 32, descIndirect, 0); g.offer(0) },
		"nested": func(g *guest) {
			g.desc(descAt, 0, tableAt, 16, descIndirect, 0)
			g.desc(tableAt, 0, tableAt, 16, descIndirect, 0)
			g.offer(0)
		},
		"nested in itself": func(g *guest) { g.desc(descAt, 0, descAt, 16, descIndirect, 0); g.offer(0) },
		"indirect second": func(g *guest) {
			g.desc(descAt, 0, dataAt, 1, descNext, 1)
			g.desc(descAt, 1, tableAt, 16, descIndirect, 0)
			g.offer(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, 8)
			r := g.ring(t)
			spoil(g)
			var c Chain
			if ok, err := r.Pop(&c); ok || !errors.Is(err, ErrBroken) {
				t.Errorf("pop: %v, %v, want ErrBroken", ok, err)
			}
		})
	}
}

func TestIndirectMustBeNegotiated(t *testing.T) {
	g := newGuest(t, 8)
	l := g.layout()
	l.Indirect = false
	r, err := New(g.mem, l)
	if err != nil {
		t.Fatal(err)
	}
	g.desc(descAt, 0, tableAt, 16, descIndirect, 0)
	g.offer(0)
	if _, err := r.Pop(&Chain{}); !errors.Is(err, ErrBroken) {
		t.Errorf("pop: %v", err)
	}
}

func TestLayoutsThatAreRefused(t *testing.T) {
	g := newGuest(t, 8)
	for name, change := range map[string]func(*Layout){
		"no size":            func(l *Layout) { l.Size = 0 },
		"no power of two":    func(l *Layout) { l.Size = 6 },
		"too large":          func(l *Layout) { l.Size = 65536 },
		"descriptors odd":    func(l *Layout) { l.Desc += 8 },
		"available odd":      func(l *Layout) { l.Avail++ },
		"used odd":           func(l *Layout) { l.Used += 2 },
		"descriptors away":   func(l *Layout) { l.Desc = 0 },
		"available crosses":  func(l *Layout) { l.Avail = userBase + memSize/2 - 4 },
		"used ends too late": func(l *Layout) { l.Used = userBase + memSize + memSize/2 - 16 },
		"used wraps":         func(l *Layout) { l.Used = math.MaxUint64 - 3 },
	} {
		l := g.layout()
		change(&l)
		if _, err := New(g.mem, l); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestMemoryTablesThatAreRefused(t *testing.T) {
	g := newGuest(t, 8)
	a, b := g.bytes[:memSize/2], g.bytes[memSize/2:]
	for name, regions := range map[string][]Region{
		"none":                 {},
		"empty":                {{Bytes: a[:0]}},
		"guest overlap":        {{Bytes: a}, {GuestAddr: 4096, UserAddr: 1 << 40, Bytes: b}},
		"user overlap":         {{Bytes: a}, {GuestAddr: 1 << 40, UserAddr: 4096, Bytes: b}},
		"contained":            {{Bytes: a}, {GuestAddr: 4096, UserAddr: 1 << 40, Bytes: b[:4096]}},
		"guest wraps":          {{GuestAddr: math.MaxUint64 - 4095, Bytes: a}},
		"user wraps":           {{UserAddr: math.MaxUint64 - 4095, Bytes: a}},
		"unaligned guest":      {{GuestAddr: 2, Bytes: a}},
		"unaligned user":       {{UserAddr: 2, Bytes: a}},
		"unaligned size":       {{Bytes: a[:100]}},
		"unaligned mapping":    {{Bytes: g.bytes[2 : 2+4096]}},
		"more than we promise": make([]Region, maxRegions+1),
	} {
		if _, err := NewMemory(regions); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestNotificationSuppression(t *testing.T) {
	for _, eventIdx := range []bool{false, true} {
		g := newGuest(t, 8)
		l := g.layout()
		l.EventIdx = eventIdx
		r, err := New(g.mem, l)
		if err != nil {
			t.Fatal(err)
		}
		g.desc(descAt, 0, dataAt, 1, 0, 0)
		usedEvent := g.bytes[availAt+4+2*8:]
		var c Chain
		once := func() bool {
			g.offer(0)
			if ok, err := r.Pop(&c); !ok || err != nil {
				t.Fatal(err)
			}
			r.Push(&c, 0)
			return r.Publish()
		}
		if r.Await() {
			t.Error("await says that something came")
		}
		if !once() { // used_event 0: the driver wants the first
			t.Errorf("eventIdx=%v: no interrupt", eventIdx)
		}
		if eventIdx {
			if once() {
				t.Error("interrupt that nobody asked for")
			}
			Store16(usedEvent, 2)
		} else {
			Store16(g.bytes[availAt:], availNoInterrupt)
			if once() {
				t.Error("interrupt that the driver has switched off")
			}
			Store16(g.bytes[availAt:], 0)
		}
		if !once() {
			t.Errorf("eventIdx=%v: no interrupt after it was asked for", eventIdx)
		}
		r.Quiet()
		g.offer(0)
		if !r.Await() {
			t.Errorf("eventIdx=%v: await overlooks an entry", eventIdx)
		}
		if eventIdx && Load16(g.bytes[usedAt+4+8*8:]) != r.Base() {
			t.Error("avail_event is not the next index")
		}
	}
}

func TestHalfWordsLeaveTheirNeighboursAlone(t *testing.T) {
	g := newGuest(t, 8)
	var tasks sync.WaitGroup
	for i := range 4 {
		tasks.Go(func() {
			for v := range uint16(20000) {
				Store16(g.bytes[2*i:], v)
				if got := Load16(g.bytes[2*i:]); got != v {
					t.Errorf("half word %d is %d, want %d", i, got, v)
					return
				}
			}
		})
	}
	tasks.Wait()
}

// TestPopUnderAConcurrentWriter lets a guest change its memory while we look.
func TestPopUnderAConcurrentWriter(t *testing.T) {
	g := newGuest(t, 8)
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for i := uint16(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for d := range 8 {
				Store16(g.bytes[descAt+16*d+12:], i&7)
				Store16(g.bytes[descAt+16*d+14:], i*31&7)
				Store16(g.bytes[descAt+16*d+8:], i*7)
				Store16(g.bytes[descAt+16*d+2:], i*13&0x1f)
				Store16(g.bytes[tableAt+16*d+12:], i&3)
			}
			Store16(g.bytes[availAt+2:], i)
		}
	})
	var c Chain
	for range 50000 {
		l := g.layout()
		l.Base = Load16(g.bytes[availAt+2:]) - 1
		r, err := New(g.mem, l)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := r.Pop(&c); ok && err == nil {
			touch(&c)
			r.Push(&c, c.Written())
			r.Publish()
		}
	}
	close(stop)
	tasks.Wait()
}

// touch uses every byte of a chain.
func touch(c *Chain) {
	c.Peek(make([]byte, c.Readable()))
	c.Write(make([]byte, c.Writable()))
}

// FuzzPop gives memory, size, base and features to a hostile guest. Writable
// buffers may lie on the rings themselves.
func FuzzPop(f *testing.F) {
	f.Add([]byte{}, uint8(3), uint16(0), uint8(3))
	d := func(addr uint64, n uint32, flags, next uint16) []byte {
		b := binary.LittleEndian.AppendUint64(nil, addr)
		b = binary.LittleEndian.AppendUint32(b, n)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, flags), next)
	}
	f.Add(append(d(dataAt, 44, 1, 1), d(dataAt+64, 100, 0, 0)...), uint8(3), uint16(0xffff), uint8(3))
	f.Add(append(d(tableAt, 32, 4, 0), d(availAt, 4096, 2, 0)...), uint8(2), uint16(0), uint8(2))
	f.Add(d(usedAt, 4096, 2, 0), uint8(0), uint16(1), uint8(0))
	f.Add(d(memSize/2-10, 100, 1, 0), uint8(7), uint16(0), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint8, base uint16, features uint8) {
		g := newGuest(t, 1<<(size%8))
		copy(g.bytes[descAt:availAt-2], b)
		copy(g.bytes[tableAt:], b)
		for i := range 16 {
			if len(b) > 0 {
				Store16(g.bytes[availAt+4+2*i:], uint16(b[i%len(b)])%g.size)
			}
		}
		Store16(g.bytes[availAt+2:], base+min(g.size, 8))
		l := g.layout()
		l.Base, l.EventIdx, l.Indirect = base, features&1 != 0, features&2 != 0
		r, err := New(g.mem, l)
		if err != nil {
			t.Fatal(err)
		}
		var c Chain
		for range 64 {
			ok, err := r.Pop(&c)
			if err != nil && !errors.Is(err, ErrBroken) {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if c.Readable() > MaxBytes || c.Writable() > MaxBytes {
				t.Fatalf("%d readable, %d writable", c.Readable(), c.Writable())
			}
			touch(&c)
			r.Push(&c, c.Written())
			r.Publish()
			r.Await()
		}
	})
}

func BenchmarkPopPush(b *testing.B) {
	g := newGuest(b, 8)
	r := g.ring(b)
	g.desc(descAt, 0, dataAt, 44, descNext, 1)
	g.desc(descAt, 1, dataAt+64, 4096, 0, 0)
	var c Chain
	b.ReportAllocs()
	for b.Loop() {
		g.offer(0)
		if ok, err := r.Pop(&c); !ok || err != nil {
			b.Fatal(err)
		}
		r.Push(&c, 0)
		r.Publish()
	}
}
