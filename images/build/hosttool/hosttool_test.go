package hosttool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMissingToolsNameTheirPackages(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Check("no-such-program-1", "no-such-program-2", "sh-but-not-here")
	var missing *MissingError
	if !errors.As(err, &missing) || len(missing.Tools) != 3 {
		t.Fatalf("error = %v, want *MissingError with three tools", err)
	}
	e := &MissingError{Tools: []Tool{Mke2fs, Debugfs, QemuImg}}
	if got := e.Error(); !strings.HasSuffix(got, "apt-get install --yes e2fsprogs qemu-utils") || !strings.Contains(got, "mke2fs, debugfs, qemu-img") {
		t.Errorf("error = %q", got)
	}
	if err := Run(t.Context(), Command{Tool: "no-such-program-1"}); !errors.As(err, &missing) {
		t.Errorf("Run: error = %v, want *MissingError", err)
	}
}

func TestOutput(t *testing.T) {
	got, err := Output(t.Context(), Command{Tool: "sh", Args: []string{"-c", "cat; echo $LC_ALL $EXTRA"}, Env: []string{"EXTRA=x"}, Stdin: strings.NewReader("in ")})
	if err != nil || got != "in C.UTF-8 x\n" {
		t.Errorf("Output() = %q, %v", got, err)
	}
}

// What changes what programs write must not come from whoever builds.
func TestEnvironmentOfTheCaller(t *testing.T) {
	got := environment([]string{
		"PATH=/bin", "https_proxy=http://p:1", "HTTP_PROXY=http://p:2", "No_Proxy=x", "PIP_INDEX_URL=https://i", "SSL_CERT_FILE=/c", "HOME=/h",
		"PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=/p", "LANG=de_DE.UTF-8", "LANGUAGE=de", "LC_ALL=C", "TZ=Asia/Tokyo", "SOURCE_DATE_EPOCH=1",
		"MKE2FS_CONFIG=/m", "PERL5LIB=/l", "TAR_OPTIONS=-v", "GZIP=-1", "XZ_OPT=-9", "DPKG_ROOT=/r", "PROXY=1", "PATHS=1", "=x",
	})
	want := []string{
		"PATH=/bin", "https_proxy=http://p:1", "HTTP_PROXY=http://p:2", "No_Proxy=x", "PIP_INDEX_URL=https://i", "SSL_CERT_FILE=/c", "HOME=/h",
		"LC_ALL=C.UTF-8", "TZ=UTC",
	}
	if !slices.Equal(got, want) {
		t.Errorf("environment = %q\nwant %q", got, want)
	}
}

func TestFailureHoldsTheEndOfStandardError(t *testing.T) {
	var lines []string
	err := Run(t.Context(), Command{
		Tool: "sh", Args: []string{"-c", "echo one >&2; printf 'two\\r\\nthree' >&2; exit 3"},
		Line: func(l string) { lines = append(lines, l) },
	})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.HasSuffix(err.Error(), "three") {
		t.Errorf("error = %v", err)
	}
	if got := strings.Join(lines, ","); got != "one,two,three" {
		t.Errorf("lines = %q", got)
	}
}

func TestLongOutputIsBounded(t *testing.T) {
	err := Run(t.Context(), Command{Tool: "sh", Args: []string{"-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo END >&2; exit 1"}})
	if err == nil || len(err.Error()) > maxTail+200 || !strings.HasSuffix(err.Error(), "END") {
		t.Errorf("error has %d bytes", len(err.Error()))
	}
}

// A program that ignores the interrupt, and the child it left, are both gone
// when Run returns.
func TestCancelEndsTheWholeGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	started := make(chan struct{})
	go func() {
		result <- Run(ctx, Command{
			Tool:  "sh",
			Args:  []string{"-c", `trap "" TERM; sh -c 'trap "" TERM; echo $$ > "$0"; echo ready >&2; while :; do sleep 60; done' "$0" & wait; wait`, pidFile},
			Line:  func(string) { close(started) },
			Grace: 100 * time.Millisecond,
		})
	}()
	<-started
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	// The child is not ours to wait for; it has been killed, and init reaps it.
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-deadline:
			t.Fatalf("process %d is still there", pid)
		case <-tick.C:
		}
	}
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
