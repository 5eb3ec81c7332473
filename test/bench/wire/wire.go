// Package wire is what the benchmark's two programs, the one on the host and
// the one in the guest, say to each other over one byte stream: a request of
// fixed size, then the data it asks for, then an answer of eight bytes. It is
// the same over every channel, so that the channels can be compared.
//
// The package must not know what a stream is made of.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// The vsock ports the guest program listens on.
const (
	PortStream uint32 = 5001 // requests, see Op
	PortEcho   uint32 = 5002 // sends back whatever comes
)

// EchoSize is the size of one message on PortEcho, in bytes.
const EchoSize = 64

// Op is what a request asks for.
type Op byte

// The operations. Each ends with eight bytes from the guest.
const (
	OpSink   Op = 1 + iota // Size bytes follow; the answer is their checksum
	OpSource               // the guest sends Size bytes, then their checksum
	OpSpawn                // fork, exec and wait for a program; the answer is nanoseconds
	OpSum                  // make and sum Size bytes in memory; the answer is nanoseconds
)

// MaxSize bounds the data of one request, in bytes.
const MaxSize = 16 << 30

// Request is one request.
type Request struct {
	Op   Op
	Size uint64 // bytes, a multiple of ChunkSize
	Seed uint64
}

const requestSize = 17

// WriteRequest sends a request.
func WriteRequest(w io.Writer, r Request) error {
	buf := binary.LittleEndian.AppendUint64([]byte{byte(r.Op)}, r.Size)
	_, err := w.Write(binary.LittleEndian.AppendUint64(buf, r.Seed))
	return err
}

// ReadRequest receives a request. The error is io.EOF where the stream ends
// between two.
func ReadRequest(r io.Reader) (Request, error) {
	var buf [requestSize]byte
	if _, err := io.ReadFull(r, buf[:]); err != nil {
		return Request{}, err
	}
	req := Request{
		Op:   Op(buf[0]),
		Size: binary.LittleEndian.Uint64(buf[1:]),
		Seed: binary.LittleEndian.Uint64(buf[9:]),
	}
	if req.Op < OpSink || req.Op > OpSum || req.Size > MaxSize || req.Size%ChunkSize != 0 {
		return Request{}, fmt.Errorf("cannot use request %+v", req)
	}
	return req, nil
}

// WriteAnswer sends the eight bytes that end an operation.
func WriteAnswer(w io.Writer, v uint64) error {
	_, err := w.Write(binary.LittleEndian.AppendUint64(nil, v))
	return err
}

// ReadAnswer receives them.
func ReadAnswer(r io.Reader) (uint64, error) {
	var buf [8]byte
	_, err := io.ReadFull(r, buf[:])
	return binary.LittleEndian.Uint64(buf[:]), err
}

// ChunkSize is how much is written and read at once, in bytes.
const ChunkSize = 64 << 10

// Send writes size bytes, a multiple of ChunkSize, and returns their checksum.
// The data is one chunk made from the seed, again and again, each time marked
// with its place: making it costs an emulated guest nothing, and yet a chunk
// that is lost, doubled or out of order is seen.
func Send(w io.Writer, size, seed uint64) (uint64, error) {
	chunk := make([]byte, ChunkSize)
	state := seed
	for at := 0; at < ChunkSize; at += 8 {
		state += golden
		binary.LittleEndian.PutUint64(chunk[at:], mix(state))
	}
	var sum Sum
	for at := uint64(0); at < size; at += ChunkSize {
		binary.LittleEndian.PutUint64(chunk, at^seed)
		_, _ = sum.Write(chunk) // never fails
		if _, err := w.Write(chunk); err != nil {
			return 0, err
		}
	}
	return sum.Value(), nil
}

// Receive reads size bytes and returns their checksum.
func Receive(r io.Reader, size uint64) (uint64, error) {
	chunk := make([]byte, ChunkSize)
	var sum Sum
	for at := uint64(0); at < size; at += ChunkSize {
		part := chunk[:min(ChunkSize, size-at)]
		if _, err := io.ReadFull(r, part); err != nil {
			return 0, err
		}
		_, _ = sum.Write(part) // never fails
	}
	return sum.Value(), nil
}

// golden is 2⁶⁴ divided by the golden ratio, odd.
const golden = 0x9e3779b97f4a7c15

func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// Sum is a checksum over bytes in order. It finds what channels do to data,
// not what an enemy does, and is cheap without any instruction that an
// emulator is slow at. The zero value is the checksum of nothing.
type Sum struct {
	state, length uint64
	rest          []byte // fewer than eight bytes
}

// Write adds bytes. It never fails.
func (s *Sum) Write(p []byte) (int, error) {
	n := len(p)
	s.length += uint64(n)
	if len(s.rest) > 0 {
		take := min(8-len(s.rest), len(p))
		s.rest = append(s.rest, p[:take]...)
		p = p[take:]
		if len(s.rest) < 8 {
			return n, nil
		}
		s.state = step(s.state, binary.LittleEndian.Uint64(s.rest))
		s.rest = s.rest[:0]
	}
	state := s.state
	for ; len(p) >= 8; p = p[8:] {
		state = step(state, binary.LittleEndian.Uint64(p))
	}
	s.state = state
	s.rest = append(s.rest, p...)
	return n, nil
}

func step(state, word uint64) uint64 { return bits.RotateLeft64(state^word, 23) * golden }

// Value is the checksum of what was written so far.
func (s *Sum) Value() uint64 {
	state := s.state
	if len(s.rest) > 0 {
		var last [8]byte
		copy(last[:], s.rest)
		state = step(state, binary.LittleEndian.Uint64(last[:]))
	}
	return mix(state ^ s.length)
}
