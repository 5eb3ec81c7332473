package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

// elfWithNote makes the smallest 64-bit ELF kernel: a header, one PT_NOTE and
// the note in it.
func elfWithNote(name string, kind uint32) []byte {
	const headers = 64 + 56
	padded := append([]byte(name), 0)
	for len(padded)%4 != 0 {
		padded = append(padded, 0)
	}
	var note bytes.Buffer
	for _, v := range []uint32{uint32(len(name) + 1), 4, kind} {
		_ = binary.Write(&note, binary.LittleEndian, v)
	}
	note.Write(padded)
	note.Write([]byte{0x10, 0, 0, 1})

	out := make([]byte, headers, headers+note.Len())
	copy(out, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(out[16:], 2)  // executable
	le.PutUint16(out[18:], 62) // x86_64
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[32:], 64) // program headers
	le.PutUint16(out[52:], 64)
	le.PutUint16(out[54:], 56)
	le.PutUint16(out[56:], 1)
	p := out[64:]
	le.PutUint32(p, 4) // PT_NOTE
	le.PutUint64(p[8:], headers)
	le.PutUint64(p[32:], uint64(note.Len()))
	le.PutUint64(p[40:], uint64(note.Len()))
	return append(out, note.Bytes()...)
}

// bzImage wraps a payload the way the kernel's build does.
func bzImage(payload []byte) []byte {
	const sects = 3
	start := (sects + 1) * sector
	out := make([]byte, start+64, start+64+len(payload))
	out[offSetupSects] = sects
	copy(out[offMagic:], "HdrS")
	binary.LittleEndian.PutUint16(out[offVersion:], 0x020f)
	binary.LittleEndian.PutUint32(out[offPayload:], 64)
	binary.LittleEndian.PutUint32(out[offPayloadLength:], uint32(len(payload)))
	return append(out, payload...)
}

func sized(packed []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(packed, uint32(size))
}

func packLZ4(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	if err := w.Apply(lz4.LegacyOption(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packGzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packZstd(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func TestExtractFindsThePVHKernel(t *testing.T) {
	vmlinux := append(elfWithNote("Xen", 18), bytes.Repeat([]byte("kernel text "), 1<<15)...)
	// Larger than an LZ4 legacy block, so that several are read.
	const block = 8 << 20
	long := append(bytes.Clone(vmlinux), make([]byte, block)...)
	packed := map[string][]byte{
		"lz4":  sized(packLZ4(t, vmlinux), len(vmlinux)),
		"long": sized(packLZ4(t, long), len(long)),
		"gzip": packGzip(t, vmlinux),
		"zstd": sized(packZstd(t, vmlinux), len(vmlinux)),
	}
	if hosttool.Check(hosttool.XZ) == nil {
		cmd := exec.CommandContext(t.Context(), "xz", "--check=crc32", "--stdout", "-0")
		cmd.Stdin = bytes.NewReader(vmlinux)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		packed["xz"] = sized(out, len(vmlinux))
	} else {
		t.Log("xz is not tried; to enable: apt-get install xz-utils")
	}
	for name, payload := range packed {
		t.Run(name, func(t *testing.T) {
			got, err := extract(t.Context(), bzImage(payload))
			if err != nil {
				t.Fatal(err)
			}
			want := vmlinux
			if name == "long" {
				want = long
			}
			if got.Format != FormatPVH || got.Reason != "" || !bytes.Equal(got.Data, want) {
				t.Errorf("extract() = %d bytes of format %q, reason %q", len(got.Data), got.Format, got.Reason)
			}
		})
	}
}

func TestExtractKeepsTheBzImage(t *testing.T) {
	for reason, payload := range map[string][]byte{
		"no PVH entry": packGzip(t, elfWithNote("GNU", 3)),
		"compression":  []byte("BZh91AY&SY and so on"),
	} {
		bz := bzImage(payload)
		got, err := extract(t.Context(), bz)
		if err != nil || got.Format != FormatBzImage || !bytes.Equal(got.Data, bz) || !strings.Contains(got.Reason, reason) {
			t.Errorf("extract() = format %q, reason %q, %v; want bzimage because of %q", got.Format, got.Reason, err, reason)
		}
	}
}

func TestExtractRefuses(t *testing.T) {
	vmlinux := elfWithNote("Xen", 18)
	good := bzImage(sized(packLZ4(t, vmlinux), len(vmlinux)))
	alter := func(f func([]byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	for name, bad := range map[string][]byte{
		"empty":         nil,
		"short":         good[:headerEnd-1],
		"no magic":      alter(func(b []byte) { b[offMagic] = 'h' }),
		"old protocol":  alter(func(b []byte) { b[offVersion], b[offVersion+1] = 7, 2 }),
		"far payload":   alter(func(b []byte) { binary.LittleEndian.PutUint32(b[offPayload:], 0xffffffff) }),
		"long payload":  alter(func(b []byte) { binary.LittleEndian.PutUint32(b[offPayloadLength:], 0xffffffff) }),
		"cut short":     good[:len(good)-8],
		"wrong size":    bzImage(sized(packLZ4(t, vmlinux), len(vmlinux)+1)),
		"not a kernel":  bzImage(packGzip(t, []byte("hello"))),
		"damaged":       alter(func(b []byte) { copy(b[len(b)-len(vmlinux)/2:], "\xff\xff\xff\xff\xff\xff\xff\xff") }),
		"only a magic":  bzImage([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0}),
		"damaged magic": bzImage([]byte{0xfd, '7', 'z', 'X', 'Z', 0, 1, 2, 3, 4, 5, 6}),
	} {
		if got, err := extract(t.Context(), bad); err == nil {
			t.Errorf("%s: accepted as %s", name, got.Format)
		}
	}
}

func TestHasNote(t *testing.T) {
	for _, c := range []struct {
		name string
		kind uint32
		want bool
	}{{"Xen", 18, true}, {"Xen", 6, false}, {"GNU", 18, false}, {"Xenon", 18, false}} {
		got, err := hasPVHEntry(elfWithNote(c.name, c.kind))
		if err != nil || got != c.want {
			t.Errorf("note %q %d: hasPVHEntry() = %v, %v; want %v", c.name, c.kind, got, err, c.want)
		}
	}
}

func TestTooMuchIsRefused(t *testing.T) {
	var b bytes.Buffer
	w := &capped{w: &b, left: 3}
	if _, err := w.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("d")); err == nil || b.String() != "abc" {
		t.Errorf("error = %v, written %q", err, b.String())
	}
}

func FuzzBzImage(f *testing.F) {
	vmlinux := elfWithNote("Xen", 18)
	f.Add(bzImage(sized(packLZ4(f, vmlinux), len(vmlinux))))
	f.Add(bzImage(packGzip(f, vmlinux)))
	f.Add(bzImage(sized(packZstd(f, vmlinux), len(vmlinux))))
	f.Add([]byte("HdrS"))
	f.Fuzz(func(t *testing.T, data []byte) {
		payload, err := findPayload(data)
		if err != nil {
			return
		}
		if c, ok := detect(payload); ok && c.name == "xz" {
			return // a process for each input would be slow, and is xz's to survive
		}
		const limit = 1 << 20
		out, err := decompressPayload(t.Context(), payload, limit)
		if err != nil {
			return
		}
		if len(out) > limit {
			t.Errorf("%d bytes came out", len(out))
		}
		_, _ = hasPVHEntry(out)
	})
}

func FuzzNotes(f *testing.F) {
	f.Add(elfWithNote("Xen", 18)[64+56:])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 18, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, notes []byte) {
		hasNote(notes, binary.LittleEndian, "Xen", 18)
	})
}

func TestReadDebOfNoPackage(t *testing.T) {
	if _, err := ReadPackage(t.Context(), "/nonexistent.deb", nil, nil); err == nil || errors.Is(err, t.Context().Err()) {
		t.Errorf("error = %v", err)
	}
}
