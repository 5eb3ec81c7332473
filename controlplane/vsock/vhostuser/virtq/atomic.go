package virtq

import (
	"sync/atomic"
	"unsafe"
)

// Go has no 16-bit atomics, so these work on the aligned 32-bit word around
// the value. The word is always inside of mapped memory because regions begin
// and end on page boundaries. Go's atomics are sequentially consistent, which
// also gives the store-load barrier that notification suppression needs.
// Virtio is little-endian and so are the machines this runs on.

func word(b []byte) (*atomic.Uint32, uint) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	odd := uintptr(p) & 2
	return (*atomic.Uint32)(unsafe.Add(p, -int(odd))), uint(odd) * 8
}

// Load16 reads a 2-aligned value that the guest may be writing.
func Load16(b []byte) uint16 {
	_ = b[1]
	w, shift := word(b)
	return uint16(w.Load() >> shift)
}

// Store16 writes a 2-aligned value that the guest may be reading, and leaves
// its neighbour alone.
func Store16(b []byte, v uint16) {
	_ = b[1]
	w, shift := word(b)
	for {
		old := w.Load()
		if w.CompareAndSwap(old, old&^(0xffff<<shift)|uint32(v)<<shift) {
			return
		}
	}
}
