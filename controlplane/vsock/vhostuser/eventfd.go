package vhostuser

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// asEventFD takes a descriptor that the front-end calls an eventfd. Anything
// else could block us or be a file of someone else's, so it is refused.
func asEventFD(fd int) (*os.File, error) {
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || link != "anon_inode:[eventfd]" {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("descriptor is %q and not an eventfd", link)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot make an eventfd non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// signal adds one to an eventfd. A full one is a signal not yet taken, and
// never waited for.
func signal(f *os.File) {
	if f == nil {
		return
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	one := [8]byte{1}
	_ = rc.Write(func(fd uintptr) bool {
		_, _ = unix.Write(int(fd), one[:])
		return true
	})
}
