package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const lockFile = "sandboxd.lock"

// lockStateDir makes the state directory and claims it for this process: two
// daemons on one would each think that the other's machines are lost.
func lockStateDir(dir string) (*os.File, error) {
	// Others may pass through, since the hypervisor runs as another user; what
	// is secret in here closes itself.
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // see above
		return nil, notWritable(dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, notWritable(dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // a descriptor fits
		holder := heldBy(f)
		if cerr := f.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot lock state directory %q: %w", dir, err)
		}
		return nil, &instance.Fault{
			Blame: instance.Caller, Code: "state_dir.in_use",
			Hint: "stop that one, or choose another directory with --state-dir",
			Err:  fmt.Errorf("cannot use state directory %q: another sandboxd has it (%s)", dir, holder),
		}
	}
	if err := writePid(f); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write %q: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

func writePid(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func heldBy(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return "unknown process"
	}
	return fmt.Sprintf("pid %d", pid)
}

func notWritable(dir string, err error) error {
	f := &instance.Fault{
		Blame: instance.Caller, Code: "state_dir.not_writable",
		Err: fmt.Errorf("cannot write state directory %q: %w", dir, err),
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		f.Hint = "choose one you can write with --state-dir, or run as root"
	case errors.Is(err, unix.EROFS):
		f.Hint = "make its file system writable, or choose another directory with --state-dir"
	case errors.Is(err, unix.ENOSPC):
		f.Hint = "free space on its disk"
	case errors.Is(err, unix.ENOTDIR):
		f.Hint = "a file is in its place; choose another directory with --state-dir"
	}
	return f
}
