// Package doctor looks at this host by itself, without a server: what
// machines need, whether it is there, and the command that mends what is not.
// It changes nothing and starts no machine. It knows no management API and
// prints nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
)

// Check is one thing that was looked at.
type Check struct {
	Name string
	// Status is one of OK, Warning and Error.
	Status string
	Detail string
	// Remedy is the command or step that mends it; empty when all is well.
	Remedy string
}

// How a check can end.
const (
	OK      = "ok"
	Warning = "warning" // machines can be made
	Error   = "error"   // they cannot
)

// Options of an examination.
type Options struct {
	// StateDir is the daemon's; empty: where one would keep it.
	StateDir string
	// Path is searched for programs; empty: $PATH.
	Path string
	// LibvirtDrivers are patterns of where libvirt keeps its drivers; empty:
	// the usual ones.
	LibvirtDrivers []string
	// Dev is the directory of devices; empty: /dev.
	Dev string
	// User is whom QEMU runs as when the daemon is root; empty: sandbox-qemu.
	User string
}

const (
	installIt   = "deploy/setup/install.sh, or: apt-get install "
	defaultUser = "sandbox-qemu"
	lowDisk     = 5 << 30 // bytes
	askTimeout  = 5 * time.Second
)

// Local looks at everything there is, worst first.
func Local(ctx context.Context, o Options) []Check {
	if o.StateDir == "" {
		o.StateDir = stateDir()
	}
	if o.Path == "" {
		o.Path = os.Getenv("PATH")
	}
	o.Dev, o.User = cmp.Or(o.Dev, "/dev"), cmp.Or(o.User, defaultUser)
	if len(o.LibvirtDrivers) == 0 {
		o.LibvirtDrivers = []string{
			"/usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so", "/usr/lib*/libvirt/connection-driver/libvirt_driver_qemu.so",
		}
	}
	checks := []Check{
		daemon(o), qemu(ctx, o), libvirt(o), accelerator(o), guestVsock(o), disk(o.StateDir),
	}
	if os.Getuid() == 0 {
		checks = append(checks, account(o.User))
	}
	checks = append(checks, Permissions(o.StateDir, filepath.Join(o.StateDir, "images"))...)
	rank := map[string]int{Error: 0, Warning: 1, OK: 2}
	slices.SortStableFunc(checks, func(a, b Check) int { return cmp.Compare(rank[a.Status], rank[b.Status]) })
	return checks
}

// stateDir is that of a daemon that was here, else where one would begin.
func stateDir() string {
	dirs := localhost.SearchDirs()
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	if dir, err := localhost.DefaultStateDir(); err == nil {
		return dir
	}
	return dirs[0]
}

// program finds one beside this program, or in the path.
func (o Options) program(name string) (string, bool) {
	dirs := filepath.SplitList(o.Path)
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

func daemon(o Options) Check {
	path, ok := o.program("sandboxd")
	if !ok {
		return Check{"sandboxd", Error, "it is neither beside sandboxctl nor in PATH", "make build && make install"}
	}
	return Check{"sandboxd", OK, path, ""}
}

func qemu(ctx context.Context, o Options) Check {
	const name = "qemu-system-x86_64"
	path, ok := o.program(name)
	if !ok {
		return Check{"qemu", Error, "there is no " + name + " in PATH", installIt + "qemu-system-x86 qemu-utils"}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output() //nolint:gosec // the hypervisor itself
	if err != nil {
		return Check{"qemu", Error, fmt.Sprintf("%s does not say its version: %v", path, err), installIt + "--reinstall qemu-system-x86"}
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return Check{"qemu", OK, line, ""}
}

func libvirt(o Options) Check {
	for _, pattern := range o.LibvirtDrivers {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return Check{"libvirt", OK, "runs inside sandboxd by " + found[0], ""}
		}
	}
	return Check{"libvirt", Error, "its driver for QEMU is not installed", installIt + "libvirt-daemon-driver-qemu"}
}

func account(name string) Check {
	if _, err := user.Lookup(name); err != nil {
		return Check{"hypervisor user", Error, "there is no user " + name + ", as whom QEMU runs when sandboxd is root",
			"deploy/setup/install.sh, or: useradd --system --no-create-home --shell /usr/sbin/nologin " + name}
	}
	return Check{"hypervisor user", OK, "QEMU runs as " + name, ""}
}

// disk measures where the state is, or will be.
func disk(dir string) Check {
	at := dir
	var st syscall.Statfs_t
	for {
		err := syscall.Statfs(at, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return Check{"disk", Error, fmt.Sprintf("cannot measure %q: %v", at, err), "choose another directory with --state-dir"}
		}
		at = filepath.Dir(at)
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // block counts fit
	c := Check{"disk", OK, fmt.Sprintf("%d GiB free for %s", free>>30, dir), ""}
	if free < lowDisk {
		c.Status, c.Remedy = Warning, "free some space, or choose another directory with --state-dir"
	}
	return c
}
