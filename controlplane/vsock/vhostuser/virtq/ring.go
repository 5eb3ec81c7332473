package virtq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// ErrBroken is wrapped by every error about a queue that makes no sense. The
// queue must then be left alone until the driver sets it up anew.
var ErrBroken = errors.New("virtqueue is broken")

// maxSize is the largest queue the specification allows.
const maxSize = 32768

const descSize = 16

// Flags of the avail and used ring.
const (
	availNoInterrupt = 1
	usedNoNotify     = 1
)

// Layout is where a queue lies and how it works.
type Layout struct {
	// Size is the number of descriptors.
	Size uint32
	// Base is the index of the next available entry to take.
	Base uint16
	// Desc, Avail and Used are front-end addresses.
	Desc, Avail, Used uint64
	// EventIdx and Indirect are negotiated features.
	EventIdx, Indirect bool
}

// Ring is one queue. Not safe for concurrent use.
type Ring struct {
	mem               Memory
	size              uint16
	eventIdx          bool
	indirect          bool
	desc, avail, used []byte

	next     uint16 // index of the next avail entry to take
	done     uint16 // index of the next used entry to write
	shown    uint16 // used index that the driver has last seen
	quiet    bool   // we have asked for no kicks
	indexBuf [descSize]byte
}

// New checks the layout and takes the queue up where it was left.
func New(mem Memory, l Layout) (*Ring, error) {
	if l.Size == 0 || l.Size > maxSize || bits.OnesCount32(l.Size) != 1 {
		return nil, fmt.Errorf("%w: size %d is no power of two up to %d", ErrBroken, l.Size, maxSize)
	}
	if l.Desc%16 != 0 || l.Avail%2 != 0 || l.Used%4 != 0 {
		return nil, fmt.Errorf("%w: rings at %#x, %#x, %#x are not aligned", ErrBroken, l.Desc, l.Avail, l.Used)
	}
	r := &Ring{mem: mem, eventIdx: l.EventIdx, indirect: l.Indirect, size: uint16(l.Size), next: l.Base}
	n := uint64(l.Size)
	var err error
	if r.desc, err = mem.User(l.Desc, descSize*n); err != nil {
		return nil, fmt.Errorf("cannot place descriptors: %w", err)
	}
	if r.avail, err = mem.User(l.Avail, 6+2*n); err != nil {
		return nil, fmt.Errorf("cannot place available ring: %w", err)
	}
	if r.used, err = mem.User(l.Used, 6+8*n); err != nil {
		return nil, fmt.Errorf("cannot place used ring: %w", err)
	}
	r.done = Load16(r.used[2:])
	r.shown = r.done
	return r, nil
}

// Rebase moves the queue to a new memory table that holds the same content.
func (r *Ring) Rebase(mem Memory, l Layout) error {
	moved, err := New(mem, l)
	if err != nil {
		return err
	}
	r.mem, r.desc, r.avail, r.used = mem, moved.desc, moved.avail, moved.used
	return nil
}

// Base is the index of the next entry to take, to go on from later.
func (r *Ring) Base() uint16 { return r.next }

// Pop takes the next chain of buffers. It says no when there is none. The
// chain is good until the memory table changes.
func (r *Ring) Pop(c *Chain) (bool, error) {
	waiting := Load16(r.avail[2:]) - r.next
	switch {
	case waiting == 0:
		return false, nil
	case waiting > r.size:
		return false, fmt.Errorf("%w: %d entries wait in a queue of %d", ErrBroken, waiting, r.size)
	}
	slot := 4 + 2*int(r.next%r.size)
	head := Load16(r.avail[slot:])
	if err := r.collect(c, head); err != nil {
		return false, err
	}
	r.next++
	return true, nil
}

// Unpop gives the last chain back, untouched.
func (r *Ring) Unpop() { r.next-- }

// Push hands a chain back with the number of bytes written to it. The driver
// sees it after Publish.
func (r *Ring) Push(c *Chain, written uint32) {
	slot := 4 + 8*int(r.done%r.size)
	binary.LittleEndian.PutUint32(r.used[slot:], uint32(c.head))
	binary.LittleEndian.PutUint32(r.used[slot+4:], written)
	r.done++
}

// Publish shows the driver what was pushed and says whether it wants an
// interrupt for it.
func (r *Ring) Publish() bool {
	if r.done == r.shown {
		return false
	}
	before := r.shown
	r.shown = r.done
	Store16(r.used[2:], r.done) // a full barrier: the driver's wish is read after
	if !r.eventIdx {
		return Load16(r.avail)&availNoInterrupt == 0
	}
	event := Load16(r.avail[4+2*int(r.size):])
	return r.done-event-1 < r.done-before
}

// Quiet asks the driver not to kick. With event indices that needs no act: an
// index that was passed is not kicked for again.
func (r *Ring) Quiet() {
	if !r.eventIdx && !r.quiet {
		r.quiet = true
		Store16(r.used, usedNoNotify)
	}
}

// Await asks the driver to kick for the next chain, and says whether one came
// in before it could see that.
func (r *Ring) Await() bool {
	if r.eventIdx {
		Store16(r.used[4+8*int(r.size):], r.next)
	} else {
		r.quiet = false
		Store16(r.used, 0)
	}
	return Load16(r.avail[2:]) != r.next
}
