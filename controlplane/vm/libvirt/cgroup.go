package libvirt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

const (
	// overhead is what a hypervisor needs beside the guest's memory, in bytes:
	// translated code above all, where there is no KVM.
	overhead = 384 << 20
	// cpuPeriod is the period of cpu.max, in microseconds.
	cpuPeriod = 100_000
)

// placeInCgroup makes dir, sets limits as far as the controllers are there,
// and moves the process into it.
func placeInCgroup(dir string, pid, cpus int, memory int64) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make cgroup: %w", err)
	}
	limits := []struct{ file, value string }{
		{"memory.max", strconv.FormatInt(memory+overhead, 10)},
		{"memory.swap.max", "0"},
		// One processor more, for the hypervisor's own threads.
		{"cpu.max", fmt.Sprintf("%d %d", (cpus+1)*cpuPeriod, cpuPeriod)},
	}
	for _, l := range limits {
		err := os.WriteFile(filepath.Join(dir, l.file), []byte(l.value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("cannot set %s of cgroup: %w", l.file, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("cannot move the hypervisor into its cgroup: %w", err)
	}
	return nil
}

func (m *machine) removeCgroup() error {
	if m.cgroup() == "" {
		return nil
	}
	if err := os.Remove(m.cgroup()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove cgroup: %w", err)
	}
	return nil
}
