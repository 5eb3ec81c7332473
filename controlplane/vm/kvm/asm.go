package kvm

import (
	"encoding/binary"
	"fmt"
)

// asm collects machine code, whose addresses start at romBase, and fills in
// labels at the end. It knows no instructions: those are written out as bytes
// beside their mnemonics.
type asm struct {
	code   []byte
	labels map[string]int
	fixups []fixup
}

// fixup is a place that waits for the address of a label.
type fixup struct {
	at    int
	label string
	put   func(place []byte, at, target int)
}

func newAsm() *asm { return &asm{labels: map[string]int{}} }

func (a *asm) b(v ...byte) *asm  { a.code = append(a.code, v...); return a }
func (a *asm) w(v uint16) *asm   { a.code = binary.LittleEndian.AppendUint16(a.code, v); return a }
func (a *asm) d(v uint32) *asm   { a.code = binary.LittleEndian.AppendUint32(a.code, v); return a }
func (a *asm) label(name string) { a.labels[name] = len(a.code) }

func (a *asm) align(n int) {
	for len(a.code)%n != 0 {
		a.b(0)
	}
}

func (a *asm) fix(label string, size int, put func(place []byte, at, target int)) *asm {
	a.fixups = append(a.fixups, fixup{len(a.code), label, put})
	a.code = append(a.code, make([]byte, size)...)
	return a
}

// abs16 is the label's offset in the real-mode segment.
func (a *asm) abs16(label string) *asm {
	return a.fix(label, 2, func(p []byte, _, target int) { binary.LittleEndian.PutUint16(p, uint16(target)) })
}

// abs32 is the label's linear address.
func (a *asm) abs32(label string) *asm {
	return a.fix(label, 4, func(p []byte, _, target int) { binary.LittleEndian.PutUint32(p, romBase+uint32(target)) })
}

// rel8 and rel32 are distances from the end of the field.
func (a *asm) rel8(label string) *asm {
	return a.fix(label, 1, func(p []byte, at, target int) {
		distance := target - at - 1
		if distance != int(int8(distance)) {
			panic(fmt.Sprintf("internal error: label %q is too far", label))
		}
		p[0] = byte(distance)
	})
}

func (a *asm) rel32(label string) *asm {
	return a.fix(label, 4, func(p []byte, at, target int) { binary.LittleEndian.PutUint32(p, uint32(target-at-4)) })
}

// gate is a 64-bit interrupt gate to the label.
func (a *asm) gate(label string) {
	a.fix(label, 16, func(p []byte, _, target int) {
		addr := romBase + uint32(target)
		binary.LittleEndian.PutUint16(p[0:], uint16(addr))
		binary.LittleEndian.PutUint16(p[2:], selCode64)
		binary.LittleEndian.PutUint16(p[4:], 0x8E00)
		binary.LittleEndian.PutUint16(p[6:], uint16(addr>>16))
	})
}

// link fills in all labels.
func (a *asm) link() []byte {
	for _, f := range a.fixups {
		target, ok := a.labels[f.label]
		if !ok {
			panic(fmt.Sprintf("internal error: no label %q", f.label))
		}
		f.put(a.code[f.at:], f.at, target)
	}
	return a.code
}
