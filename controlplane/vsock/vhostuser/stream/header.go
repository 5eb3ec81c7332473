// Package stream is the virtio-vsock connection protocol as a pure state
// machine: packets and user calls go in, packets and state come out.
//
//	user ── Dial, Read, Write, Close ──► Mux ──► Next     (to the peer)
//	peer ── Receive ───────────────────► Mux ──► Wake*    (to the user)
//
//	Dialing ── RESPONSE ──► Open ── RST, SHUTDOWN(3) ──► Ended
//	   └────── RST ──────────────────────────────────────► Ended
//
// It has no I/O, no lock, no clock and no goroutine: its owner brings them.
// It knows nothing of rings, sockets or machines, and it is symmetrical, so a
// test can put two of them face to face. The peer is hostile: whatever it
// sends, memory stays bounded and no call panics.
package stream

import "encoding/binary"

// HeaderSize is the size in bytes of a packet header on the wire.
const HeaderSize = 44

// MaxPayload bounds the payload of one packet, both ways, in bytes.
const MaxPayload = 64 << 10

// typeStream is the only socket type that is offered.
const typeStream = 1

// Op is what a packet asks for.
type Op uint16

// The operations of virtio-vsock.
const (
	OpInvalid       Op = 0
	OpRequest       Op = 1
	OpResponse      Op = 2
	OpReset         Op = 3
	OpShutdown      Op = 4
	OpData          Op = 5
	OpCreditUpdate  Op = 6
	OpCreditRequest Op = 7
)

// Flags of OpShutdown. Whoever sends them says what it will no longer do.
const (
	shutReceive uint32 = 1
	shutSend    uint32 = 2
	shutBoth    uint32 = 3
)

// Header is the head of every packet.
type Header struct {
	SrcCID, DstCID   uint64
	SrcPort, DstPort uint32
	// Len is the number of payload bytes that follow.
	Len   uint32
	Type  uint16
	Op    Op
	Flags uint32
	// BufAlloc is the sender's whole receive buffer for this connection and
	// FwdCnt the bytes its user has taken from it so far, modulo 2^32.
	BufAlloc, FwdCnt uint32
}

// ParseHeader decodes a header.
func ParseHeader(b *[HeaderSize]byte) Header {
	le := binary.LittleEndian
	return Header{
		SrcCID:   le.Uint64(b[0:]),
		DstCID:   le.Uint64(b[8:]),
		SrcPort:  le.Uint32(b[16:]),
		DstPort:  le.Uint32(b[20:]),
		Len:      le.Uint32(b[24:]),
		Type:     le.Uint16(b[28:]),
		Op:       Op(le.Uint16(b[30:])),
		Flags:    le.Uint32(b[32:]),
		BufAlloc: le.Uint32(b[36:]),
		FwdCnt:   le.Uint32(b[40:]),
	}
}

// Put encodes the header.
func (h Header) Put(b *[HeaderSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.SrcCID)
	le.PutUint64(b[8:], h.DstCID)
	le.PutUint32(b[16:], h.SrcPort)
	le.PutUint32(b[20:], h.DstPort)
	le.PutUint32(b[24:], h.Len)
	le.PutUint16(b[28:], h.Type)
	le.PutUint16(b[30:], uint16(h.Op))
	le.PutUint32(b[32:], h.Flags)
	le.PutUint32(b[36:], h.BufAlloc)
	le.PutUint32(b[40:], h.FwdCnt)
}
