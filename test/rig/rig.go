// Package rig starts the real programs for tests, benchmarks and the demo: a
// sandboxd on a directory of its own, and sandboxctl against it. It drives
// them from outside, as a user would, and imports nothing of theirs.
package rig

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Environment variables that say where the built parts are; the Makefile sets
// them.
const (
	BinEnv    = "SANDBOX_BIN"         // directory of sandboxd, sandboxctl and sandbox-agent
	ImagesEnv = "SANDBOX_TEST_IMAGES" // image store
)

// ErrNotBuilt says that the programs or images were not built; its text names
// the command that does.
var ErrNotBuilt = errors.New("the programs or images are not built; run: make build images")

// readyTimeout bounds the start of a daemon: it probes the hypervisor once.
const readyTimeout = 3 * time.Minute

// stopTimeout bounds the end of a daemon.
const stopTimeout = 3 * time.Minute

// Options of a daemon.
type Options struct {
	// StateDir is made anew when empty, and removed by Remove.
	StateDir string
	// Bin is the directory of the programs; empty: that of BinEnv.
	Bin string
	// Images is the image store, used where it is; empty: that of ImagesEnv,
	// or a copy of it that the hypervisor can reach.
	Images string
	// Args are added to "serve", Env to its environment.
	Args []string
	Env  []string
	// Log receives the daemon's log; nil drops it.
	Log io.Writer
}

// Daemon is one running sandboxd.
type Daemon struct {
	URL      string
	StateDir string

	opts Options
	bin  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // how, once done
	tail *tail
}

// Start starts a daemon and waits until it is ready.
func Start(ctx context.Context, opts Options) (*Daemon, error) {
	bin, images, err := built(opts.Bin)
	if err != nil {
		return nil, err
	}
	d := &Daemon{opts: opts, bin: bin, StateDir: opts.StateDir}
	if d.StateDir == "" {
		if d.StateDir, err = stateDir(); err != nil {
			return nil, err
		}
	}
	if opts.Images != "" {
		images = opts.Images
	} else if images, err = Reachable(images, d.StateDir); err != nil {
		return nil, err
	}
	d.opts.Args = append([]string{"--image-dir", images}, opts.Args...)
	if err := d.Launch(ctx); err != nil {
		return nil, errors.Join(err, d.Remove())
	}
	return d, nil
}

// Built finds the programs and the image store of BinEnv and ImagesEnv, or those
// that make builds. The error is ErrNotBuilt where they are missing.
func Built() (bin, images string, err error) { return built("") }

func built(chosen string) (bin, images string, err error) {
	bin, images = cmp.Or(chosen, os.Getenv(BinEnv)), os.Getenv(ImagesEnv)
	if bin == "" || images == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", "", err
		}
		if bin == "" {
			bin = filepath.Join(root, ".build", "bin")
		}
		if images == "" {
			images = filepath.Join(root, ".build", "images")
		}
	}
	for _, p := range []string{filepath.Join(bin, "sandboxd"), filepath.Join(bin, "sandboxctl"), images} {
		if _, err := os.Stat(p); err != nil {
			return "", "", fmt.Errorf("%w (%w)", ErrNotBuilt, err)
		}
	}
	return bin, images, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("cannot find go.mod above the working directory")
		}
		dir = parent
	}
}

// stateDir makes a directory that an unprivileged hypervisor can pass through.
func stateDir() (string, error) {
	dir, err := os.MkdirTemp("", "sandbox-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) //nolint:gosec // the hypervisor's user must get through
}

var readyLine = regexp.MustCompile(`^sandboxd ready url=(\S+)`)

// Launch starts the process on the daemon's state directory, again after Kill
// or Stop, and waits until it is ready. Again means at the same address, where
// clients that lost it look for it.
func (d *Daemon) Launch(ctx context.Context) error {
	listen := "127.0.0.1:0"
	if d.URL != "" {
		listen = strings.TrimPrefix(d.URL, "http://")
	}
	args := append([]string{"serve", "--state-dir", d.StateDir, "--listen", listen, "--log-level", "debug"}, d.opts.Args...)
	d.cmd = exec.Command(filepath.Join(d.bin, "sandboxd"), args...) //nolint:noctx,gosec // it outlives ctx; Stop and Kill end it
	d.cmd.Env = append(append(os.Environ(), "SANDBOX_STATE_DIR="), d.opts.Env...)
	d.tail = &tail{also: d.opts.Log}
	d.cmd.Stderr = d.tail
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: 0, Setpgid: true}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("cannot start sandboxd: %w", err)
	}
	d.done = make(chan struct{})
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	timeout := time.NewTimer(readyTimeout)
	defer timeout.Stop()
	select {
	case d.URL = <-ready:
		return nil
	case <-d.done:
		return fmt.Errorf("sandboxd ended before it was ready: %w\n%s", d.err, d.tail)
	case <-timeout.C:
		err = fmt.Errorf("sandboxd was not ready within %s", readyTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return fmt.Errorf("%w\n%s", err, errors.Join(d.Kill(), errors.New(d.tail.String())))
}

// Kill ends the process as a crash would.
func (d *Daemon) Kill() error { return d.end(syscall.SIGKILL) }

// Stop ends the process in order.
func (d *Daemon) Stop() error { return d.end(syscall.SIGTERM) }

func (d *Daemon) end(sig syscall.Signal) error {
	if d.cmd == nil || d.cmd.Process == nil {
		return nil
	}
	select {
	case <-d.done:
		return nil
	default:
	}
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-d.done:
	case <-timeout.C:
		return errors.Join(fmt.Errorf("sandboxd did not end within %s\n%s", stopTimeout, d.tail), d.cmd.Process.Kill())
	}
	if sig == syscall.SIGTERM && d.err != nil {
		return fmt.Errorf("sandboxd ended with: %w\n%s", d.err, d.tail)
	}
	return nil
}

// Log returns the end of the daemon's log.
func (d *Daemon) Log() string { return d.tail.String() }

// Pid is the daemon's process id.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Remove kills the machines that were left behind, so that one failed test
// does not slow all others, and deletes the state directory. The daemon must
// have ended.
func (d *Daemon) Remove() error {
	left, err := processesNaming(d.StateDir)
	if err != nil {
		return err
	}
	for _, p := range left {
		var pid int
		if _, err := fmt.Sscanf(p, "process %d:", &pid); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
	}
	return os.RemoveAll(d.StateDir)
}

// Leftovers lists what a daemon that removed its machines and stopped should
// not have left: processes that name its state directory, sockets and files of
// machines in it.
func (d *Daemon) Leftovers() ([]string, error) {
	left, err := processesNaming(d.StateDir)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(d.StateDir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type()&os.ModeSocket != 0 || strings.Contains(path, "/machines/") {
			left = append(left, path)
		}
		return nil
	})
	return left, err
}

// Machines lists the processes of the daemon's machines.
func (d *Daemon) Machines() ([]string, error) {
	all, err := processesNaming(d.StateDir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p string) bool { return !strings.Contains(p, "guest=") }), nil
}

// Peak is the most memory the daemon has held so far, in bytes.
func (d *Daemon) Peak() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Pid()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("cannot read the peak of process %d: %w", d.Pid(), err)
	}
	return kib << 10, nil
}

// processesNaming lists the processes with s on their command line, this one
// and its parents excepted.
func processesNaming(s string) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !bytes.Contains(cmdline, []byte(s)) {
			continue // ended meanwhile, or no process at all
		}
		line := bytes.ReplaceAll(cmdline[:min(len(cmdline), 160)], []byte{0}, []byte{' '})
		found = append(found, fmt.Sprintf("process %s: %s", e.Name(), line))
	}
	return found, nil
}

// tail keeps the end of what is written to it.
type tail struct {
	also io.Writer

	mu  sync.Mutex
	buf []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*tailSize {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-tailSize:]...)
	}
	t.mu.Unlock()
	if t.also != nil {
		return t.also.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-tailSize):])
}
