// Package kernel makes bootable files out of a distribution's kernel package:
// the uncompressed PVH kernel, and the modules a machine needs in the order
// in which they must be loaded.
//
// It knows the formats of bzImage, ELF notes, modules.dep and Debian packages.
// It must not know where packages come from, what an image is, or who boots it.
package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The formats of a kernel image, as in images.Blob.
const (
	FormatPVH     = "elf-pvh"
	FormatBzImage = "bzimage"
)

// maxKernel bounds every kernel file, packed or unpacked, in bytes.
const maxKernel = 256 << 20

// Offsets in the x86 boot protocol's setup header, and the first version of
// the protocol that says where the payload is.
const (
	offSetupSects    = 0x1f1
	offMagic         = 0x202
	offVersion       = 0x206
	offPayload       = 0x248
	offPayloadLength = 0x24c
	headerEnd        = 0x250
	minVersion       = 0x0208
	sector           = 512
)

// Image is a kernel that a virtual machine monitor can boot directly.
type Image struct {
	Data   []byte
	Format string // FormatPVH or FormatBzImage
	// Reason says why Format is not FormatPVH; empty when it is.
	Reason string
}

// extract returns the ELF kernel inside a bzImage when that kernel has a PVH
// entry point, and the bzImage itself, with the reason, when it has none or
// its compression is not known. A file that is no bzImage, or whose payload is
// damaged, is an error.
func extract(ctx context.Context, bz []byte) (Image, error) {
	payload, err := findPayload(bz)
	if err != nil {
		return Image{}, err
	}
	vmlinux, err := decompressPayload(ctx, payload, maxKernel)
	if errors.Is(err, errUnknownCompression) {
		return Image{Data: bz, Format: FormatBzImage, Reason: err.Error()}, nil
	}
	if err != nil {
		return Image{}, err
	}
	ok, err := hasPVHEntry(vmlinux)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		return Image{Data: bz, Format: FormatBzImage, Reason: "the kernel has no PVH entry note"}, nil
	}
	return Image{Data: vmlinux, Format: FormatPVH}, nil
}

// findPayload returns the part of a bzImage that holds the compressed kernel. It
// shares memory with bz.
func findPayload(bz []byte) ([]byte, error) {
	if len(bz) < headerEnd || len(bz) > maxKernel {
		return nil, fmt.Errorf("cannot read bzImage: size %d is not between %d and %d", len(bz), headerEnd, maxKernel)
	}
	if string(bz[offMagic:offMagic+4]) != "HdrS" {
		return nil, errors.New("cannot read bzImage: no boot protocol header (\"HdrS\" at 0x202)")
	}
	if v := binary.LittleEndian.Uint16(bz[offVersion:]); v < minVersion {
		return nil, fmt.Errorf("cannot read bzImage: boot protocol %#04x does not locate its payload, want %#04x or later", v, minVersion)
	}
	sects := uint64(bz[offSetupSects])
	if sects == 0 {
		sects = 4 // the protocol's default
	}
	start := (sects+1)*sector + uint64(binary.LittleEndian.Uint32(bz[offPayload:]))
	length := uint64(binary.LittleEndian.Uint32(bz[offPayloadLength:]))
	if length < 8 || start > uint64(len(bz)) || length > uint64(len(bz))-start {
		return nil, fmt.Errorf("cannot read bzImage: payload of %d bytes at %#x does not lie within %d bytes", length, start, len(bz))
	}
	return bz[start : start+length], nil
}

// hasPVHEntry says whether an ELF kernel carries the Xen note with its 32-bit
// physical entry point (XEN_ELFNOTE_PHYS32_ENTRY), which is what makes it
// bootable without a boot loader.
func hasPVHEntry(vmlinux []byte) (bool, error) {
	f, err := elf.NewFile(bytes.NewReader(vmlinux))
	if err != nil {
		return false, fmt.Errorf("cannot read kernel: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		const maxNotes = 1 << 20
		notes, err := io.ReadAll(io.LimitReader(p.Open(), maxNotes))
		if err != nil {
			return false, fmt.Errorf("cannot read kernel notes: %w", err)
		}
		if hasNote(notes, f.ByteOrder, "Xen", 18) {
			return true, nil
		}
	}
	return false, nil
}

// hasNote looks for a note in the contents of a PT_NOTE segment. A broken
// note ends the search.
func hasNote(b []byte, order binary.ByteOrder, name string, kind uint32) bool {
	for len(b) >= 12 {
		nameSize, descSize, t := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		b = b[12:]
		nameEnd := align4(nameSize)
		descEnd := nameEnd + align4(descSize)
		if nameSize > uint64(len(b)) || descEnd > align4(uint64(len(b))) {
			return false
		}
		if t == kind && string(bytes.TrimRight(b[:nameSize], "\x00")) == name {
			return true
		}
		if descEnd >= uint64(len(b)) {
			return false
		}
		b = b[descEnd:]
	}
	return false
}

func align4(n uint64) uint64 { return (n + 3) &^ 3 }
