// Package boot is process 1 of a machine: it loads the kernel modules of the
// initramfs, mounts the root disk, switches to it, prepares what a process
// expects to find, and then stays as a small loop that starts the agent,
// reaps orphans and cuts the power.
//
// Nothing here may hang: whatever fails says so in one line on the console and
// powers the machine off, so that the host sees it end. The package must not
// know the wire or runs.
package boot

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// AgentCommand is the argument with which process 1 runs this program as the
// agent; what it must know comes on HandoverFD.
const AgentCommand = "machine"

// HandoverFD is where the agent finds its Handover.
const HandoverFD = 3

// Handover is what process 1 passes on to every agent it starts.
type Handover struct {
	Config agentv1.BootConfig `json:"config"`
	Marks  []Mark             `json:"marks"`
}

// Mark is one phase of the boot that has been completed.
type Mark struct {
	Name        string        `json:"name"`
	SinceKernel time.Duration `json:"since_kernel"` // on the monotonic clock
}

// MarkNow notes that a phase has been completed now.
func MarkNow(name string) Mark {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail with these arguments
	return Mark{Name: name, SinceKernel: time.Duration(ts.Nano())}
}

// Main is the whole life of process 1. It does not return.
func Main() {
	defer func() {
		if r := recover(); r != nil {
			fail(fmt.Errorf("internal error: %v", r))
		}
	}()
	h := Handover{Marks: []Mark{MarkNow("init")}}
	if err := prepare(&h); err != nil {
		fail(err)
	}
	debug.FreeOSMemory() // the modules are in the kernel now
	err := run(h)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sandbox-agent: %v\n", err)
	}
	powerOff()
}

// prepare takes the machine from an empty initramfs to its root disk.
func prepare(h *Handover) error {
	steps := []struct {
		name string
		do   func(*Handover) error
	}{
		{"mounts", mountKernel},
		{"config", readConfig},
		{"modules", func(*Handover) error { return loadModules(modulesDir) }},
		{"root", mountRoot},
		{"switch", func(*Handover) error { return switchRoot(newRoot) }},
		{"setup", setUp},
	}
	for _, s := range steps {
		if err := s.do(h); err != nil {
			return err
		}
		h.Marks = append(h.Marks, MarkNow(s.name))
	}
	return nil
}

func readConfig(h *Handover) error {
	data, err := os.ReadFile(agentv1.BootConfigPath)
	if err != nil {
		return fmt.Errorf("cannot read the boot configuration: %w", err)
	}
	h.Config, err = agentv1.ParseBootConfig(data)
	return err
}

// fail ends the machine with a reason on its console.
func fail(err error) {
	fmt.Fprintf(os.Stderr, "sandbox-agent: cannot boot: %v\n", err)
	powerOff()
}

// powerOff makes the disk safe and cuts the power. The processes are gone.
func powerOff() {
	unix.Sync()
	// A file system that is still in use stays as it is: it has been synced.
	_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	// The console is slow: what has been said shall be read.
	_ = unix.IoctlSetInt(int(os.Stderr.Fd()), unix.TCSBRK, 1)
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// Only a machine that cannot power off comes here. To end process 1 is
	// then the one way left to be seen to have ended.
	fmt.Fprintf(os.Stderr, "sandbox-agent: cannot power off: %v\n", err)
	os.Exit(1)
}

// mountKernel mounts what the kernel shows itself by.
func mountKernel(*Handover) error {
	return mountAll([]mount{
		{source: "proc", target: "/proc", kind: "proc", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{source: "sysfs", target: "/sys", kind: "sysfs", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{source: "devtmpfs", target: "/dev", kind: "devtmpfs", flags: unix.MS_NOSUID, data: "mode=0755"},
	})
}

// mount is one mount to make; its target is made first.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("cannot make mount point: %w", err)
		}
		err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data)
		// The kernel may have mounted devtmpfs by itself.
		if err != nil && !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("cannot mount %s at %q: %w", m.kind, m.target, err)
		}
	}
	return nil
}
