package serve

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// clockTick is USER_HZ, the unit of /proc/stat, the same on every Linux that
// Go runs on.
const clockTick = time.Second / 100

// readStats gathers a snapshot of the machine from the kernel.
func readStats() (*agentv1.StatsResponse, error) {
	up, err := sinceKernel()
	if err != nil {
		return nil, fmt.Errorf("cannot read uptime: %w", err)
	}
	st := &agentv1.StatsResponse{Uptime: durationpb.New(up), Time: timestamppb.Now()}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read memory: %w", err)
	}
	st.MemoryTotal = memoryField(string(memory), "MemTotal:")
	st.MemoryAvailable = memoryField(string(memory), "MemAvailable:")
	var disk unix.Statfs_t
	if err := unix.Statfs("/", &disk); err != nil {
		return nil, fmt.Errorf("cannot read the size of the root file system: %w", err)
	}
	st.DiskTotal = disk.Blocks * uint64(disk.Frsize)
	st.DiskAvailable = disk.Bavail * uint64(disk.Frsize)
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(load), " ")
		st.Load1, _ = strconv.ParseFloat(first, 64)
	}
	if stat, err := os.ReadFile("/proc/stat"); err == nil {
		st.CpuBusy = durationpb.New(cpuBusy(string(stat)))
	}
	return st, nil
}

// memoryField reads one field of /proc/meminfo, in bytes.
func memoryField(meminfo, name string) uint64 {
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			f := strings.Fields(rest)
			if len(f) == 0 {
				return 0
			}
			kib, _ := strconv.ParseUint(f[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// cpuBusy sums what all CPUs have spent on anything but idling and waiting.
// Guest time is part of user time already.
func cpuBusy(stat string) time.Duration {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0
	}
	var ticks uint64
	for i, v := range f[1:9] {
		if i == 3 || i == 4 { // idle, iowait
			continue
		}
		n, _ := strconv.ParseUint(v, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}
