package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// module makes a 64-bit ELF file with a .modinfo section.
func module(info string) []byte {
	names := "\x00.shstrtab\x00.modinfo\x00"
	const header, entry = 64, 64
	data := header + len(names)
	table := data + len(info)
	out := make([]byte, table+3*entry)
	copy(out, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(out[16:], 1)
	le.PutUint16(out[18:], 62)
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[40:], uint64(table))
	le.PutUint16(out[52:], header)
	le.PutUint16(out[58:], entry)
	le.PutUint16(out[60:], 3)
	le.PutUint16(out[62:], 1) // the section that holds the names
	copy(out[header:], names)
	copy(out[data:], info)
	section := func(i int, name, kind uint32, offset, size int) {
		s := out[table+i*entry:]
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
	}
	section(1, 1, uint32(elf.SHT_STRTAB), header, len(names))
	section(2, 11, uint32(elf.SHT_PROGBITS), data, len(info))
	return out
}

func TestNeeds(t *testing.T) {
	for info, want := range map[string]string{
		"license=GPL\x00depends=virtio_ring,virtio\x00name=virtio_pci\x00": "[virtio_ring virtio]",
		"depends=\x00name=a\x00":     "[]",
		"name=depends=x\x00":         "[]",
		"depends=a, b ,,c\x00":       "[a b c]",
		"depends=a\x00depends=b\x00": "[a]",
	} {
		got, err := readNeeds(module(info))
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("readNeeds(%q) = %v, %v; want %s", info, got, err, want)
		}
	}
	for name, bad := range map[string][]byte{"empty": nil, "text": []byte("hello"), "no section": elfWithNote("Xen", 18)} {
		if _, err := readNeeds(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func dependencies(t testing.TB, needs map[string]string) *moduleGraph {
	t.Helper()
	d := newModuleGraph()
	for file, list := range needs {
		if err := d.add("kernel/"+file+".ko", splitNames(list)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestOrder(t *testing.T) {
	d := dependencies(t, map[string]string{
		"virtio_ring": "", "virtio": "virtio_ring", "virtio_pci_modern_dev": "", "virtio_pci_legacy_dev": "",
		"virtio_pci": "virtio_ring,virtio,virtio_pci_modern_dev,virtio_pci_legacy_dev",
		"virtio_blk": "virtio,virtio_ring", "virtio-rng": "virtio,rng-core,virtio_ring", "unrelated": "",
	})
	if err := d.addBuiltin(strings.NewReader("kernel/drivers/char/hw_random/rng-core.ko\n\nkernel/fs/ext4/ext4.ko\n")); err != nil {
		t.Fatal(err)
	}
	got, err := d.order([]string{"virtio_pci", "virtio_blk", "ext4"}, []string{"virtio_rng", "not_there"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range got {
		names = append(names, m.Name)
	}
	want := "virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio_rng"
	if strings.Join(names, " ") != want {
		t.Errorf("order is %q, want %q", names, want)
	}
	if got[6].Path != "kernel/virtio-rng.ko" {
		t.Errorf("path of virtio_rng is %q", got[6].Path)
	}
}

func TestOrderRefuses(t *testing.T) {
	d := dependencies(t, map[string]string{"a": "b", "b": "c", "c": "a", "d": "gone"})
	for _, name := range []string{"a", "d", "gone"} {
		if _, err := d.order([]string{name}, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := d.order(nil, []string{"d"}); err == nil {
		t.Error("an optional module that is there but cannot be loaded was accepted")
	}
}

func TestAddRefuses(t *testing.T) {
	for _, file := range []string{"", "x", "/lib/x.ko", "../x.ko", "a/../x.ko", ".ko", "x.ko.exe", "a b.ko"} {
		if err := newModuleGraph().add(file, nil); err == nil {
			t.Errorf("%q: accepted", file)
		}
	}
	d := dependencies(t, map[string]string{"a-b": ""})
	if err := d.add("other/a_b.ko", nil); err == nil {
		t.Error("one module in two files was accepted")
	}
}

// Whatever the dependencies are, as long as they have no cycle: each module
// comes once, after all it needs, and nothing comes that is not needed.
func TestOrderProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "modules")
		d := newModuleGraph()
		needs := map[string][]string{}
		for i := range n {
			name := fmt.Sprintf("m%d", i)
			var list []string
			for j := range i { // only on earlier ones: no cycles
				if rapid.Bool().Draw(t, "needs") {
					list = append(list, fmt.Sprintf("m%d", j))
				}
			}
			needs[name] = list
			if err := d.add(name+".ko", list); err != nil {
				t.Fatal(err)
			}
		}
		want := fmt.Sprintf("m%d", rapid.IntRange(0, n-1).Draw(t, "wanted"))
		got, err := d.order([]string{want}, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]int{}
		for i, m := range got {
			if _, twice := at[m.Name]; twice {
				t.Fatalf("%s comes twice", m.Name)
			}
			at[m.Name] = i
		}
		for name, i := range at {
			for _, need := range needs[name] {
				if j, ok := at[need]; !ok || j >= i {
					t.Fatalf("%s does not come before %s", need, name)
				}
			}
			needed := slices.ContainsFunc(got, func(m loadable) bool { return slices.Contains(needs[m.Name], name) })
			if name != want && !needed {
				t.Fatalf("%s comes though nothing needs it", name)
			}
		}
	})
}

func TestChooseModulesUnpacks(t *testing.T) {
	a, b := module("depends=b\x00"), module("depends=\x00")
	files := map[string][]byte{
		"lib/modules/1/kernel/a.ko.zst": packZstd(t, a), "lib/modules/1/kernel/b.ko.gz": packGzip(t, b),
		"lib/modules/2/kernel/a.ko": module(""), "boot/vmlinuz-1": []byte("x"), "lib/modules/1/modules.builtin": nil,
	}
	got, err := chooseModules(t.Context(), files, "1", []string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "b" || !bytes.Equal(got[1].Data, a) || got[0].FileName(0) != "01-b.ko" {
		t.Errorf("chooseModules() = %d modules", len(got))
	}
}

func FuzzModules(f *testing.F) {
	f.Add(module("depends=a,b\x00"), "kernel/a.ko\nkernel/b.ko\n")
	f.Add([]byte("\x7fELF"), "../x.ko")
	f.Fuzz(func(t *testing.T, ko []byte, builtin string) {
		needs, _ := readNeeds(ko)
		d := newModuleGraph()
		_ = d.addBuiltin(strings.NewReader(builtin))
		if err := d.add("kernel/x.ko", needs); err != nil {
			t.Fatal(err)
		}
		order, err := d.order([]string{"x"}, nil)
		if err == nil && !d.builtin["x"] && (len(order) != 1 || order[0].Name != "x") {
			t.Errorf("the order is %v", order)
		}
	})
}
