// Package virtq is the device's side of split virtqueues in memory that a
// guest shares with us and may change at any time.
//
// It believes nothing that it reads there: every number is copied once, then
// checked, then used; every loop and length is bounded; a queue that makes no
// sense is an error and never a panic. The one thing it cannot prevent is a
// memory fault when the file behind the memory shrinks: callers run it in
// goroutines with debug.SetPanicOnFault and recover.
//
// It knows virtqueues and nothing of what they carry, nor where the memory
// came from.
package virtq

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// page is the smallest page size of the machines this runs on.
const page = 4096

// maxRegions bounds a memory table.
const maxRegions = 8

// Region is a piece of guest memory.
type Region struct {
	// GuestAddr is where the guest sees it, UserAddr where the front-end (QEMU)
	// sees it in its own address space.
	GuestAddr, UserAddr uint64
	// Bytes is the memory itself.
	Bytes []byte
}

// Memory is a guest's memory table. The zero value is empty.
type Memory struct {
	regions []Region
}

// errAddress is wrapped by errors about addresses outside of guest memory.
var errAddress = errors.New("address is not in guest memory")

// NewMemory checks that the regions neither wrap nor overlap.
func NewMemory(regions []Region) (Memory, error) {
	if len(regions) == 0 || len(regions) > maxRegions {
		return Memory{}, fmt.Errorf("memory table has %d regions, want 1 to %d", len(regions), maxRegions)
	}
	for i, r := range regions {
		size := uint64(len(r.Bytes))
		if size == 0 || !paged(r) {
			return Memory{}, fmt.Errorf("memory region %d does not lie on page boundaries", i)
		}
		if r.GuestAddr > math.MaxUint64-size || r.UserAddr > math.MaxUint64-size {
			return Memory{}, fmt.Errorf("memory region %d wraps", i)
		}
		for j, o := range regions[:i] {
			if overlap(r.GuestAddr, o.GuestAddr, size, o) || overlap(r.UserAddr, o.UserAddr, size, o) {
				return Memory{}, fmt.Errorf("memory regions %d and %d overlap", j, i)
			}
		}
	}
	return Memory{regions: regions}, nil
}

// paged says whether a region lies on page boundaries in all three address
// spaces. The atomics on ring indices rely on it.
func paged(r Region) bool {
	here := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes))))
	return (here|r.GuestAddr|r.UserAddr|uint64(len(r.Bytes)))%page == 0
}

func overlap(a, b, size uint64, other Region) bool {
	return a < b+uint64(len(other.Bytes)) && b < a+size
}

// guest returns the memory from a guest address to the end of its region, at
// most n bytes of it.
func (m Memory) guest(addr, n uint64) ([]byte, error) {
	for _, r := range m.regions {
		if off := addr - r.GuestAddr; addr >= r.GuestAddr && off < uint64(len(r.Bytes)) {
			return r.Bytes[off : off+min(n, uint64(len(r.Bytes))-off)], nil
		}
	}
	return nil, fmt.Errorf("%w: guest address %#x", errAddress, addr)
}

// User returns n bytes at an address of the front-end, in one region.
func (m Memory) User(addr, n uint64) ([]byte, error) {
	for _, r := range m.regions {
		size := uint64(len(r.Bytes))
		if off := addr - r.UserAddr; addr >= r.UserAddr && off < size && n <= size-off {
			return r.Bytes[off : off+n : off+n], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at front-end address %#x", errAddress, n, addr)
}
