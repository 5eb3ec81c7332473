// Package atomicfile replaces small files in one step: whoever reads one, also
// after a crash, finds all that was there before or all that is new. It knows
// no file by name and nothing of what one holds.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Write makes data the content of the file at path, whose mode becomes the
// given one. When it returns, that has reached the disk. A file stays with its
// owner when root changes it for somebody else. What writers of this file left
// that were killed is removed.
func Write(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode); err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return nil
}

func write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	sweep(path)
	f, err := create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, keepOwner(f, path), f.Chmod(mode), f.Sync())
	if err == nil {
		err = os.Rename(f.Name(), path) // still locked: until then it would be taken for a dead one's
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// pattern names the unfinished files for path.
func pattern(path string) string { return "." + filepath.Base(path) + ".*" }

// create makes an unfinished file for path that says by a lock that its writer
// lives.
func create(path string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(filepath.Dir(path), pattern(path))
		if err != nil {
			return nil, err
		}
		err = lock(f)
		if err == nil && linked(f) {
			return f, nil
		}
		// Another writer took it for a dead one's before it was locked.
		_ = errors.Join(f.Close(), os.Remove(f.Name())) // it is gone, or nobody's
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
	}
}

// sweep removes the unfinished files for path whose writers are dead. What it
// cannot remove is in nobody's way.
func sweep(path string) {
	names, err := filepath.Glob(filepath.Join(escape(filepath.Dir(path)), escape("."+filepath.Base(path))+".*"))
	if err != nil {
		return
	}
	for _, name := range names {
		if digits := filepath.Ext(name)[1:]; digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue // none that create has made
		}
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && lock(f) == nil {
			_ = os.Remove(name)
		}
		_ = f.Close()
	}
}

// escape keeps a name from being a pattern.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// linked tells whether a file still has a name.
func linked(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 0
}

func keepOwner(f *os.File, path string) error {
	before, err := os.Stat(path)
	if err != nil || os.Geteuid() != 0 {
		return nil //nolint:nilerr // it is new, or can be nobody's but ours
	}
	st, ok := before.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
