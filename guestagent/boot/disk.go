package boot

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

const (
	newRoot      = "/newroot"
	diskPatience = 10 * time.Second
	diskInterval = 5 * time.Millisecond
)

// mountRoot finds the root disk, mounts it and lets its file system fill it.
func mountRoot(h *Handover) error {
	serial := h.Config.RootSerial
	if serial == "" {
		serial = agentv1.RootDiskSerial
	}
	device, err := findDisk("/sys/block", serial)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return fmt.Errorf("cannot make mount point: %w", err)
	}
	if err := unix.Mount(device, newRoot, "ext4", unix.MS_RELATIME, ""); err != nil {
		return fmt.Errorf("cannot mount root disk %q as ext4: %w", device, err)
	}
	if err := grow(device, newRoot); err != nil {
		// A smaller disk than asked for is a machine that works.
		fmt.Fprintf(os.Stderr, "sandbox-agent: %v\n", err)
	}
	return nil
}

// findDisk finds the block device with a serial number. Drivers probe their
// devices while they are loaded, so it is normally there at once.
func findDisk(sys, serial string) (string, error) {
	limit := time.NewTimer(diskPatience)
	defer limit.Stop()
	again := time.NewTicker(diskInterval)
	defer again.Stop()
	for {
		seen := map[string]string{}
		names, _ := filepath.Glob(filepath.Join(sys, "*", "serial"))
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			disk := filepath.Base(filepath.Dir(name))
			seen[disk] = strings.TrimSpace(string(data))
			if seen[disk] == serial {
				return "/dev/" + disk, nil
			}
		}
		select {
		case <-again.C:
		case <-limit.C:
			return "", fmt.Errorf("cannot find the root disk: no disk has serial %q, the disks are %q", serial, seen)
		}
	}
}

// grow lets an ext4 file system that is mounted fill its device.
func grow(device, mounted string) error {
	disk, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("cannot grow the root file system: %w", err)
	}
	defer disk.Close()
	size, err := disk.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("cannot grow the root file system: %w", err)
	}
	super := make([]byte, 1024)
	if _, err := disk.ReadAt(super, 1024); err != nil {
		return fmt.Errorf("cannot grow the root file system: %w", err)
	}
	have, block := ext4Size(super)
	want := uint64(size) / block
	// Less than one block group more cannot be used anyway.
	if want < have+8*block {
		return nil
	}
	dir, err := os.Open(mounted)
	if err != nil {
		return fmt.Errorf("cannot grow the root file system: %w", err)
	}
	defer dir.Close()
	const resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), resizeFS, uintptr(unsafe.Pointer(&want))); errno != 0 {
		return fmt.Errorf("cannot grow the root file system from %d to %d blocks: %w", have, want, errno)
	}
	return nil
}

// ext4Size reads the number of blocks and their size from a superblock.
func ext4Size(super []byte) (blocks, size uint64) {
	const (
		offBlocksLow  = 0x4
		offLogSize    = 0x18
		offIncompat   = 0x60
		offBlocksHigh = 0x150
		incompat64Bit = 0x80
	)
	le := binary.LittleEndian
	blocks = uint64(le.Uint32(super[offBlocksLow:]))
	if le.Uint32(super[offIncompat:])&incompat64Bit != 0 {
		blocks |= uint64(le.Uint32(super[offBlocksHigh:])) << 32
	}
	return blocks, 1024 << (le.Uint32(super[offLogSize:]) & 7)
}
