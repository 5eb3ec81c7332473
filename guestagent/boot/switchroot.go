package boot

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// switchRoot makes a mounted file system the root and gives the memory of the
// initramfs back. The running program stays: /proc/self/exe names it for as
// long as anybody runs it.
func switchRoot(root string) error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		target := filepath.Join(root, dir)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("cannot switch to the root disk: %w", err)
		}
		if err := unix.Mount(dir, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("cannot move %q to the root disk: %w", dir, err)
		}
	}
	if err := empty("/"); err != nil {
		return fmt.Errorf("cannot give back the initramfs: %w", err)
	}
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("cannot switch to the root disk: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot switch to the root disk: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("cannot switch to the root disk: %w", err)
	}
	return os.Chdir("/")
}

// empty removes everything below a directory that lies on the same file
// system. It refuses any but a file system of the kernel's own memory.
func empty(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if fs.Type != unix.RAMFS_MAGIC && fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%q is not an initramfs (file system type %#x)", dir, fs.Type)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	_, err := remove(dir, st.Dev)
	return err
}

// remove empties dir and says whether nothing is left in it.
func remove(dir string, device uint64) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	all := true
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return false, err
		}
		if st.Dev != device {
			all = false
			continue
		}
		gone := true
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if gone, err = remove(path, device); err != nil {
				return false, err
			}
		}
		if !gone {
			all = false
			continue
		}
		if err := os.Remove(path); err != nil {
			return false, err
		}
	}
	return all, nil
}
