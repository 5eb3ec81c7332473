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
	"syscall"
)

// Write makes data the content of the file at path, whose mode becomes the
// given one. When it returns, that has reached the disk. A file stays with its
// owner when root changes it for somebody else.
func Write(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode); err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return nil
}

func write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // a file that was renamed is not there any more
	_, err = f.Write(data)
	if err := errors.Join(err, keepOwner(f, path), f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
