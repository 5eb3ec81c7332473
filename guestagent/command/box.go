package command

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// launch is everything needed to start one main process.
type launch struct {
	Path string   `json:"path"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	// Switch says that the process runs as another account than the agent.
	Switch bool  `json:"switch,omitempty"`
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"`
	// NoNewPrivs keeps set-id programs from giving the process more than its
	// account has.
	NoNewPrivs bool `json:"no_new_privs"`

	memoryMax uint64
	pidsMax   uint32
	cwd       *os.File
	stdio     [3]*os.File
}

// procExit is how the main process ended.
type procExit struct {
	code   int
	signal syscall.Signal // 0: by itself
	lost   bool           // nobody can know
}

// usage is what a box has used once it is empty.
type usage struct {
	cpu        time.Duration
	memoryPeak uint64
	oomKilled  bool
}

// box holds one run: its main process and all descendants.
type box interface {
	// launch starts the main process. It is called once; when it fails the
	// box is gone.
	launch(l launch) error
	// exited delivers once, when the main process has ended.
	exited() <-chan procExit
	// emptied delivers once, after exited, when no process is left. The box
	// is then gone.
	emptied() <-chan usage
	// terminate sends SIGTERM to every process.
	terminate() error
	// kill kills every process. It does not wait.
	kill() error
}

// sysProcAttr is how the main process differs from the agent.
func (l *launch) sysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if l.Switch {
		groups := make([]uint32, 0, len(l.Groups))
		for _, g := range l.Groups {
			groups = append(groups, uint32(g))
		}
		attr.Credential = &syscall.Credential{Uid: uint32(l.UID), Gid: uint32(l.GID), Groups: groups}
	}
	return attr
}

// onMarkedThread calls start on a thread of its own, with no_new_privs set
// where asked for: the mark is inherited by what start forks and cannot be
// taken back, so the thread ends with it.
func onMarkedThread(noNewPrivs bool, start func() error) error {
	if !noNewPrivs {
		return start()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = start()
		}
		result <- err
	}()
	return <-result
}
