// Package cgrouptest makes control groups for tests of what contains runs.
package cgrouptest

import (
	"crypto/rand"
	"os"
	"testing"
)

// Mounts are where a host may have cgroup v2.
func Mounts() []string {
	return []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
}

// Delegated makes a control group for one test, which must leave it empty.
func Delegated(t *testing.T) string {
	t.Helper()
	for _, mount := range Mounts() {
		dir := mount + "/sandbox-test-" + rand.Text()
		if os.Mkdir(dir, 0o755) != nil { //nolint:gosec // as the kernel makes them
			continue
		}
		if _, err := os.Stat(dir + "/cgroup.kill"); err != nil {
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() {
			_ = os.Remove(dir + "/sandbox.runs")
			if err := os.Remove(dir); err != nil {
				t.Errorf("the control group of the test is not empty: %v", err)
			}
		})
		return dir
	}
	t.Skip("no writable cgroup v2 here; run as root with: mount -t cgroup2 none /sys/fs/cgroup/unified")
	return ""
}
