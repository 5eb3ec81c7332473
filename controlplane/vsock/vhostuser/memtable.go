package vhostuser

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

const regionSize = 32

// memTable is guest memory mapped into this process.
type memTable struct {
	virtq.Memory
	mappings [][]byte
}

// mapMemory takes a SET_MEM_TABLE message apart and maps what it names.
func mapMemory(m *message) (*memTable, error) {
	if len(m.body) < 8 {
		return nil, fmt.Errorf("memory table of %d bytes", len(m.body))
	}
	n := binary.LittleEndian.Uint32(m.body)
	if n == 0 || n > maxFDs || len(m.body) != 8+int(n)*regionSize || len(m.fds) != int(n) {
		return nil, fmt.Errorf("memory table of %d regions in %d bytes with %d descriptors", n, len(m.body), len(m.fds))
	}
	t := &memTable{}
	regions := make([]virtq.Region, 0, n)
	for i := range int(n) {
		r, err := t.mapRegion(m.body[8+i*regionSize:], m.fds[i])
		if err != nil {
			t.unmap()
			return nil, fmt.Errorf("cannot map memory region %d: %w", i, err)
		}
		regions = append(regions, r)
	}
	var err error
	if t.Memory, err = virtq.NewMemory(regions); err != nil {
		t.unmap()
		return nil, err
	}
	return t, nil
}

func (t *memTable) mapRegion(b []byte, fd int) (virtq.Region, error) {
	le := binary.LittleEndian
	guest, size, user, offset := le.Uint64(b[0:]), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return virtq.Region{}, err
	}
	// A file that ends too early would fault at the first touch. It can still
	// be truncated later unless it is sealed; that fault is recovered from.
	if st.Size < 0 || size == 0 || size > uint64(st.Size) || offset > uint64(st.Size)-size {
		return virtq.Region{}, fmt.Errorf("%d bytes at offset %d leave a file of %d bytes", size, offset, st.Size)
	}
	// From the start of the file: an offset need not be one that mmap takes
	// when the memory is made of huge pages.
	whole, err := unix.Mmap(fd, 0, int(offset+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return virtq.Region{}, fmt.Errorf("cannot map %d bytes: %w", offset+size, err)
	}
	t.mappings = append(t.mappings, whole)
	return virtq.Region{GuestAddr: guest, UserAddr: user, Bytes: whole[offset:]}, nil
}

// unmap gives the memory back. Nobody may hold a piece of it.
func (t *memTable) unmap() {
	if t == nil {
		return
	}
	for _, m := range t.mappings {
		_ = unix.Munmap(m)
	}
	t.mappings, t.Memory = nil, virtq.Memory{}
}
