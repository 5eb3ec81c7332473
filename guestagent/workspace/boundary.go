// Package workspace reads and writes files below a directory that no path can
// leave, whatever symbolic links the guest has put there: every path is
// resolved by the kernel with openat2(RESOLVE_BENEATH), never by string work.
//
// The package knows files only. It must not know runs, the wire or who asks.
package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Errors that a caller may act on. A path that does not exist is
// fs.ErrNotExist.
var (
	// ErrOutside marks a path that leaves its root.
	ErrOutside = errors.New("path leaves its root")
	// ErrInvalid marks a path, bound or archive entry that breaks a rule.
	ErrInvalid = errors.New("not allowed")
	// ErrTooLarge marks what exceeds a bound the caller has set.
	ErrTooLarge = errors.New("exceeds its bound")
	// ErrIncomplete marks data whose size or digest is not the promised one.
	ErrIncomplete = errors.New("data is incomplete")
)

// beneath is how every path is resolved.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// Owner is who files are made for.
type Owner struct {
	UID, GID int
	// Keep leaves the owner as the agent makes it.
	Keep bool
}

// Root is a directory that paths cannot leave. Links in the path of the root
// itself are followed: whoever may replace a parent of the root decides what
// it is.
type Root struct {
	dir  *os.File
	path string
}

// OpenRoot opens an absolute directory as a boundary.
func OpenRoot(path string) (*Root, error) {
	if err := checkPath(path); err != nil {
		return nil, fmt.Errorf("cannot open root %q: %w", path, err)
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open root %q: %w: it must be absolute", path, ErrInvalid)
	}
	fd, err := openat2(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, fmt.Errorf("cannot open root %q: %w", path, err)
	}
	return &Root{dir: os.NewFile(uintptr(fd), path), path: filepath.Clean(path)}, nil
}

// MakeRoot opens a directory as a boundary and makes it first, with its
// parents, where it is absent. What it makes belongs to owner.
func MakeRoot(path string, owner Owner) (*Root, error) {
	root, err := OpenRoot(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	above, err := OpenRoot("/")
	if err != nil {
		return nil, err
	}
	defer above.Close()
	made, err := above.makeDirs(strings.TrimPrefix(filepath.Clean(path), "/"), 0o755, owner)
	if err != nil {
		return nil, fmt.Errorf("cannot make root %q: %w", path, err)
	}
	return &Root{dir: made, path: filepath.Clean(path)}, nil
}

// Close gives the directory back. Files opened below it stay open.
func (r *Root) Close() error { return r.dir.Close() }

// relative turns a path that is absolute below the root, or relative to it,
// into one relative to it. It does not resolve "..": the kernel does.
func (r *Root) relative(path string) (string, error) {
	if err := checkPath(path); err != nil {
		return "", fmt.Errorf("cannot use path %q: %w", path, err)
	}
	if !filepath.IsAbs(path) {
		return path, nil
	}
	if r.path == "/" {
		return orDot(strings.TrimLeft(path, "/")), nil
	}
	rest, ok := strings.CutPrefix(path, r.path)
	if !ok || (rest != "" && rest[0] != '/') {
		return "", fmt.Errorf("cannot use path %q: %w %q", path, ErrOutside, r.path)
	}
	return orDot(strings.TrimLeft(rest, "/")), nil
}

// OpenDir opens a directory below the root, as a working directory is: the
// empty path is the root itself.
func (r *Root) OpenDir(path string) (*os.File, error) {
	rel := "."
	if path != "" {
		var err error
		if rel, err = r.relative(path); err != nil {
			return nil, err
		}
	}
	return r.open(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// open opens a path relative to the root.
func (r *Root) open(rel string, flags uint64, mode uint64) (*os.File, error) {
	fd, err := openat2(int(r.dir.Fd()), rel, flags, mode, beneath)
	if err != nil {
		return nil, fmt.Errorf("cannot open %q below %q: %w", rel, r.path, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(r.path, rel)), nil
}

// makeDirs opens a directory below the root and makes what is missing of it.
func (r *Root) makeDirs(rel string, mode uint32, owner Owner) (*os.File, error) {
	if dir, err := r.open(orDot(rel), unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	var (
		parent *os.File
		done   string
		err    error
	)
	if parent, err = r.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(rel, "/") {
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			_ = parent.Close()
			return nil, fmt.Errorf("cannot make %q below %q: %w: \"..\" in a path to be made", rel, r.path, ErrInvalid)
		}
		done = filepath.Join(done, part)
		next, err := r.step(parent, done, part, mode, owner)
		_ = parent.Close()
		if err != nil {
			return nil, err
		}
		parent = next
	}
	return parent, nil
}

// step opens one directory, whose name in parent is part, and makes it when
// it is missing.
func (r *Root) step(parent *os.File, rel, part string, mode uint32, owner Owner) (*os.File, error) {
	dir, err := r.open(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	err = unix.Mkdirat(int(parent.Fd()), part, mode)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("cannot make directory %q below %q: %w", rel, r.path, err)
	}
	made := err == nil
	if dir, err = r.open(rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
		return nil, err
	}
	if !made {
		return dir, nil
	}
	if err := owner.apply(dir); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// apply gives an open file to the owner.
func (o Owner) apply(f *os.File) error {
	if o.Keep {
		return nil
	}
	if err := unix.Fchown(int(f.Fd()), o.UID, o.GID); err != nil {
		return fmt.Errorf("cannot give %q to %d:%d: %w", f.Name(), o.UID, o.GID, err)
	}
	return nil
}

// openat2 opens a path and names what the kernel refused.
func openat2(dir int, path string, flags, mode, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: resolve}
	for attempt := 0; ; attempt++ {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && attempt < 16:
			continue // a rename somewhere raced with a ".." of ours
		case errors.Is(err, unix.EXDEV):
			return -1, ErrOutside
		case errors.Is(err, unix.ELOOP):
			return -1, fmt.Errorf("%w: a symbolic link that may not be followed", ErrInvalid)
		default:
			return -1, err
		}
	}
}

func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%w: empty path", ErrInvalid)
	case len(path) > agentv1.MaxPath:
		return fmt.Errorf("%w: path of %d bytes, at most %d", ErrInvalid, len(path), agentv1.MaxPath)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%w: NUL in a path", ErrInvalid)
	}
	return nil
}

func orDot(path string) string {
	if path == "" {
		return "."
	}
	return path
}
