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

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const lockFile = "sandboxd.lock"

// lockStateDir makes the state directory and claims it for this process: two
// daemons on one would each think that the other's machines are lost.
func lockStateDir(dir string) (*dirLock, error) {
	// Others may pass through, since the hypervisor runs as another user; what
	// is secret in here closes itself.
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // see above
		return nil, notWritable(dir, err)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, notWritable(dir, err)
	}
	// A mere file may be removed by who takes it for the remains of a crash, the
	// directory of the machines not. (The state directory's own lock is for changes
	// of its tokens and keys.) The file says who has both.
	d, err := openMachines(dir)
	if err != nil {
		return nil, errors.Join(notWritable(dir, err), f.Close())
	}
	l := &dirLock{dir: d, file: f}
	for _, one := range []*os.File{d, f} {
		if err := unix.Flock(int(one.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // a descriptor fits
			return nil, errors.Join(notFree(dir, f, err), l.Close())
		}
	}
	if err := writePid(f); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write %q: %w", path, err), l.Close())
	}
	return l, nil
}

// openMachines opens the directory of the machines, made if it is missing:
// hypervisors pass through it, and nobody lists it.
func openMachines(dir string) (*os.File, error) {
	path := filepath.Join(dir, "machines")
	if err := os.MkdirAll(path, 0o711); err != nil { //nolint:gosec // see above
		return nil, err
	}
	return os.Open(path)
}

// dirLock is the right to a state directory, until Close or the process's end.
type dirLock struct{ dir, file *os.File }

func (l *dirLock) Close() error { return errors.Join(l.file.Close(), l.dir.Close()) }

func notFree(dir string, f *os.File, err error) error {
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("cannot lock state directory %q: %w", dir, err)
	}
	return &instance.Fault{
		Blame: instance.Caller, Code: "state_dir.in_use",
		Hint: "stop that one, or choose another directory with --state-dir",
		Err:  fmt.Errorf("cannot use state directory %q: another sandboxd has it (%s)", dir, heldBy(dir, f)),
	}
}

func writePid(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// heldBy names the process that has the lock: by the file's word, or, where that
// is a new one, by what it tells clients.
func heldBy(dir string, f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		e, rerr := localhost.Read(dir)
		pid, err = e.PID, rerr
	}
	if err != nil || pid <= 0 {
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
