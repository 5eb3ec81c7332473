package virtq

import (
	"encoding/binary"
	"fmt"
)

// Bounds of one chain.
const (
	maxChain = 1024
	// MaxBytes bounds the buffers of one chain, each way.
	MaxBytes = 1 << 20
)

// Flags of a descriptor.
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4
)

// Chain is one request of the driver: memory to read, then memory to write.
// It is reused from Pop to Pop.
type Chain struct {
	head     uint16
	in, out  [][]byte // writable and readable pieces
	inLen    int
	outLen   int
	position int // of the next byte for Write
}

// Readable is the number of bytes the driver has put in.
func (c *Chain) Readable() int { return c.outLen }

// Writable is the number of bytes the driver has room for.
func (c *Chain) Writable() int { return c.inLen }

// Peek copies the first len(p) readable bytes, len(p) ≤ Readable.
func (c *Chain) Peek(p []byte) {
	for _, seg := range c.out {
		n := copy(p, seg)
		p = p[n:]
	}
}

// After appends the readable pieces that follow the first skip bytes to segs.
func (c *Chain) After(segs [][]byte, skip int) [][]byte {
	for _, seg := range c.out {
		n := min(skip, len(seg))
		skip -= n
		if n < len(seg) {
			segs = append(segs, seg[n:])
		}
	}
	return segs
}

// Write appends p to the writable memory; the caller has checked that it fits.
func (c *Chain) Write(p []byte) {
	at := c.position
	for _, seg := range c.in {
		if at >= len(seg) {
			at -= len(seg)
			continue
		}
		n := copy(seg[at:], p)
		at = 0
		p = p[n:]
		c.position += n
		if len(p) == 0 {
			return
		}
	}
}

// Written is the number of bytes written so far.
func (c *Chain) Written() uint32 { return uint32(c.position) }

type descriptor struct {
	addr        uint64
	length      uint32
	flags, next uint16
}

// fetch copies a descriptor once and never looks again: the guest may change
// it between two looks.
func (r *Ring) fetch(table []byte, i uint32) descriptor {
	b := &r.indexBuf
	copy(b[:], table[i*descSize:])
	le := binary.LittleEndian
	return descriptor{le.Uint64(b[0:]), le.Uint32(b[8:]), le.Uint16(b[12:]), le.Uint16(b[14:])}
}

// collect walks the chain that starts at head.
func (r *Ring) collect(c *Chain, head uint16) error {
	*c = Chain{head: head, in: c.in[:0], out: c.out[:0]}
	table, size := r.desc, uint32(r.size)
	i := uint32(head)
	nested := false
	for step := uint32(0); ; step++ {
		if i >= size {
			return fmt.Errorf("%w: descriptor %d of %d", ErrBroken, i, size)
		}
		if step >= size || step >= maxChain {
			return fmt.Errorf("%w: chain is a loop or longer than %d", ErrBroken, maxChain)
		}
		d := r.fetch(table, i)
		if d.flags&descIndirect != 0 {
			if !r.indirect || step != 0 || d.flags&descNext != 0 || nested {
				return fmt.Errorf("%w: indirect descriptor out of place", ErrBroken)
			}
			var err error
			if table, err = r.indirectTable(d); err != nil {
				return err
			}
			size, i, nested = uint32(len(table)/descSize), 0, true
			step-- // the table is a chain of its own
			continue
		}
		if err := r.add(c, d); err != nil {
			return err
		}
		if d.flags&descNext == 0 {
			return nil
		}
		i = uint32(d.next)
	}
}

func (r *Ring) indirectTable(d descriptor) ([]byte, error) {
	if d.length == 0 || d.length%descSize != 0 || d.length > maxChain*descSize {
		return nil, fmt.Errorf("%w: indirect table of %d bytes", ErrBroken, d.length)
	}
	table, err := r.mem.guest(d.addr, uint64(d.length))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if len(table) < int(d.length) {
		return nil, fmt.Errorf("%w: indirect table leaves its memory region", ErrBroken)
	}
	return table, nil
}

// add appends a descriptor's memory, split where regions end.
func (r *Ring) add(c *Chain, d descriptor) error {
	write := d.flags&descWrite != 0
	total := &c.outLen
	if write {
		total = &c.inLen
	} else if c.inLen > 0 {
		return fmt.Errorf("%w: readable descriptor after a writable one", ErrBroken)
	}
	if d.length > uint32(MaxBytes-*total) {
		return fmt.Errorf("%w: chain of more than %d bytes", ErrBroken, MaxBytes)
	}
	for left, addr := uint64(d.length), d.addr; left > 0; {
		seg, err := r.mem.guest(addr, left)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		if write {
			c.in = append(c.in, seg)
		} else {
			c.out = append(c.out, seg)
		}
		*total += len(seg)
		left -= uint64(len(seg))
		addr += uint64(len(seg))
	}
	return nil
}
