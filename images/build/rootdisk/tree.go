// Package rootdisk turns a recipe and its packages into a qcow2 disk with an
// ext4 file system, without mounting anything, without root's rights, and
// with the same bytes whenever the same went in.
//
// A tree is gathered in a directory (contents) and in memory (owners, modes,
// times), mke2fs copies the contents, and debugfs sets the rest. The package
// must not know where packages come from or what an image is.
package rootdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
)

// Bounds on what a tree may hold.
const (
	maxNodes    = 500_000
	maxContents = 16 << 30 // bytes
	maxLinks    = 40       // symbolic links followed in one path
)

// node is what the file system must know about a path, beside its content.
type node struct {
	kind     fs.FileMode // 0, fs.ModeDir or fs.ModeSymlink
	mode     uint32      // permission bits
	uid, gid int
	mtime    int64 // seconds
	target   string
	// linkTo is the path of the node this one is another name of.
	linkTo string
}

// Tree is the content of a root file system while it is put together. Paths
// are absolute, as a machine will see them.
type Tree struct {
	root     *os.Root
	nodes    map[string]*node
	contents int64
	epoch    int64
}

// NewTree returns a tree that keeps its contents in the empty directory dir
// and holds only its root. Nothing in it is younger than epoch, in seconds.
func NewTree(dir string, epoch int64) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot make tree: %w", err)
	}
	t := &Tree{root: root, nodes: map[string]*node{}, epoch: epoch}
	t.nodes["/"] = &node{kind: fs.ModeDir, mode: 0o755, mtime: epoch}
	return t, nil
}

// Close lets go of the directory and leaves it.
func (t *Tree) Close() error { return t.root.Close() }

// resolve returns the path with the symbolic links of its directories
// followed, so that nothing is ever written through one.
func (t *Tree) resolve(name string) (string, error) {
	if !path.IsAbs(name) || path.Clean(name) != name {
		return "", fmt.Errorf("path %q is not absolute and clean", name)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' || r == '\\' }) {
		return "", fmt.Errorf("path %q holds a character that cannot be handled", name)
	}
	links := 0
	done, rest := "/", strings.TrimPrefix(path.Dir(name), "/")
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, part)
		n := t.nodes[next]
		if n == nil || n.kind != fs.ModeSymlink {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("path %q has too many symbolic links", name)
		}
		target := n.target
		if !path.IsAbs(target) {
			target = path.Join(done, target)
		}
		rest = strings.TrimPrefix(path.Join(path.Clean(target), rest), "/")
		done = "/"
	}
	return path.Join(done, path.Base(name)), nil
}

// place resolves a path, makes its missing parents and records the node.
func (t *Tree) place(name string, n *node) (string, error) {
	name, err := t.resolve(name)
	if err != nil {
		return "", err
	}
	if len(t.nodes) >= maxNodes {
		return "", fmt.Errorf("more than %d files", maxNodes)
	}
	if parent := path.Dir(name); t.nodes[parent] == nil {
		if err := t.addDir(parent, 0o755, 0, 0, t.epoch); err != nil {
			return "", err
		}
	} else if t.nodes[parent].kind != fs.ModeDir {
		return "", fmt.Errorf("%q is not a directory", parent)
	}
	if old := t.nodes[name]; old != nil && (old.kind == fs.ModeDir) != (n.kind == fs.ModeDir) {
		return "", fmt.Errorf("%q is both a directory and something else", name)
	} else if old != nil && old.kind != fs.ModeDir {
		if err := t.root.Remove(inside(name)); err != nil {
			return "", err
		}
	}
	n.mtime = min(n.mtime, t.epoch)
	t.nodes[name] = n
	return name, nil
}

// inside turns an absolute path of the tree into one beneath its directory.
func inside(name string) string {
	if name == "/" {
		return "."
	}
	return strings.TrimPrefix(name, "/")
}

// addDir adds a directory, or changes the owner and mode of one that exists.
func (t *Tree) addDir(name string, mode uint32, uid, gid int, mtime int64) error {
	if name == "/" {
		t.nodes["/"] = &node{kind: fs.ModeDir, mode: mode, uid: uid, gid: gid, mtime: min(mtime, t.epoch)}
		return nil
	}
	name, err := t.place(name, &node{kind: fs.ModeDir, mode: mode, uid: uid, gid: gid, mtime: mtime})
	if err == nil {
		err = t.root.Mkdir(inside(name), 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot add directory %q: %w", name, err)
	}
	return nil
}

// addFile adds a regular file, or replaces one.
func (t *Tree) addFile(name string, mode uint32, uid, gid int, mtime int64, content io.Reader) error {
	full, err := t.place(name, &node{mode: mode, uid: uid, gid: gid, mtime: mtime})
	if err != nil {
		return fmt.Errorf("cannot add file %q: %w", name, err)
	}
	// Readable whatever the mode will be: mke2fs has to read it.
	f, err := t.root.OpenFile(inside(full), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("cannot add file %q: %w", name, err)
	}
	n, err := io.Copy(f, io.LimitReader(content, maxContents-t.contents+1))
	t.contents += n
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot add file %q: %w", name, err)
	}
	if t.contents > maxContents {
		return fmt.Errorf("cannot add file %q: the tree has more than %d bytes", name, int64(maxContents))
	}
	return nil
}

// addSymlink adds a symbolic link, or replaces one.
func (t *Tree) addSymlink(name, target string, uid, gid int, mtime int64) error {
	const maxTarget = 4095
	if target == "" || len(target) > maxTarget || strings.ContainsRune(target, 0) {
		return fmt.Errorf("cannot add symbolic link %q: target %q is not valid", name, target)
	}
	full, err := t.place(name, &node{kind: fs.ModeSymlink, mode: 0o777, uid: uid, gid: gid, mtime: mtime, target: target})
	if err == nil {
		err = t.root.Symlink(target, inside(full))
	}
	if err != nil {
		return fmt.Errorf("cannot add symbolic link %q: %w", name, err)
	}
	return nil
}

// addHardlink adds another name of a regular file.
func (t *Tree) addHardlink(name, existing string) error {
	from, err := t.resolve(existing)
	if err != nil {
		return fmt.Errorf("cannot add link %q: %w", name, err)
	}
	n := t.nodes[from]
	if n == nil || n.kind != 0 {
		return fmt.Errorf("cannot add link %q: %q is not a file", name, existing)
	}
	if n.linkTo != "" {
		from = n.linkTo
	}
	full, err := t.place(name, &node{linkTo: from, mtime: n.mtime})
	if err == nil {
		err = t.root.Link(inside(from), inside(full))
	}
	if err != nil {
		return fmt.Errorf("cannot add link %q: %w", name, err)
	}
	return nil
}

// ReadFile returns the content of a small file, and fs.ErrNotExist when there
// is none.
func (t *Tree) ReadFile(name string) ([]byte, error) {
	full, err := t.resolve(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", name, err)
	}
	if n := t.nodes[full]; n == nil || n.kind != 0 {
		return nil, fmt.Errorf("cannot read %q: %w", name, fs.ErrNotExist)
	}
	return t.root.ReadFile(inside(full))
}

// Has says whether a path exists; its last part is not followed.
func (t *Tree) Has(name string) bool {
	full, err := t.resolve(name)
	return err == nil && t.nodes[full] != nil
}

// paths returns all paths, sorted.
func (t *Tree) paths() []string {
	out := make([]string, 0, len(t.nodes))
	for name := range t.nodes {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
