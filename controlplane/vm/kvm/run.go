package kvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds what is kept of a child's output.
const maxOutput = 64 << 10

// grace is how long a killed child may take to die. A process inside KVM_RUN
// may not die at all; then it is left to the kernel.
const grace = 2 * time.Second

// capture keeps the start of what is written to it and watches for a word.
type capture struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	alarm string // word that means that the run is over
	rang  chan struct{}
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Write(p[:min(len(p), maxOutput-c.buf.Len())])
	if c.alarm != "" && strings.Contains(c.buf.String(), c.alarm) {
		c.alarm = ""
		close(c.rang)
	}
	return len(p), nil
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// child is what became of a child process.
type child struct {
	out, err string
	code     int // -1: killed or never ended
	late     bool
	stuck    bool // it did not even die
}

// runChild runs cmd until it ends, says alarm on stderr, or the deadline has
// come, and returns soon after in every case.
func runChild(ctx context.Context, cmd *exec.Cmd, deadline time.Duration, alarm string) (child, error) {
	out := &capture{}
	errs := &capture{alarm: alarm, rang: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.WaitDelay = grace / 2
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	// Pdeathsig is bound to the thread that starts the child, and Go's threads
	// come and go: the goroutine that waits keeps its own.
	started, ended := make(chan error, 1), make(chan struct{})
	go waitLocked(cmd, started, ended)
	if err := <-started; err != nil {
		return child{}, err
	}
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	var c child
	select {
	case <-ended:
	case <-errs.rang:
	case <-timer.C:
		c.late = true
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	timer.Reset(grace)
	select {
	case <-ended:
		c.code = cmd.ProcessState.ExitCode()
	case <-timer.C:
		c.code, c.stuck = -1, true
	}
	c.out, c.err = out.String(), errs.String()
	return c, ctx.Err()
}

// waitLocked starts cmd and waits for it on a thread of its own.
func waitLocked(cmd *exec.Cmd, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = cmd.Wait() // the state is in cmd.ProcessState
	close(ended)
}

// probe runs the image by raw ioctls in a child process.
func (o Options) probe(ctx context.Context) (outcome, error) {
	res := outcome{way: "by ioctl"}
	cmd := exec.Command(o.ProbeCommand[0], o.ProbeCommand[1:]...) //nolint:noctx // runChild ends it
	cmd.Env = append(os.Environ(), probeDevice+"="+o.Device)
	c, err := runChild(ctx, cmd, o.Deadline, "")
	if cerr := ctx.Err(); cerr != nil {
		return res, cerr
	}
	if err != nil {
		res.setup, res.trouble, res.passing = true, err.Error(), true
		return res, nil
	}
	letters, rest, _ := strings.Cut(c.out, "\n")
	res.letters, res.late = letters, c.late
	var r report
	switch err := json.Unmarshal([]byte(rest), &r); {
	case c.stuck:
		res.trouble = "the probe cannot be killed"
	case c.late:
	case err != nil:
		res.trouble = fmt.Sprintf("the probe ended with status %d and no report: %.200q", c.code, c.err)
	default:
		res.pass, res.setup, res.trouble = r.Pass, r.Setup, r.Trouble
	}
	return res, nil
}

// qemu runs the image by QEMU with the given accelerator.
func (o Options) qemu(ctx context.Context, accel, cpu string) (outcome, error) {
	res := outcome{way: "by QEMU"}
	rom, err := romFile()
	if err != nil {
		res.setup, res.trouble, res.passing = true, err.Error(), true
		return res, nil
	}
	defer func() { _ = rom.Close() }()
	// The machine type of all our machines, with the one device each that the
	// image speaks to.
	cmd := exec.Command(o.QEMU, //nolint:noctx // runChild ends it
		"-machine", "q35,accel="+accel, "-cpu", cpu, "-m", "16", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-bios", "/proc/self/fd/3",
		"-chardev", "stdio,id=stage,signal=off", "-device", fmt.Sprintf("isa-debugcon,iobase=%#x,chardev=stage", portStage),
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=1", portExit))
	cmd.ExtraFiles = []*os.File{rom}
	if o.Credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.Credential}
	}
	c, err := runChild(ctx, cmd, o.Deadline, "KVM internal error")
	if cerr := ctx.Err(); cerr != nil {
		return res, cerr
	}
	if err != nil {
		res.setup, res.trouble, res.passing = true, err.Error(), true
		return res, nil
	}
	res.letters, res.late = c.out, c.late
	// isa-debug-exit makes 2v+1 of the value written.
	res.pass = c.code == exitPass<<1|1
	switch {
	case c.stuck:
		res.trouble = "QEMU cannot be killed"
	case !res.pass && c.err != "":
		res.trouble = firstLine(c.err)
		res.setup = c.out == "" && c.code == 1
	case !res.pass && !c.late:
		res.trouble = fmt.Sprintf("QEMU ended with status %d", c.code)
	}
	return res, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 200 {
		line = line[:200]
	}
	return line
}

// romFile holds the image without a name in any file system, readable by the
// user QEMU runs as.
func romFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("kvm-proof", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make image: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kvm-proof")
	_, err = f.Write(buildROM())
	if err = errors.Join(err, f.Chmod(0o444)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot make image: %w", err)
	}
	return f, nil
}
