package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/identity"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/workspace"
)

// CgroupMount is where the machine's control groups are.
const CgroupMount = "/sys/fs/cgroup"

// setUp makes the root disk a place where programs find what they expect.
func setUp(h *Handover) error {
	unix.Umask(0o022)
	const private = unix.MS_NOSUID | unix.MS_NODEV
	err := mountAll([]mount{
		{source: "tmpfs", target: "/run", kind: "tmpfs", flags: private, data: "mode=0755"},
		{source: "tmpfs", target: "/tmp", kind: "tmpfs", flags: private, data: "mode=1777"},
		{source: "tmpfs", target: "/dev/shm", kind: "tmpfs", flags: private, data: "mode=1777"},
		{
			source: "devpts", target: "/dev/pts", kind: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC,
			data: "gid=5,mode=0620,ptmxmode=0666",
		},
	})
	if err != nil {
		return err
	}
	if err := mountAll([]mount{{
		source: "cgroup2", target: CgroupMount, kind: "cgroup2", flags: private | unix.MS_NOEXEC, data: "nsdelegate",
	}}); err != nil {
		// Runs can be contained without; Hello says so.
		fmt.Fprintf(os.Stderr, "sandbox-agent: %v\n", err)
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot link %q: %w", name, err)
		}
	}
	if err := limitResources(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return identify(h.Config)
}

// identify makes the machine the one its configuration says it is.
func identify(c agentv1.BootConfig) error {
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return fmt.Errorf("cannot prepare /etc: %w", err)
	}
	if err := identity.SetHostname("/etc", c.Hostname); err != nil {
		return err
	}
	if err := identity.SetMachineID("/etc", c.InstanceID); err != nil {
		return err
	}
	if err := identity.EnsureUsers("/etc", c.Users); err != nil {
		return err
	}
	for _, u := range c.Users {
		home, err := workspace.MakeRoot(u.Home, workspace.Owner{UID: u.UID, GID: u.GID})
		if err != nil {
			return fmt.Errorf("cannot make the home of user %q: %w", u.Name, err)
		}
		_ = home.Close()
	}
	for _, d := range c.Directories {
		if err := makeDirectory(d); err != nil {
			return err
		}
	}
	return nil
}

// makeDirectory makes sure of a directory, its owner and its mode.
func makeDirectory(d agentv1.BootDirectory) error {
	root, err := workspace.MakeRoot(d.Path, workspace.Owner{Keep: true})
	if err != nil {
		return fmt.Errorf("cannot make directory %q: %w", d.Path, err)
	}
	defer root.Close()
	dir, err := root.OpenDir("")
	if err != nil {
		return fmt.Errorf("cannot make directory %q: %w", d.Path, err)
	}
	defer dir.Close()
	mode := d.Mode & 0o1777
	if mode == 0 {
		mode = 0o755
	}
	if err := errors.Join(unix.Fchown(int(dir.Fd()), d.UID, d.GID), unix.Fchmod(int(dir.Fd()), mode)); err != nil {
		return fmt.Errorf("cannot give directory %q to %d:%d: %w", d.Path, d.UID, d.GID, err)
	}
	return nil
}

// limitResources sets what every process of the machine inherits: many open
// files for those that ask, no core dumps.
func limitResources() error {
	const few, many = 1024, 512 << 10
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: many}); err != nil {
		return fmt.Errorf("cannot set the limit of open files: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("cannot set the limit of core dumps: %w", err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot bring up the loopback interface: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("cannot bring up the loopback interface: %w", err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("cannot bring up the loopback interface: %w", err)
	}
	return nil
}
