package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ShimCommand is the argument with which this program becomes the supervisor
// of one run; see RunShim.
const ShimCommand = "exec-shim"

// Descriptors of the shim, beside 0 to 2.
const (
	shimControl = 3 // the agent's end of it closes when the agent dies
	shimStdio   = 4 // and 5 and 6: those of the main process
	shimCwd     = 7
)

// shimOrder is what the agent says to the shim.
type shimOrder struct {
	Launch *launch `json:"launch,omitempty"`
	// Signal is "term" or "kill".
	Signal string `json:"signal,omitempty"`
}

// shimReport is what the shim says to the agent.
type shimReport struct {
	Started bool `json:"started,omitempty"`
	// Errno says why the main process could not be started.
	Errno  int       `json:"errno,omitempty"`
	Exited *shimExit `json:"exited,omitempty"`
	Empty  *shimEnd  `json:"empty,omitempty"`
}

type shimExit struct {
	Code   int `json:"code"`
	Signal int `json:"signal"`
}

type shimEnd struct {
	CPU        time.Duration `json:"cpu"`
	MemoryPeak uint64        `json:"memory_peak"`
}

// shimBox holds a run below a process of its own that adopts every orphan.
type shimBox struct {
	conn   *net.UnixConn
	orders *json.Encoder
	exit   chan procExit
	empty  chan usage
}

func newShimBox() box {
	return &shimBox{exit: make(chan procExit, 1), empty: make(chan usage, 1)}
}

func (b *shimBox) exited() <-chan procExit { return b.exit }
func (b *shimBox) emptied() <-chan usage   { return b.empty }

func (b *shimBox) launch(l launch) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, ours.Close(), theirs.Close())
	}
	shim, err := os.StartProcess("/proc/self/exe", []string{"sandbox-agent", ShimCommand}, &os.ProcAttr{
		Env:   []string{},
		Files: []*os.File{null, null, os.Stderr, theirs, l.stdio[0], l.stdio[1], l.stdio[2], l.cwd},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	_ = theirs.Close()
	_ = null.Close()
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("cannot start the supervisor of a run: %w", err)
	}
	b.conn = ours
	b.orders = json.NewEncoder(ours)
	reports := json.NewDecoder(ours)
	var first shimReport
	err = b.orders.Encode(shimOrder{Launch: &l})
	if err == nil {
		err = reports.Decode(&first)
	}
	if err != nil || !first.Started {
		_ = ours.Close()
		_, _ = shim.Wait() // it ends because its control has ended
		if err == nil {
			return startFailure(l.Argv[0], l.Path, syscall.Errno(first.Errno))
		}
		return fmt.Errorf("cannot start the supervisor of a run: %w", err)
	}
	go b.watch(shim, reports)
	return nil
}

// watch passes on what the shim reports. It ends with the shim, which the
// run's owner sees to.
func (b *shimBox) watch(shim *os.Process, reports *json.Decoder) {
	var (
		u      usage
		exited bool
	)
	for {
		var r shimReport
		if err := reports.Decode(&r); err != nil {
			break // the shim has ended
		}
		if r.Exited != nil && !exited {
			exited = true
			b.exit <- procExit{code: r.Exited.Code, signal: syscall.Signal(r.Exited.Signal)}
		}
		if r.Empty != nil {
			u = usage{cpu: r.Empty.CPU, memoryPeak: r.Empty.MemoryPeak}
		}
	}
	_, _ = shim.Wait() // its reports are all we need of it
	_ = b.conn.Close()
	if !exited {
		b.exit <- procExit{lost: true} // somebody has killed the shim
	}
	b.empty <- u
}

func (b *shimBox) terminate() error { return b.order("term") }
func (b *shimBox) kill() error      { return b.order("kill") }

func (b *shimBox) order(signal string) error {
	err := b.orders.Encode(shimOrder{Signal: signal})
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("cannot signal a run: %w", err)
	}
	return nil
}

// socketPair makes a connected pair; the second end is for a child.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make the control of a run: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "control")
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(errors.New("cannot make the control of a run: not a unix socket"), conn.Close(), theirs.Close())
	}
	return unixConn, theirs, nil
}

// errNoLaunch ends a shim that was never told what to run.
var errNoLaunch = errors.New("no launch order came")

func readLaunch(orders *json.Decoder) (*launch, error) {
	var o shimOrder
	if err := orders.Decode(&o); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the launch order: %w", err)
	}
	if o.Launch == nil {
		return nil, errNoLaunch
	}
	return o.Launch, nil
}
