package embedded

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// settle lies between the two sightings of a zombie. It leaves whoever
	// started the child the time to wait for it.
	settle = 50 * time.Millisecond
)

// Reaper collects ended hypervisors. libvirt starts them as daemons, so that
// they are adopted by the nearest subreaper, and then polls until their pid is
// gone: without a reaper nearby every Destroy takes seconds.
//
// It never takes a child that somebody else in this process waits for. Adopted
// daemons are told by their session, which is neither ours nor led by
// themselves; children of os/exec and of libvirt are in ours or lead one.
type Reaper struct {
	stop chan struct{}
	done chan struct{}
	was  int32
}

// StartReaper makes this process a subreaper and starts reaping.
func StartReaper() (*Reaper, error) {
	var was int32 // the kernel writes a C int
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&was)), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot ask for the subreaper setting: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot become a subreaper: %w", err)
	}
	r := &Reaper{stop: make(chan struct{}), done: make(chan struct{}), was: was}
	go r.run()
	return r, nil
}

// Stop ends reaping and restores the earlier setting.
func (r *Reaper) Stop() {
	close(r.stop)
	<-r.done
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(r.was), 0, 0, 0)
}

func (r *Reaper) run() {
	defer close(r.done)
	// Signals coalesce: one of capacity 1 is enough to know "look again".
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	again := time.NewTimer(0)
	defer again.Stop()
	seen := map[int]time.Time{}
	for {
		select {
		case <-r.stop:
			return
		case <-died:
		case <-again.C:
		}
		if next := look(seen, time.Now()); next > 0 {
			again.Reset(next)
		}
	}
}

// look reaps what is due and returns when to look again, 0 for not before the
// next signal. seen holds the first sighting of every zombie.
func look(seen map[int]time.Time, now time.Time) time.Duration {
	own, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	present := map[int]bool{}
	var next time.Duration
	for _, pid := range children() {
		st, err := readStat(pid)
		if err != nil || st.state != 'Z' || !st.adopted(own) {
			continue
		}
		present[pid] = true
		first, known := seen[pid]
		if !known {
			first, seen[pid] = now, now
		}
		if left := settle - now.Sub(first); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	for pid := range seen {
		if !present[pid] {
			delete(seen, pid)
		}
	}
	return next
}

// adopted says whether a child, seen from our own session, came to us as a
// daemon that its parent had left.
func (s stat) adopted(own int) bool { return s.session != own && s.session != s.pid }

// children returns the pids of all children of this process.
func children() []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for field := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// stat is the part of /proc/<pid>/stat the reaper looks at.
type stat struct {
	pid     int
	state   byte
	session int
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(raw))
}

// parseStat reads "pid (comm) state ppid pgrp session …". comm may hold
// anything, also blanks and parentheses.
func parseStat(line string) (stat, error) {
	first, _, _ := strings.Cut(line, " ")
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("cannot read process status %q", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 4 || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("cannot read process status %q", line)
	}
	pid, err := strconv.Atoi(first)
	if err != nil {
		return stat{}, fmt.Errorf("cannot read process status %q", line)
	}
	session, err := strconv.Atoi(fields[3])
	if err != nil {
		return stat{}, fmt.Errorf("cannot read process status %q", line)
	}
	return stat{pid: pid, state: fields[0][0], session: session}, nil
}
