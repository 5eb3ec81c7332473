// Package initramfs writes the archives a Linux kernel unpacks into memory
// when it boots: cpio in the "newc" format, the same bytes for the same input.
//
// It imports nothing but the standard library, so that drivers may use it to
// append a machine's own configuration to an initramfs that is shared. It must
// not know what the files are for.
package initramfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// File types as cpio spells them in a mode.
const (
	typeDir     = 0o040000
	typeRegular = 0o100000
)

// bootConfigName is the archive name of a machine's boot configuration; the
// kernel unpacks it as /config.json.
const bootConfigName = "config.json"

// Entry is one file or directory. It belongs to root and has no times.
type Entry struct {
	// Name is relative to the root and clean, such as "modules/01-virtio.ko".
	Name string
	// Mode holds the permission bits.
	Mode uint32
	Dir  bool
	Data []byte
}

// Write writes one archive that holds the entries in the order of their
// names. Its length is a multiple of four, so another archive may follow it.
// Parent directories must be among the entries.
func Write(w io.Writer, entries []Entry) error {
	sorted := append([]Entry(nil), entries...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	dirs := map[string]bool{".": true}
	for i, e := range sorted {
		if err := check(e, dirs); err != nil {
			return err
		}
		if i > 0 && sorted[i-1].Name == e.Name {
			return fmt.Errorf("cannot write initramfs: %q is there twice", e.Name)
		}
		if e.Dir {
			dirs[e.Name] = true
		}
		mode, links := uint32(typeRegular)|e.Mode, 1
		if e.Dir {
			mode, links = typeDir|e.Mode, 2
		}
		if err := writeEntry(w, i+1, mode, links, e.Name, e.Data); err != nil {
			return fmt.Errorf("cannot write initramfs: %w", err)
		}
	}
	if err := writeEntry(w, 0, 0, 1, "TRAILER!!!", nil); err != nil {
		return fmt.Errorf("cannot write initramfs: %w", err)
	}
	return nil
}

func check(e Entry, dirs map[string]bool) error {
	const maxData = 1 << 30
	switch {
	case !fs.ValidPath(e.Name) || e.Name == ".":
		return fmt.Errorf("cannot write initramfs: name %q is not clean and relative", e.Name)
	case strings.ContainsRune(e.Name, 0) || e.Name == "TRAILER!!!":
		return fmt.Errorf("cannot write initramfs: name %q cannot be stored", e.Name)
	case e.Mode&^0o7777 != 0:
		return fmt.Errorf("cannot write initramfs: mode %#o of %q has more than permission bits", e.Mode, e.Name)
	case e.Dir && len(e.Data) > 0:
		return fmt.Errorf("cannot write initramfs: directory %q has data", e.Name)
	case len(e.Data) > maxData:
		return fmt.Errorf("cannot write initramfs: %q has %d bytes, more than %d", e.Name, len(e.Data), maxData)
	case !dirs[path.Dir(e.Name)]:
		return fmt.Errorf("cannot write initramfs: no directory %q for %q", path.Dir(e.Name), e.Name)
	}
	return nil
}

// writeEntry writes a header of thirteen eight-digit numbers behind the magic,
// the name and the data, both padded to four bytes.
func writeEntry(w io.Writer, ino int, mode uint32, links int, name string, data []byte) error {
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		ino, mode, 0 /* uid */, 0 /* gid */, links, 0 /* mtime */, len(data),
		0, 0 /* device of the file */, 0, 0 /* device it is */, len(name)+1, 0 /* check */)
	head := header + name + "\x00"
	if _, err := io.WriteString(w, head+padding(len(head))); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	_, err := io.WriteString(w, padding(len(data)))
	return err
}

func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }

// BootConfigSegment returns an archive that holds data as /config.json, mode
// 0600. The kernel unpacks it after the initramfs it is appended to.
func BootConfigSegment(data []byte) []byte {
	var b bytes.Buffer
	// Neither the name nor the mode can be wrong, and a buffer takes all.
	_ = Write(&b, []Entry{{Name: bootConfigName, Mode: 0o600, Data: data}})
	return b.Bytes()
}
