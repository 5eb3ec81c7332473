package command

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is one line of the process table.
type process struct {
	pid, ppid int
	zombie    bool
	stopped   bool
}

// descendants lists the living descendants of a process, nearest first. The
// table is a plain value so that the walk can be tested.
func descendants(table []process, of int) []int {
	children := make(map[int][]process, len(table))
	for _, p := range table {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var found []int
	seen := map[int]bool{of: true}
	for queue := []int{of}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			if seen[p.pid] {
				continue
			}
			seen[p.pid] = true
			queue = append(queue, p.pid)
			if !p.zombie {
				found = append(found, p.pid)
			}
		}
	}
	return found
}

// processTable reads /proc. Processes that end meanwhile are left out.
func processTable() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var table []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		data, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, data); ok {
			table = append(table, p)
		}
	}
	return table
}

// parseStat reads state and parent from /proc/PID/stat. The name before them
// is the process's own choice and may hold anything, ")" included.
func parseStat(pid int, data []byte) (process, bool) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return process{}, false
	}
	fields := bytes.Fields(data[i+1:])
	if len(fields) < 2 {
		return process{}, false
	}
	ppid, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return process{}, false
	}
	state := fields[0][0]
	return process{
		pid: pid, ppid: ppid, zombie: state == 'Z' || state == 'X', stopped: state == 'T' || state == 't',
	}, true
}

// signalTree sends a signal to all descendants of this process.
func signalTree(sig unix.Signal) {
	for _, pid := range descendants(processTable(), os.Getpid()) {
		_ = unix.Kill(pid, sig) // it may be gone by now
	}
}

// stopPause lies between two looks of stopTree, of which there are at most
// stopLooks: a process that waits for a disk, or for a child that has not begun
// its program, does not stop.
const (
	stopPause = time.Millisecond
	stopLooks = 250
)

// stopTree stops all descendants of this process. It looks again until all have
// stopped, so that one that is just being born is not missed: what has been told
// to stop begins no fork, but may be in the midst of one until it has stopped.
func stopTree() {
	again := time.NewTicker(stopPause)
	defer again.Stop()
	told := map[int]bool{}
	for range stopLooks {
		if stopOnce(processTable(), os.Getpid(), told) {
			return
		}
		<-again.C
	}
}

// stopOnce tells the descendants that are not told yet to stop, and reports
// whether there are none, and all others have.
func stopOnce(table []process, of int, told map[int]bool) bool {
	stopped := make(map[int]bool, len(table))
	for _, p := range table {
		stopped[p.pid] = p.stopped
	}
	all := true
	for _, pid := range descendants(table, of) {
		all = all && told[pid] && stopped[pid]
		if !told[pid] {
			told[pid] = true
			_ = unix.Kill(pid, unix.SIGSTOP) // it may be gone by now
		}
	}
	return all
}

// terminateTree asks all descendants of this process to end, also those that
// were stopped: going on is what lets a process take the signal.
func terminateTree() {
	stopTree()
	signalTree(unix.SIGTERM)
	signalTree(unix.SIGCONT)
}

// killTree kills all descendants of this process. What is born all the same is
// caught when its parent is reaped and killTree is called again.
func killTree() {
	stopTree()
	signalTree(unix.SIGKILL)
}
