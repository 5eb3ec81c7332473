package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one running process and its arguments.
type Process struct {
	PID  int
	Args []string
}

// maxCmdline bounds what is read of one process's arguments, in bytes. A
// hypervisor's are a few KiB.
const maxCmdline = 128 << 10

// Processes returns every process for which keep is true. Those that end
// meanwhile, and kernel threads, are left out.
func Processes(keep func(Process) bool) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, err := cmdline(pid)
		if err != nil || len(args) == 0 {
			continue
		}
		if p := (Process{PID: pid, Args: args}); keep(p) {
			found = append(found, p)
		}
	}
	return found, nil
}

func cmdline(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	raw = bytes.TrimRight(raw[:min(len(raw), maxCmdline)], "\x00")
	if len(raw) == 0 {
		return nil, nil
	}
	return strings.Split(string(raw), "\x00"), nil
}

// IsMachine reports whether the process is the hypervisor of the machine with
// this libvirt name and uuid. A pid alone proves nothing: it may have been
// given to another process.
func (p Process) IsMachine(name, uuid string) bool {
	guest, id := p.machine()
	return name != "" && guest == name && id == uuid
}

// machine returns the name and uuid a hypervisor was started with.
func (p Process) machine() (name, uuid string) {
	for i := 0; i+1 < len(p.Args); i++ {
		switch p.Args[i] {
		case "-name":
			first, _, _ := strings.Cut(p.Args[i+1], ",")
			name = strings.TrimPrefix(first, "guest=")
		case "-uuid":
			uuid = p.Args[i+1]
		}
	}
	return name, uuid
}

// mentions reports whether any argument holds one of the strings.
func (p Process) mentions(parts []string) bool {
	for _, arg := range p.Args {
		for _, part := range parts {
			if strings.Contains(arg, part) {
				return true
			}
		}
	}
	return false
}

// ownFiles is in the path of everything that libvirt makes for a hypervisor
// beneath a root of ours.
const ownFiles = "/lib/qemu/"

// elsewhere reports whether the process is a hypervisor of another root, as its
// arguments show: name and uuid are those of a machine here when this state
// directory is a copy of the one it belongs to.
func (p Process) elsewhere(root *Root) bool {
	return p.mentions([]string{ownFiles}) && !p.mentions(root.marks())
}

// marks are in the arguments of every hypervisor that was started from the root.
func (r *Root) marks() []string {
	var marks []string
	for _, name := range r.Names() {
		marks = append(marks, name+ownFiles)
	}
	return marks
}

// Hypervisor returns a function that knows the process of a machine of this root.
func (r *Root) Hypervisor(name, uuid string) func(Process) bool {
	return func(p Process) bool { return p.IsMachine(name, uuid) && !p.elsewhere(r) }
}

// uses reports whether the process has a file open that lies in a directory now,
// whatever its path was when it was opened.
func (p Process) uses(dir string) bool {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
	if err != nil {
		return false
	}
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// FindMachine returns the hypervisor process of a machine of this root, or pid 0.
func (r *Root) FindMachine(name, uuid string) (int, error) {
	found, err := Processes(r.Hypervisor(name, uuid))
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].PID, nil
}

// OpenPIDFD returns a file that stands for the process and becomes readable
// when it ends. still is asked after opening, so that a reused pid cannot be
// taken for the process meant.
func OpenPIDFD(pid int, still func(Process) bool) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", pid))
	args, err := cmdline(pid)
	if err != nil || !still(Process{PID: pid, Args: args}) {
		_ = f.Close()
		return nil, fmt.Errorf("cannot open process %d: %w", pid, os.ErrProcessDone)
	}
	return f, nil
}

// KillPIDFD sends SIGKILL. A process that has ended is no error.
func KillPIDFD(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot kill process: %w", err)
	}
	var killErr error
	if err := raw.Control(func(fd uintptr) {
		killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	}); err != nil {
		return fmt.Errorf("cannot kill process: %w", err)
	}
	if killErr != nil && !errors.Is(killErr, unix.ESRCH) {
		return fmt.Errorf("cannot kill process: %w", killErr)
	}
	return nil
}

// AwaitPIDFD blocks until the process has ended or ctx is done. Only one
// caller may wait on one file.
func AwaitPIDFD(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait for process: %w", err)
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil { // an earlier wait was given up
		return fmt.Errorf("cannot wait for process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(set, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot wait for process: %w", err)
	}
	return nil
}
