package vsock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Support says whether the kernel way can be used on this host.
type Support struct {
	Usable bool
	// Reason says why not; Remedy is a command or an action that mends it.
	// Both are empty when the way is usable.
	Reason string
	Remedy string
}

const vhostDevice = "/dev/vhost-vsock"

// vhostGetFeatures is VHOST_GET_FEATURES, _IOR(0xAF, 0x00, __u64).
const vhostGetFeatures = 0x8008af00

// Probe says whether this process can give a machine a kernel vhost-vsock
// device and dial it. It opens the device, and touches nothing else.
func Probe() Support { return probe(vhostDevice) }

func probe(device string) Support {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Support{
			Reason: fmt.Sprintf("the kernel has no AF_VSOCK sockets: %v", err),
			Remedy: "modprobe vhost_vsock",
		}
	}
	_ = unix.Close(fd)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return Support{
			Reason: fmt.Sprintf("cannot open %s: %v", device, err),
			Remedy: "modprobe vhost_vsock",
		}
	case errors.Is(err, fs.ErrPermission):
		return Support{
			Reason: fmt.Sprintf("cannot open %s: %v", device, err),
			Remedy: "add the user to the group that owns " + device + ", or run as root",
		}
	case err != nil:
		return Support{Reason: fmt.Sprintf("cannot open %s: %v", device, err)}
	}
	defer func() { _ = f.Close() }()
	if err := vhostAnswers(f); err != nil {
		return Support{Reason: fmt.Sprintf("%s does not answer as a vhost device: %v", device, err)}
	}
	return Support{Usable: true}
}

// vhostAnswers tells the device from a file that only has its name.
func vhostAnswers(f *os.File) error {
	var features uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), vhostGetFeatures, uintptr(unsafe.Pointer(&features)))
	if errno != 0 {
		return errno
	}
	return nil
}
