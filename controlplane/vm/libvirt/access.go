package libvirt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
)

// Permission bits as in a file's mode for "others".
const (
	mayRead  = 4
	mayWrite = 2
	mayPass  = 1
)

// allowed reports whether the mode bits let a user do what want asks.
func allowed(user embedded.Identity, uid, gid uint32, mode os.FileMode, want os.FileMode) bool {
	bits := mode.Perm()
	switch {
	case int(uid) == user.UID:
		bits >>= 6
	case int(gid) == user.GID || slices.Contains(user.Groups, int(gid)):
		bits >>= 3
	}
	return bits&want == want
}

// permits looks at one file. A file with an access list is taken to permit:
// the mode does not tell, and QEMU will.
func permits(user embedded.Identity, path string, want os.FileMode) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false, fmt.Errorf("cannot read owner of %q", path)
	}
	if allowed(user, st.Uid, st.Gid, info.Mode(), want) {
		return true, nil
	}
	if want == mayWrite {
		return false, nil
	}
	size, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	return err == nil && size > 0, nil
}

// checkPass returns a fault when the user cannot pass through a directory or
// one of those above it.
func checkPass(user embedded.Identity, dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("cannot use directory %q: %w", dir, err)
	}
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(real, "/"), "/") {
		at = filepath.Join(at, part)
		ok, err := permits(user, at, mayPass)
		if err != nil {
			return fmt.Errorf("cannot use directory %q: %w", dir, err)
		}
		if !ok {
			return &instance.Fault{
				Blame: instance.Host, Code: "path.not_traversable",
				Hint: fmt.Sprintf("run: chmod a+x %s", at),
				Err:  fmt.Errorf("user %q, which runs the hypervisor, cannot pass through %q", user.Name, at),
			}
		}
	}
	return nil
}

// checkReadable returns a fault unless the user can read path.
func checkReadable(user embedded.Identity, path string) error {
	if !filepath.IsAbs(path) {
		return &instance.Fault{
			Blame: instance.Caller, Code: "spec.invalid",
			Err: fmt.Errorf("path %q is not absolute", path),
		}
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return &instance.Fault{
			Blame: instance.Host, Code: "image.missing", Hint: "build or fetch the image again",
			Err: fmt.Errorf("cannot find %q: %w", path, err),
		}
	}
	if err := checkPass(user, filepath.Dir(real)); err != nil {
		return err
	}
	ok, err := permits(user, real, mayRead)
	if err != nil {
		return fmt.Errorf("cannot use %q: %w", path, err)
	}
	if !ok {
		return &instance.Fault{
			Blame: instance.Host, Code: "image.unreadable",
			Hint: fmt.Sprintf("run: chmod a+r %s", real),
			Err:  fmt.Errorf("user %q, which runs the hypervisor, cannot read %q", user.Name, real),
		}
	}
	return nil
}

// checkShared is checkReadable for a file that many machines share: the
// hypervisor must not be able to write to it.
func checkShared(user embedded.Identity, path string) error {
	if err := checkReadable(user, path); err != nil {
		return err
	}
	writable, err := permits(user, path, mayWrite)
	if err != nil {
		return fmt.Errorf("cannot use %q: %w", path, err)
	}
	if writable {
		return &instance.Fault{
			Blame: instance.Host, Code: "image.writable",
			Hint: fmt.Sprintf("run: chmod a-w %s", path),
			Err:  fmt.Errorf("user %q, which runs the hypervisor, may write to the shared image %q", user.Name, path),
		}
	}
	return nil
}
