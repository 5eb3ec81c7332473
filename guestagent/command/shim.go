package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RunShim is the whole life of a run's supervisor process: it starts the main
// process, adopts every orphan of it, and ends when none is left. When its
// control closes, because the agent has died, it kills them all. It expects
// the descriptors that shimBox.launch hands over and returns when all is done.
func RunShim() error {
	// The death signal of the main process follows the thread that forked it,
	// so this must be the thread that lives as long as the shim.
	runtime.LockOSThread()
	for fd := shimControl; fd <= shimCwd; fd++ {
		unix.CloseOnExec(fd)
	}
	control := os.NewFile(shimControl, "control")
	orders := json.NewDecoder(control)
	reports := json.NewEncoder(control)
	l, err := readLaunch(orders)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	if l.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot give up new privileges: %w", err)
		}
	}
	attr := l.sysProcAttr()
	attr.Pdeathsig = unix.SIGKILL
	pid, err := syscall.ForkExec(l.Path, l.Argv, &syscall.ProcAttr{
		Dir:   "/proc/self/fd/" + strconv.Itoa(shimCwd),
		Env:   l.Env,
		Files: []uintptr{shimStdio, shimStdio + 1, shimStdio + 2},
		Sys:   attr,
	})
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return reports.Encode(shimReport{Errno: int(errno)})
	}
	for fd := shimStdio; fd <= shimCwd; fd++ {
		_ = unix.Close(fd) // or the pipes would never end
	}
	if err := reports.Encode(shimReport{Started: true}); err != nil {
		killTree()
	}
	return supervise(pid, orders, reports)
}

// supervise reaps until no descendant is left.
func supervise(main int, orders *json.Decoder, reports *json.Encoder) error {
	var killing atomic.Bool
	go obey(orders, &killing) // ends with this process
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		for err == nil && pid > 0 {
			if pid == main {
				e := exitOf(ws)
				// Without the agent there is nobody to tell; obey sees to it.
				_ = reports.Encode(shimReport{Exited: &shimExit{Code: e.code, Signal: int(e.signal)}})
			}
			pid, err = syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		}
		if errors.Is(err, syscall.ECHILD) {
			break
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("cannot wait for the processes of a run: %w", err)
		}
		if killing.Load() {
			killTree()
		}
	}
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ru); err != nil {
		return fmt.Errorf("cannot read the usage of a run: %w", err)
	}
	cpu := time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return reports.Encode(shimReport{Empty: &shimEnd{CPU: cpu, MemoryPeak: uint64(ru.Maxrss) << 10}})
}

// obey carries out the agent's orders and, when the agent is gone, the last
// one it would have given.
func obey(orders *json.Decoder, killing *atomic.Bool) {
	for {
		var o shimOrder
		if err := orders.Decode(&o); err != nil {
			killing.Store(true)
			killTree()
			return
		}
		switch o.Signal {
		case "term":
			terminateTree()
		case "kill":
			killing.Store(true)
			killTree()
		}
	}
}
