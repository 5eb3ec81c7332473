package fakeguest

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

const (
	ringSize = 128
	txChunk  = 16 << 10 // payload of one packet to the host
	ringArea = 0x10000  // room for one ring's three parts
	dataArea = 0x100000 // first buffer
	tables   = ringArea * 4
)

// places are the guest addresses of a ring.
type places struct{ desc, avail, used, data, table uint64 }

func layout(i int) places {
	at := uint64(i+1) * ringArea
	return places{
		desc: at, avail: at + 0x4000 + 2, used: at + 0x8000, // avail only 2-aligned
		data:  dataArea + uint64(i)*ringSize*16<<10,
		table: tables + uint64(i)*ringArea,
	}
}

// driverRing is the driver's side of a queue.
type driverRing struct {
	g                 *Guest
	index             int
	at                places
	desc, avail, used []byte
	free              []uint16
	availIdx, seen    uint16
	kicked            uint16 // availIdx at the last look at whether to kick
}

func (g *Guest) newRing(i int) *driverRing {
	l := layout(i)
	r := &driverRing{
		g: g, index: i, at: l,
		desc:  g.memory[l.desc:][:16*ringSize],
		avail: g.memory[l.avail:][:6+2*ringSize],
		used:  g.memory[l.used:][:6+8*ringSize],
	}
	clear(r.desc)
	clear(r.avail)
	clear(r.used)
	for id := range uint16(ringSize) {
		if i == 0 || id%2 == 0 { // a packet to the host takes two descriptors
			r.free = append(r.free, id)
		}
	}
	return r
}

func (r *driverRing) buffer(id uint16) uint64 { return r.at.data + uint64(id)*16<<10 }

func describe(b []byte, addr uint64, length int, flags, next uint16) {
	binary.LittleEndian.PutUint64(b[0:], addr)
	binary.LittleEndian.PutUint32(b[8:], uint32(length))
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
}

// expose makes a chain available.
func (r *driverRing) expose(id uint16) {
	virtq.Store16(r.avail[4+2*int(r.availIdx%ringSize):], id)
	r.availIdx++
	virtq.Store16(r.avail[2:], r.availIdx)
}

// notify kicks if the device wants it.
func (r *driverRing) notify() {
	before := r.kicked
	r.kicked = r.availIdx
	if before == r.availIdx {
		return
	}
	want := virtq.Load16(r.used)&1 == 0
	if r.g.opts.EventIdx {
		event := virtq.Load16(r.used[4+8*ringSize:])
		want = r.availIdx-event-1 < r.availIdx-before
	}
	if want {
		one := [8]byte{1}
		_, _ = unix.Write(r.g.rings[r.index].kick, one[:])
	}
}

// postRx gives one more buffer to the device.
func (r *driverRing) postRx() bool {
	if len(r.free) == 0 {
		return false
	}
	id := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	describe(r.desc[16*int(id):], r.buffer(id), r.g.opts.RxSize, 2, 0)
	r.expose(id)
	return true
}

// takeUsed returns a chain that the device is done with.
func (r *driverRing) takeUsed() (id uint16, n int, ok bool) {
	if virtq.Load16(r.used[2:]) == r.seen {
		return 0, 0, false
	}
	slot := r.used[4+8*int(r.seen%ringSize):]
	id, n = uint16(binary.LittleEndian.Uint32(slot)), int(binary.LittleEndian.Uint32(slot[4:]))
	r.seen++
	return id, n, true
}

// await asks for an interrupt and says whether one is due already.
func (r *driverRing) await() bool {
	if r.g.opts.EventIdx {
		virtq.Store16(r.avail[4+2*ringSize:], r.seen)
	}
	return virtq.Load16(r.used[2:]) != r.seen
}

// drive handles both rings once and says whether to look again.
func (g *Guest) drive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.running {
		return false
	}
	for {
		id, n, ok := g.rx.takeUsed()
		if !ok {
			break
		}
		g.deliver(g.memory[g.rx.buffer(id):][:n])
		g.rx.free = append(g.rx.free, id)
		g.rx.postRx()
	}
	g.rx.notify()
	for {
		id, _, ok := g.tx.takeUsed()
		if !ok {
			break
		}
		g.tx.free = append(g.tx.free, id)
	}
	for len(g.tx.free) > 0 && g.transmit() {
	}
	g.tx.notify()
	a, b := g.rx.await(), g.tx.await()
	return a || b
}

func (g *Guest) deliver(packet []byte) {
	h := stream.ParseHeader((*[stream.HeaderSize]byte)(packet))
	g.Deliver(h, [][]byte{packet[stream.HeaderSize:]})
}

// transmit sends one packet as Linux does: header and payload apart.
func (g *Guest) transmit() bool {
	r := g.tx
	id := r.free[len(r.free)-1]
	buf := g.memory[r.buffer(id):]
	size := 0
	sent := g.Send(txChunk, func(h stream.Header, payload [][]byte) {
		h.Put((*[stream.HeaderSize]byte)(buf))
		for _, p := range payload {
			size += copy(buf[stream.HeaderSize+size:], p)
		}
	})
	if !sent {
		return false
	}
	r.free = r.free[:len(r.free)-1]
	table, next := r.desc[16*int(id):], id+1
	if g.opts.Indirect {
		at := r.at.table + uint64(id)*32
		describe(table, at, 32, 4, 0)
		table, next = g.memory[at:], 1
	}
	if size == 0 {
		describe(table, r.buffer(id), stream.HeaderSize, 0, 0)
		if g.opts.Indirect {
			describe(r.desc[16*int(id):], r.at.table+uint64(id)*32, 16, 4, 0)
		}
	} else {
		describe(table, r.buffer(id), stream.HeaderSize, 1, next)
		describe(table[16:], r.buffer(id)+stream.HeaderSize, size, 0, 0)
	}
	r.expose(id)
	return true
}
