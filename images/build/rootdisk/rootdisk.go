package rootdisk

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// AddTar adds what a tar archive holds, except the excluded paths and all
// beneath them. Excluded directories stay, empty. Device nodes are refused
// outside /dev.
func (t *Tree) AddTar(ctx context.Context, r io.Reader, exclude []string) error {
	for tr := tar.NewReader(r); ; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("cannot add archive: %w", context.Cause(ctx))
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot add archive: %w", err)
		}
		name := path.Clean("/" + h.Name)
		if excluded(name, h.Typeflag == tar.TypeDir, exclude) {
			continue
		}
		if err := t.addEntry(tr, h, name); err != nil {
			return fmt.Errorf("cannot add archive: %w", err)
		}
	}
}

func excluded(name string, dir bool, exclude []string) bool {
	for _, e := range exclude {
		if strings.HasPrefix(name, e+"/") || name == e && !dir {
			return true
		}
	}
	return false
}

func (t *Tree) addEntry(r io.Reader, h *tar.Header, name string) error {
	for key := range h.PAXRecords {
		if attribute, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			return fmt.Errorf("%q has the extended attribute %q, which cannot be kept", name, attribute)
		}
	}
	mode, mtime := uint32(h.Mode)&0o7777, h.ModTime.Unix()
	switch h.Typeflag {
	case tar.TypeDir:
		return t.addDir(name, mode, h.Uid, h.Gid, mtime)
	case tar.TypeReg:
		return t.addFile(name, mode, h.Uid, h.Gid, mtime, r)
	case tar.TypeSymlink:
		return t.addSymlink(name, h.Linkname, h.Uid, h.Gid, mtime)
	case tar.TypeLink:
		return t.addHardlink(name, path.Clean("/"+h.Linkname))
	default:
		return fmt.Errorf("%q is of type %q, which a root disk does not hold", name, h.Typeflag)
	}
}

// AddBusybox adds a static busybox as /bin/busybox, a link for each of its
// programs, and the few files a system needs. program must run on this host.
func (t *Tree) AddBusybox(ctx context.Context, program string) error {
	list, err := hosttool.Output(ctx, hosttool.Command{Tool: hosttool.Tool(program), Args: []string{"--list"}})
	if err != nil {
		return fmt.Errorf("cannot list busybox programs: %w", err)
	}
	f, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("cannot add busybox: %w", err)
	}
	defer f.Close()
	if err := t.addFile("/bin/busybox", 0o755, 0, 0, t.epoch, f); err != nil {
		return err
	}
	for applet := range strings.FieldsSeq(list) {
		if applet == "busybox" || strings.Contains(applet, "/") {
			continue
		}
		if err := t.addSymlink("/bin/"+applet, "busybox", 0, 0, t.epoch); err != nil {
			return err
		}
	}
	for _, l := range []recipes.Symlink{
		{Path: "/sbin", Target: "bin"}, {Path: "/usr/bin", Target: "../bin"}, {Path: "/usr/sbin", Target: "../bin"},
	} {
		if err := t.addSymlink(l.Path, l.Target, 0, 0, t.epoch); err != nil {
			return err
		}
	}
	for _, file := range []recipes.File{
		{Path: "/etc/passwd", Content: "root:*:0:0:root:/root:/bin/sh\nnobody:*:65534:65534:nobody:/nonexistent:/bin/false\n"},
		{Path: "/etc/group", Content: "root:*:0:\ntty:*:5:\nnogroup:*:65534:\n"},
		{Path: "/etc/shells", Content: "/bin/sh\n"},
	} {
		if err := t.addText(file); err != nil {
			return err
		}
	}
	return nil
}

// Finish adds what every root disk has and what the recipe asks for: mount
// points, host files without anything of the building host, users,
// directories, files and links. The machine id is made by each machine.
func (t *Tree) Finish(r recipes.Recipe) error {
	for _, d := range []recipes.Directory{
		{Path: "/dev", Mode: 0o755}, {Path: "/proc", Mode: 0o555}, {Path: "/sys", Mode: 0o555}, {Path: "/run", Mode: 0o755},
		{Path: "/tmp", Mode: 0o1777}, {Path: "/var/tmp", Mode: 0o1777}, {Path: "/var/log", Mode: 0o755}, {Path: "/root", Mode: 0o700},
		{Path: "/home", Mode: 0o755}, {Path: "/usr/local/bin", Mode: 0o755}, {Path: "/etc", Mode: 0o755},
	} {
		if err := t.addDir(d.Path, uint32(d.Mode), 0, 0, t.epoch); err != nil {
			return err
		}
	}
	files := append([]recipes.File{
		{Path: "/etc/hostname", Content: "sandbox\n"},
		{Path: "/etc/hosts", Content: "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{Path: "/etc/resolv.conf", Content: ""},
		{Path: "/etc/fstab", Content: ""},
	}, r.Files...)
	for _, f := range files {
		if err := t.addText(f); err != nil {
			return err
		}
	}
	for _, u := range r.Users {
		if err := t.addUser(u); err != nil {
			return err
		}
	}
	for _, d := range r.Directories {
		if err := t.addDir(d.Path, uint32(orMode(d.Mode, 0o755)), d.UID, d.GID, t.epoch); err != nil {
			return err
		}
	}
	for _, l := range r.Symlinks {
		if err := t.addSymlink(l.Path, l.Target, 0, 0, t.epoch); err != nil {
			return err
		}
	}
	return nil
}

func orMode(m, otherwise recipes.Mode) recipes.Mode {
	if m == 0 {
		return otherwise
	}
	return m
}

func (t *Tree) addText(f recipes.File) error {
	return t.addFile(f.Path, uint32(orMode(f.Mode, 0o644)), 0, 0, t.epoch, strings.NewReader(f.Content))
}

// addUser adds an account that nobody can log in to with a password.
func (t *Tree) addUser(u recipes.User) error {
	password := "*"
	if t.Has("/etc/shadow") {
		password = "x" // it is there
	}
	for _, line := range []struct {
		file, text string
		mode       uint32
		required   bool
	}{
		{"/etc/passwd", fmt.Sprintf("%s:%s:%d:%d:%s:%s:%s", u.Name, password, u.UID, u.GID, u.Name, u.Home, u.Shell), 0o644, true},
		{"/etc/group", fmt.Sprintf("%s:*:%d:", u.Name, u.GID), 0o644, true},
		{"/etc/shadow", u.Name + ":!:0::::::", 0o640, false},
		{"/etc/gshadow", u.Name + ":!::", 0o640, false},
	} {
		if err := t.appendLine(line.file, line.text, u.Name, line.mode, line.required); err != nil {
			return fmt.Errorf("cannot add user %q: %w", u.Name, err)
		}
	}
	return t.addDir(u.Home, 0o755, u.UID, u.GID, t.epoch)
}

// appendLine adds a line to a database such as /etc/passwd, and keeps its
// owner. A database that is not there is made only when it is required.
func (t *Tree) appendLine(file, line, key string, mode uint32, required bool) error {
	old, err := t.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.HasPrefix(old, []byte(key+":")) || bytes.Contains(old, []byte("\n"+key+":")) {
		return fmt.Errorf("%s has it already", file)
	}
	uid, gid := 0, 0
	if full, err := t.resolve(file); err == nil && t.nodes[full] != nil {
		mode, uid, gid = t.nodes[full].mode, t.nodes[full].uid, t.nodes[full].gid
	}
	return t.addFile(file, mode, uid, gid, t.epoch, io.MultiReader(bytes.NewReader(old), strings.NewReader(line+"\n")))
}

// Packages returns "name=version" of the packages dpkg has installed in the
// tree, sorted.
func (t *Tree) Packages() ([]string, error) {
	status, err := t.ReadFile("/var/lib/dpkg/status")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	var name, version string
	installed := false
	flush := func() {
		if installed && name != "" {
			out = append(out, name+"="+version)
		}
		name, version, installed = "", "", false
	}
	s := bufio.NewScanner(bytes.NewReader(status))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		field, value, _ := strings.Cut(s.Text(), ": ")
		switch field {
		case "":
			flush()
		case "Package":
			name = value
		case "Version":
			version = value
		case "Status":
			installed = value == "install ok installed"
		}
	}
	flush()
	sort.Strings(out)
	return out, s.Err()
}
