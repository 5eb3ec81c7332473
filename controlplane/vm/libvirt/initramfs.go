package libvirt

import (
	"errors"
	"fmt"
	"io"
	"os"

	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
)

// maxBootConfig bounds the boot configuration, in bytes.
const maxBootConfig = 1 << 20

// writeInitramfs copies base to path and appends the boot configuration as an
// archive of its own, which the kernel unpacks over the first. Only the
// hypervisor's user can read the result.
func writeInitramfs(path, base string, config []byte, uid, gid int) error {
	if len(config) > maxBootConfig {
		return fmt.Errorf("cannot write initramfs: boot configuration has %d bytes, at most %d are allowed", len(config), maxBootConfig)
	}
	segment := initramfs.BootConfigSegment(config)
	in, err := os.Open(base)
	if err != nil {
		return fmt.Errorf("cannot read initramfs: %w", err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write initramfs: %w", err)
	}
	n, err := io.Copy(out, in)
	if err == nil {
		// An archive must begin at a multiple of four bytes.
		_, err = out.Write(append(make([]byte, (4-n%4)%4), segment...))
	}
	if err == nil {
		err = giveTo(path, uid, gid)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("cannot write initramfs %q: %w", path, err)
	}
	return nil
}

// giveTo changes a file's owner when we are root.
func giveTo(path string, uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, uid, gid)
}
