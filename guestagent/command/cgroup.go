package command

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runsGroup is the control group that holds one group per run.
const runsGroup = "sandbox.runs"

// cgroupTree is the part of the cgroup v2 hierarchy that belongs to runs.
type cgroupTree struct {
	dir string // …/sandbox.runs
}

// openCgroupTree makes the runs' group below a cgroup v2 mount (or a delegated
// group of it) and bounds all runs together, so that neither the agent nor
// the kernel starves: reserve is the memory kept from them, in bytes.
func openCgroupTree(mount string, reserve uint64) (*cgroupTree, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil {
		return nil, fmt.Errorf("cannot use cgroup v2 at %q: %w", mount, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("cannot use cgroup v2 at %q: something else is mounted there", mount)
	}
	t := &cgroupTree{dir: filepath.Join(mount, runsGroup)}
	if err := os.Mkdir(t.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make the group of all runs: %w", err)
	}
	if _, err := os.Stat(filepath.Join(t.dir, "cgroup.kill")); err != nil {
		return nil, fmt.Errorf("cannot use cgroup v2 at %q: the kernel is older than 5.14: %w", mount, err)
	}
	for _, dir := range []string{mount, t.dir} {
		for _, controller := range []string{"+cpu", "+memory", "+pids"} {
			// One that this kernel lacks bounds nothing and stops nobody.
			_ = writeFile(filepath.Join(dir, "cgroup.subtree_control"), controller)
		}
	}
	if reserve > 0 {
		if err := t.reserve(reserve); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *cgroupTree) reserve(reserve uint64) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("cannot read the size of memory: %w", err)
	}
	total := info.Totalram * uint64(info.Unit)
	if total > 2*reserve {
		if err := writeFile(filepath.Join(t.dir, "memory.max"), strconv.FormatUint(total-reserve, 10)); err != nil {
			return fmt.Errorf("cannot bound the memory of all runs: %w", err)
		}
	}
	most, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return fmt.Errorf("cannot bound the processes of all runs: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(most)))
	if err != nil {
		return fmt.Errorf("cannot bound the processes of all runs: %w", err)
	}
	if threads, err := os.ReadFile("/proc/sys/kernel/threads-max"); err == nil {
		if m, err := strconv.Atoi(strings.TrimSpace(string(threads))); err == nil {
			n = min(n, m)
		}
	}
	if err := writeFile(filepath.Join(t.dir, "pids.max"), strconv.Itoa(n/4*3)); err != nil {
		return fmt.Errorf("cannot bound the processes of all runs: %w", err)
	}
	return nil
}

// sweep kills what an earlier agent has left and returns the names of its
// groups: the ids of runs that nobody can know the end of.
func (t *cgroupTree) sweep() ([]string, error) {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the groups of earlier runs: %w", err)
	}
	var left []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		b := &cgroupBox{dir: filepath.Join(t.dir, e.Name())}
		if err := b.kill(); err != nil {
			return nil, err
		}
		if err := b.waitEmpty(time.Now().Add(sweepPatience)); err != nil {
			return nil, err
		}
		b.remove()
		left = append(left, e.Name())
	}
	return left, nil
}

// sweepPatience bounds the wait for killed processes of an earlier agent.
const sweepPatience = 10 * time.Second

// newBox makes an empty box for a run.
func (t *cgroupTree) newBox(id string) box {
	return &cgroupBox{dir: filepath.Join(t.dir, id), exit: make(chan procExit, 1), empty: make(chan usage, 1)}
}

// cgroupBox holds a run in a control group of its own.
type cgroupBox struct {
	dir   string
	exit  chan procExit
	empty chan usage
}

func (b *cgroupBox) exited() <-chan procExit { return b.exit }
func (b *cgroupBox) emptied() <-chan usage   { return b.empty }

func (b *cgroupBox) launch(l launch) error {
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the run's control group: %w", err)
	}
	proc, err := b.start(l)
	if err != nil {
		b.remove()
		return err
	}
	go b.watch(proc)
	return nil
}

func (b *cgroupBox) start(l launch) (*os.Process, error) {
	if err := b.limit(l); err != nil {
		return nil, err
	}
	group, err := os.Open(b.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the run's control group: %w", err)
	}
	defer group.Close()
	attr := l.sysProcAttr()
	attr.UseCgroupFD = true
	attr.CgroupFD = int(group.Fd())
	var proc *os.Process
	err = onMarkedThread(l.NoNewPrivs, func() error {
		var err error
		proc, err = os.StartProcess(l.Path, l.Argv, &os.ProcAttr{
			// The link is resolved in the child, where the number means the
			// same: no path can be swapped between check and use.
			Dir:   "/proc/self/fd/" + strconv.Itoa(int(l.cwd.Fd())),
			Env:   l.Env,
			Files: l.stdio[:],
			Sys:   attr,
		})
		return err
	})
	if err != nil {
		return nil, startFailure(l.Argv[0], l.Path, err)
	}
	return proc, nil
}

func (b *cgroupBox) limit(l launch) error {
	if l.memoryMax > 0 {
		if err := writeFile(filepath.Join(b.dir, "memory.max"), strconv.FormatUint(l.memoryMax, 10)); err != nil {
			return fmt.Errorf("cannot bound the run's memory: %w", err)
		}
		// Without swap accounting there is nothing to turn off.
		_ = writeFile(filepath.Join(b.dir, "memory.swap.max"), "0")
	}
	if l.pidsMax > 0 {
		if err := writeFile(filepath.Join(b.dir, "pids.max"), strconv.FormatUint(uint64(l.pidsMax), 10)); err != nil {
			return fmt.Errorf("cannot bound the run's processes: %w", err)
		}
	}
	// A run out of memory ends as a whole. Missing without the controller.
	_ = writeFile(filepath.Join(b.dir, "memory.oom.group"), "1")
	return nil
}

// watch reports the end of the main process and then of all others. It ends
// with the box, which the run's owner sees to.
func (b *cgroupBox) watch(proc *os.Process) {
	b.exit <- waitFor(proc)
	for {
		err := b.waitEmpty(time.Time{})
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	u := b.usage()
	b.remove()
	b.empty <- u
}

func waitFor(proc *os.Process) procExit {
	state, err := proc.Wait()
	if err != nil {
		return procExit{lost: true}
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	if !ok {
		return procExit{lost: true}
	}
	return exitOf(ws)
}

func exitOf(ws syscall.WaitStatus) procExit {
	if ws.Signaled() {
		return procExit{signal: ws.Signal()}
	}
	return procExit{code: ws.ExitStatus()}
}

// waitEmpty waits until no process is left in the group and below.
func (b *cgroupBox) waitEmpty(deadline time.Time) error {
	return b.waitEvent(deadline, "populated 0")
}

// waitEvent waits until cgroup.events holds any of the lines. The kernel signals
// a change of that file as an exceptional condition, which the runtime's poller
// delivers as readability.
func (b *cgroupBox) waitEvent(deadline time.Time, lines ...string) error {
	f, err := os.Open(filepath.Join(b.dir, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("cannot watch a run's control group: %w", err)
	}
	defer f.Close()
	if err := f.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("cannot watch a run's control group: %w", err)
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot watch a run's control group: %w", err)
	}
	var failure error
	err = conn.Read(func(fd uintptr) bool {
		var buf [256]byte
		n, err := unix.Pread(int(fd), buf[:], 0)
		if err != nil {
			failure = err
			return true
		}
		return slices.ContainsFunc(lines, func(l string) bool { return bytes.Contains(buf[:n], []byte(l)) })
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return fmt.Errorf("cannot watch a run's control group: %w", err)
	}
	return nil
}

// terminate freezes the group meanwhile, so that no process that is just being
// born is missed, and lets those go on that were stopped: only then do they
// take the signal.
func (b *cgroupBox) terminate() error {
	b.freeze()
	err := b.each(func(pid int) {
		_ = unix.Kill(pid, unix.SIGTERM) // it may be gone by now
		_ = unix.Kill(pid, unix.SIGCONT)
	})
	_ = writeFile(filepath.Join(b.dir, "cgroup.freeze"), "0") // kernels before 5.2 have none
	return err
}

// frozenWithin bounds the wait for a group to freeze. A process in the middle
// of a long system call may take longer; then it forks nothing either.
const frozenWithin = 200 * time.Millisecond

// freeze stops every process of the group as well as it can.
func (b *cgroupBox) freeze() {
	if writeFile(filepath.Join(b.dir, "cgroup.freeze"), "1") == nil {
		_ = b.waitEvent(time.Now().Add(frozenWithin), "populated 0", "frozen 1")
	}
}

// each visits every process of the group and of groups below it.
func (b *cgroupBox) each(visit func(pid int)) error {
	return filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return ignoreGone(err)
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for field := range bytes.FieldsSeq(data) {
			// 0 is a process of another pid namespace, 1 would be everybody.
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 1 {
				visit(pid)
			}
		}
		return nil
	})
}

func (b *cgroupBox) kill() error {
	err := ignoreGone(writeFile(filepath.Join(b.dir, "cgroup.kill"), "1"))
	if err != nil {
		return fmt.Errorf("cannot kill a run's control group: %w", err)
	}
	return nil
}

// remove removes the group and those made below it, deepest first.
func (b *cgroupBox) remove() {
	var dirs []string
	_ = filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = unix.Rmdir(dir) // an empty group that stays costs little
	}
}

func (b *cgroupBox) usage() usage {
	var u usage
	if n, ok := readKey(filepath.Join(b.dir, "cpu.stat"), "usage_usec"); ok {
		u.cpu = time.Duration(n) * time.Microsecond
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, "memory.peak")); err == nil {
		u.memoryPeak, _ = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	n, _ := readKey(filepath.Join(b.dir, "memory.events"), "oom_kill")
	u.oomKilled = n > 0
	return u
}

// readKey reads one number of a flat keyed file.
func readKey(path, key string) (uint64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == key {
			n, err := strconv.ParseUint(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// writeFile writes a control file, which must not be created by accident.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
