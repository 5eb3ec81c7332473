package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// record is process.json: what makes a process the same one later. A pid
// alone is used again by others.
type record struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since the host's boot.
	Start uint64 `json:"start"`
	// Boot is the host's boot id: ticks begin anew with it.
	Boot string `json:"boot"`
}

// stat is what we read of /proc/PID/stat.
type stat struct {
	pid, parent int
	state       byte
	start       uint64
}

// parseStat reads the fields after the name, which is the process's own
// choice and may hold anything.
func parseStat(pid int, data []byte) (stat, bool) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return stat{}, false
	}
	// Field 3 of proc(5) is the first one here: state, ppid, …, starttime (22).
	f := bytes.Fields(data[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, false
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	start, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	if err1 != nil || err2 != nil {
		return stat{}, false
	}
	return stat{pid: pid, parent: parent, state: f[0][0], start: start}, true
}

func readStat(pid int) (stat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	return parseStat(pid, data)
}

// alive is false for a zombie: nothing of it executes any more.
func (s stat) alive() bool { return s.state != 'Z' && s.state != 'X' }

// processes reads the process table. What ends meanwhile is left out.
func processes() []stat {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []stat
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, ok := readStat(pid); ok {
			all = append(all, s)
		}
	}
	return all
}

// tree lists root and its descendants, parents first. Nothing, if the pid
// belongs to another process by now.
func tree(all []stat, root stat) []stat {
	children := map[int][]stat{}
	var found []stat
	for _, s := range all {
		switch {
		case s.pid != root.pid:
			children[s.parent] = append(children[s.parent], s)
		case s.start == root.start:
			found = append(found, s)
		}
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
		delete(children, found[i].pid)
	}
	return found
}

// hasArgument reports whether a process was started with that argument.
func hasArgument(pid int, arg string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	for a := range strings.SplitSeq(string(data), "\x00") {
		if a == arg {
			return true
		}
	}
	return false
}

// worksIn reports whether a directory, whatever its path by now, is the one that
// a process works in: the record of a process is not proof enough, since a state
// directory that was copied holds those of the original's.
func worksIn(pid int, dir string) bool {
	cwd, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return false
	}
	here, err := os.Stat(dir)
	return err == nil && os.SameFile(cwd, here)
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// process is a process held by a descriptor, so that a signal can never reach
// another one that got its pid.
type process struct {
	stat
	fd *os.File
}

// hold opens a process that was seen in the table, if it is still that one.
func hold(s stat) (*process, error) {
	// Non-blocking, so that Go's poller can wait for it.
	fd, err := unix.PidfdOpen(s.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot open process %d: %w", s.pid, err)
	}
	p := &process{stat: s, fd: os.NewFile(uintptr(fd), "pidfd")}
	if now, ok := readStat(s.pid); !ok || now.start != s.start {
		p.release()
		return nil, fmt.Errorf("cannot open process %d: %w", s.pid, os.ErrProcessDone)
	}
	return p, nil
}

func (p *process) release() { _ = p.fd.Close() }

// signal sends a signal; a process that has ended is no error.
func (p *process) signal(sig unix.Signal) error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}
	if serr != nil && !errors.Is(serr, unix.ESRCH) {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, serr)
	}
	return nil
}

// wait blocks until the process has ended. It is cut short by stop, or by
// release.
func (p *process) wait() error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, err)
	}
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if err != nil {
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, err)
	}
	return nil
}

// stop ends all waits, now and later.
func (p *process) stop() { _ = p.fd.SetReadDeadline(time.Unix(1, 0)) }

// waitCtx waits until the process has ended or ctx has.
func (p *process) waitCtx(ctx context.Context) error {
	undo := context.AfterFunc(ctx, p.stop)
	defer undo()
	if err := p.wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

// freeze stops a process and all its descendants and returns them held. They
// are stopped from the root down and looked for again until no new one is
// found, so that none is born unseen.
func freeze(root stat) []*process {
	held := map[int]*process{}
	var order []*process
	for range 32 {
		fresh := 0
		for _, s := range tree(processes(), root) {
			if h, ok := held[s.pid]; ok && h.start == s.start {
				continue
			}
			p, err := hold(s)
			if err != nil {
				continue // it has ended meanwhile
			}
			_ = p.signal(unix.SIGSTOP) // one that has ended needs none
			held[s.pid] = p
			order = append(order, p)
			fresh++
		}
		if fresh == 0 {
			break
		}
	}
	return order
}

// awaitStopped waits until a process that was sent SIGSTOP executes no more:
// the signal is pending until each of its threads is next scheduled. The
// kernel tells that to parents and tracers only, so the process table is asked.
// One that sleeps uninterruptibly, such as a parent whose vforked child has
// been stopped, meets the signal before it executes anything of its own again.
func (p *process) awaitStopped(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s, ok := readStat(p.pid)
		if !ok || s.start != p.start || !s.alive() || strings.IndexByte("TtD", s.state) >= 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("cannot stop process %d: %w", p.pid, ctx.Err())
		}
	}
}

// killTree kills a process and all its descendants and waits until none of
// them executes any more.
func killTree(ctx context.Context, root stat) error {
	all := freeze(root)
	var errs []error
	for _, p := range all {
		errs = append(errs, p.signal(unix.SIGKILL))
	}
	for _, p := range all {
		if err := p.waitCtx(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cannot wait for the end of process %d: %w", p.pid, err))
		}
		p.release()
	}
	return errors.Join(errs...)
}

// reap takes the exit status of a process if it is a child of ours. Otherwise
// somebody else does, and the status is not known.
func reap(pid int) (unix.WaitStatus, bool) {
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return ws, err == nil && got == pid
	}
}
