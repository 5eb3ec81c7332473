// Package embedded makes it safe to run libvirt's QEMU driver inside our own
// process, without libvirtd: a root directory with a path short enough and a
// lock of its own, a sweep of what a killed process left behind, settings that
// keep libvirt from changing the owner of shared files, reaping of adopted
// children, and libvirt's log lines in ours.
//
// It works on files and processes only. It does not call libvirt and knows no
// machine, image or instance.
package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
)

// ErrInUse is returned by Claim when another process holds the directory.
var ErrInUse = errors.New("another process uses this state directory")

// maxStateDir is the longest state directory whose libvirt monitor socket,
// <root>/lib/qemu/domain-<id>-<name>/monitor.sock, and whose vsock sockets
// still fit into a unix socket address of 107 bytes. Longer ones get an alias.
const maxStateDir = 43

// Root is a claimed state directory. The claim ends with Release or with the
// process.
type Root struct {
	// StateDir is the real path of the state directory.
	StateDir string
	// Base is StateDir, or a short symbolic link to it.
	Base string
	// Dir is where libvirt's driver keeps its own files, beneath Base.
	Dir  string
	lock *os.File
}

// Claim makes stateDir and libvirt's root in it, locks it against other
// processes and gives it a short path when its own is too long.
func Claim(stateDir string) (*Root, error) {
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, fmt.Errorf("cannot use state directory %q: %w", stateDir, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make state directory %q: %w", abs, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, fmt.Errorf("cannot use state directory %q: %w", abs, err)
	}
	dir := filepath.Join(real, "libvirt")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make libvirt's directory %q: %w", dir, err)
	}
	lock, err := lockFile(filepath.Join(dir, "sandbox.lock"))
	if err != nil {
		return nil, err
	}
	base := real
	if len(real) > maxStateDir {
		if base, err = alias(real); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return &Root{StateDir: real, Base: base, Dir: filepath.Join(base, "libvirt"), lock: lock}, nil
}

// Release gives the claim up. With forget the alias is removed as well, which
// is right only while no machine uses it.
func (r *Root) Release(forget bool) error {
	if forget && r.Base != r.StateDir {
		if target, err := os.Readlink(r.Base); err == nil && target == r.StateDir {
			_ = os.Remove(r.Base)
			_ = os.Remove(filepath.Dir(r.Base)) // only if it is empty
		}
	}
	if err := r.lock.Close(); err != nil {
		return fmt.Errorf("cannot release state directory %q: %w", r.StateDir, err)
	}
	return nil
}

// Names returns every path under which a process may know libvirt's root.
func (r *Root) Names() []string {
	names := []string{r.Dir}
	if r.Base != r.StateDir {
		names = append(names, filepath.Join(r.StateDir, "libvirt"))
	}
	return names
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock %q: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot lock %q: %w", path, ErrInUse)
		}
		return nil, fmt.Errorf("cannot lock %q: %w", path, err)
	}
	return f, nil
}

// alias returns a symbolic link to dir with a path of fixed, short length. The
// same directory always gets the same link, so that a later process finds the
// sockets of machines that still run.
func alias(dir string) (string, error) {
	home, err := aliasHome()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(dir))
	link := filepath.Join(home, hex.EncodeToString(sum[:8]))
	if target, err := os.Readlink(link); err == nil && target == dir {
		return link, nil
	}
	next := fmt.Sprintf("%s.%d", link, os.Getpid())
	_ = os.Remove(next)
	if err := os.Symlink(dir, next); err != nil {
		return "", fmt.Errorf("cannot link state directory %q: %w", dir, err)
	}
	if err := os.Rename(next, link); err != nil {
		_ = os.Remove(next)
		return "", fmt.Errorf("cannot link state directory %q: %w", dir, err)
	}
	return link, nil
}

// aliasHome returns a directory that only this user can write to.
func aliasHome() (string, error) {
	home, mode := "/run/agentic-sandbox", os.FileMode(0o755)
	if uid := os.Geteuid(); uid != 0 {
		mode = 0o700
		home = fmt.Sprintf("/tmp/agentic-sandbox-%d", uid)
		if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) && len(run) <= 16 {
			home = filepath.Join(run, "as")
		}
	}
	if err := os.Mkdir(home, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("cannot make directory %q for short paths: %w", home, err)
	}
	info, err := os.Lstat(home)
	if err != nil {
		return "", fmt.Errorf("cannot use directory %q for short paths: %w", home, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("cannot use %q for short paths: it must be a directory that only this user may write to", home)
	}
	return home, nil
}

// Identity is the user that hypervisor processes run as.
type Identity struct {
	Name   string
	UID    int
	GID    int
	Groups []int
}

// WriteConfig writes the driver's qemu.conf. An empty user name means that
// hypervisors run as the calling user.
//
// dynamic_ownership and remember_owner are off because libvirt would otherwise
// give shared base images, and even the host's kernel, to the hypervisor user.
func WriteConfig(root string, user Identity) error {
	lines := []string{
		"# Written at every start; changes are lost.",
		`stdio_handler = "file"`,
	}
	if user.Name != "" {
		lines = append(lines,
			fmt.Sprintf("user = \"+%d\"", user.UID),
			fmt.Sprintf("group = \"+%d\"", user.GID),
			"dynamic_ownership = 0",
			"remember_owner = 0",
			`security_driver = "none"`,
			"namespaces = []",
			"cgroup_controllers = []",
		)
	}
	dir := filepath.Join(root, "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make directory %q: %w", dir, err)
	}
	return atomicfile.Write(filepath.Join(dir, "qemu.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
