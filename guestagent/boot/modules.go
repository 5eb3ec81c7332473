package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// modulesDir holds the kernel modules, named in the order they are loaded.
const modulesDir = "/modules"

// loadModules loads every module of a directory in the order of their names.
// Later there are no modules to be had, so all that a machine may need is
// loaded now.
func loadModules(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if errors.Is(err, fs.ErrNotExist) {
		return nil // all is built into the kernel
	}
	if err != nil {
		return fmt.Errorf("cannot list kernel modules: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".ko") {
			continue
		}
		if err := loadModule(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot open kernel module: %w", err)
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENODEV):
		return nil // the driver of a device that this machine does not have
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("cannot load kernel module %q: it needs one that is not loaded before it, or another kernel: %w", path, err)
	default:
		return fmt.Errorf("cannot load kernel module %q: %w", path, err)
	}
}
