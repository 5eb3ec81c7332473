// Package hosttool runs the programs of the host that building an image
// needs, and names the package to install when one of them is missing.
//
// Programs are run without a shell, in a fixed environment, and are ended
// with everything they started when the context ends. The package must not
// know what any program is for.
package hosttool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Tool is the name of a program.
type Tool string

// The programs that building needs.
const (
	Mmdebstrap Tool = "mmdebstrap"
	DpkgDeb    Tool = "dpkg-deb"
	AptConfig  Tool = "apt-config"
	Python     Tool = "python3"
	XZ         Tool = "xz"
	Mke2fs     Tool = "mke2fs"
	Debugfs    Tool = "debugfs"
	E2fsck     Tool = "e2fsck"
	QemuImg    Tool = "qemu-img"
	NewUIDMap  Tool = "newuidmap" // mmdebstrap needs it when it is not root
)

// Package returns the Debian or Ubuntu package that holds the program.
func (t Tool) Package() string {
	switch t {
	case DpkgDeb:
		return "dpkg"
	case AptConfig:
		return "apt"
	case Python:
		return "python3-pip"
	case XZ:
		return "xz-utils"
	case Mke2fs, Debugfs, E2fsck:
		return "e2fsprogs"
	case QemuImg:
		return "qemu-utils"
	case NewUIDMap:
		return "uidmap"
	default:
		return string(t)
	}
}

// MissingError says which programs are not there and how to get them.
type MissingError struct {
	Tools []Tool
}

// Error names every missing program and one command that installs them all.
func (e *MissingError) Error() string {
	var names, packages []string
	seen := map[string]bool{}
	for _, t := range e.Tools {
		names = append(names, string(t))
		if p := t.Package(); !seen[p] {
			seen[p] = true
			packages = append(packages, p)
		}
	}
	return fmt.Sprintf("cannot find %s on this host; install it with: %s", strings.Join(names, ", "), installCommand(packages))
}

func installCommand(packages []string) string {
	sudo := ""
	if os.Geteuid() != 0 {
		sudo = "sudo "
	}
	return sudo + "apt-get install --yes " + strings.Join(packages, " ")
}

// Check returns a *MissingError when any of the tools is not on this host.
func Check(tools ...Tool) error {
	var missing []Tool
	for _, t := range tools {
		if _, err := t.path(); err != nil {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 {
		return &MissingError{Tools: missing}
	}
	return nil
}

// path finds the program, also where users other than root do not look.
func (t Tool) path() (string, error) {
	if p, err := exec.LookPath(string(t)); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		p := filepath.Join(dir, string(t))
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", &MissingError{Tools: []Tool{t}}
}

// Command is one run of a tool.
type Command struct {
	Tool Tool
	Args []string
	Dir  string
	// Env is added to what the environment has of the caller's: where things
	// are and how servers are reached. The locale and the time zone are fixed.
	Env    []string
	Stdin  io.Reader
	Stdout io.Writer
	// Line, when set, is given every line of the standard error as it comes.
	Line func(string)
	// Grace is how long the program may take to clean up after an interrupt
	// before it is killed; 10 s when zero.
	Grace time.Duration
}

// maxTail bounds what of a program's standard error becomes part of an error.
const maxTail = 4 << 10

// Run runs the command to its end. The error of a failed run holds the end of
// its standard error.
func Run(ctx context.Context, c Command) error {
	path, err := c.Tool.path()
	if err != nil {
		return err
	}
	grace := c.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	cmd := exec.CommandContext(ctx, path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(environment(os.Environ()), c.Env...)
	cmd.Stdin = c.Stdin
	cmd.Stdout = c.Stdout
	log := &stderrLog{line: c.Line}
	cmd.Stderr = log
	// A group of its own, so that a terminal's interrupt reaches us first and
	// everything the program started can be ended together.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err = cmd.Run()
	log.flush()
	if ctx.Err() != nil {
		// What ignored the interrupt must not go on writing.
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return fmt.Errorf("cannot finish %s: %w", c.Tool, context.Cause(ctx))
	}
	if err != nil {
		var exit *exec.ExitError
		if tail := strings.TrimSpace(log.tail()); tail != "" && errors.As(err, &exit) {
			return fmt.Errorf("cannot run %s: %w\n%s", c.Tool, err, tail)
		}
		return fmt.Errorf("cannot run %s: %w", c.Tool, err)
	}
	return nil
}

// Output runs the command and returns its standard output, at most 1 MiB.
func Output(ctx context.Context, c Command) (string, error) {
	var out bytes.Buffer
	c.Stdout = &limited{w: &out, left: 1 << 20}
	err := Run(ctx, c)
	return out.String(), err
}

// limited drops what is too much.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// stderrLog passes lines on and keeps the end of them.
type stderrLog struct {
	mu   sync.Mutex
	line func(string)
	part []byte
	kept []byte
}

func (l *stderrLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if len(l.kept) > maxTail {
		l.kept = append(l.kept[:0], l.kept[len(l.kept)-maxTail:]...)
	}
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexAny(l.part, "\r\n")
		if i < 0 {
			break
		}
		l.emit(string(l.part[:i]))
		l.part = l.part[i+1:]
	}
	if len(l.part) > maxTail {
		l.part = l.part[:0]
	}
	return len(p), nil
}

func (l *stderrLog) emit(line string) {
	if line = strings.TrimSpace(line); line != "" && l.line != nil {
		l.line(line)
	}
}

func (l *stderrLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.emit(string(l.part))
	l.part = nil
}

func (l *stderrLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}
