package libvirt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// diskLimit bounds one run of qemu-img.
const diskLimit = time.Minute

// diskInfo is the part of `qemu-img info` that decides whether a file may be
// the base of a machine.
type diskInfo struct {
	Format      string `json:"format"`
	VirtualSize int64  `json:"virtual-size"`
	Backing     string `json:"backing-filename"`
	Specific    struct {
		Data struct {
			DataFile string `json:"data-file"`
		} `json:"data"`
	} `json:"format-specific"`
}

// createOverlay makes a qcow2 disk on a read-only base. size is in bytes; 0
// keeps the base's.
func createOverlay(ctx context.Context, overlay, base string, size int64, uid, gid int) error {
	out, err := qemuImg(ctx, "info", "--force-share", "-f", "qcow2", "--output=json", base)
	if err != nil {
		return imageFault("image.unreadable", err, "build or fetch the image again")
	}
	var info diskInfo
	if err := json.Unmarshal(out, &info); err != nil {
		return fmt.Errorf("cannot read what qemu-img says about %q: %w", base, err)
	}
	switch {
	case info.Format != "qcow2":
		err = fmt.Errorf("root disk %q is %q, want qcow2", base, info.Format)
	case info.Backing != "" || info.Specific.Data.DataFile != "":
		err = fmt.Errorf("root disk %q refers to another file", base)
	case size != 0 && size < info.VirtualSize:
		err = fmt.Errorf("disk size %d is less than the image's %d", size, info.VirtualSize)
	}
	if err != nil {
		return imageFault("image.unsuitable", err, "use an image and a disk size that fit each other")
	}
	args := []string{"create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, overlay}
	if size != 0 {
		args = append(args, strconv.FormatInt(size, 10))
	}
	if _, err := qemuImg(ctx, args...); err != nil {
		return err
	}
	if err := os.Chmod(overlay, 0o600); err != nil {
		return fmt.Errorf("cannot protect overlay: %w", err)
	}
	if err := giveTo(overlay, uid, gid); err != nil {
		return fmt.Errorf("cannot give overlay to the hypervisor's user: %w", err)
	}
	return nil
}

func imageFault(code string, err error, hint string) error {
	return &instance.Fault{Blame: instance.Caller, Code: code, Hint: hint, Err: err}
}

func qemuImg(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, diskLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("cannot run qemu-img %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return nil, fmt.Errorf("cannot run qemu-img %s: %w", args[0], err)
}
