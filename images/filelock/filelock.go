// Package filelock lets one process at a time do something, by a lock on a
// file that ends with the process that holds it.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lock waits until no other process, and no other caller in this one, holds
// the lock on the file, which is made when it is not there. The caller must
// call unlock.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot lock: %w", err)
	}
	if err := wait(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %q: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing lets go of the lock
}

// wait asks for the lock again and again, because the system call that waits
// for it cannot be told to give up.
func wait(ctx context.Context, f *os.File) error {
	const again = 20 * time.Millisecond
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
