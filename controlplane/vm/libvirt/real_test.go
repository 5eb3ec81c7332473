package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// isolatedVar names the test that a process was started for.
const isolatedVar = "SANDBOX_LIBVIRT_TEST"

// isolated runs the calling test in a process of its own and reports whether
// the caller is not in it: libvirt's driver knows one root per process.
func isolated(t *testing.T) (elsewhere bool) {
	t.Helper()
	if os.Getenv(isolatedVar) == t.Name() {
		return false
	}
	guestParts(t) // skip here, not there
	cmd := again(t, "")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("isolated test: %v", err)
	}
	return true
}

// phaseVar names the part that a process plays in a test of several.
const phaseVar = "SANDBOX_LIBVIRT_PHASE"

// again is a command that runs the same test in a new process.
func again(t *testing.T, phase string, env ...string) *exec.Cmd {
	t.Helper()
	args := []string{"-test.run", "^" + t.Name() + "$", "-test.v", "-test.timeout", "10m"}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), isolatedVar+"="+t.Name(), phaseVar+"="+phase), env...)
	return cmd
}

// uriVar runs the tests on another libvirt than the embedded one.
const uriVar = "SANDBOX_LIBVIRT_URI"

func openOn(t *testing.T, dir string, change func(*Config)) *Driver {
	t.Helper()
	cfg := Config{StateDir: dir, URI: os.Getenv(uriVar), Log: testLog(t)}
	if change != nil {
		change(&cfg)
	}
	d, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// boot makes and starts a machine that is gone without a trace at the end.
func bootTest(t *testing.T, d *Driver, spec vm.Spec) *machine {
	t.Helper()
	m := createTest(t, d, spec)
	if err := m.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	return m
}

func createTest(t *testing.T, d *Driver, spec vm.Spec) *machine {
	t.Helper()
	i, _, err := d.Create(within(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := i.(*machine)
	if !ok {
		t.Fatalf("created a %T", i)
	}
	t.Cleanup(func() { closeTest(t, d, m) })
	return m
}

func closeTest(t *testing.T, d *Driver, m *machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if t.Failed() {
		t.Logf("%+v", m.Diagnose(ctx))
	}
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, d, m.id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func waitTest(t *testing.T, m vm.Instance, want vm.ExitReason) {
	t.Helper()
	exit, err := m.Wait(within(t))
	if err != nil || exit.Reason != want {
		t.Errorf("machine ended as %+v, %v; want %s", exit, err, want)
	}
}

// TestMachine is one machine's life, and the ways it ends.
func TestMachine(t *testing.T) {
	if isolated(t) {
		return
	}
	g := guest(t)
	d := openOn(t, openDir(t), nil)
	id := newID(t)
	m := bootTest(t, d, g.spec(id))
	if got := ask(t, m, "hello"); got != "hello" {
		t.Errorf("guest says %q", got)
	}
	if diag := m.Diagnose(t.Context()); !strings.Contains(diag.Console, fmt.Sprintf("config {\"id\":%q} disk sandbox-root", id)) ||
		diag.State != "running" || diag.Facts["pid"] == "" || d.embedded() != strings.Contains(diag.Hypervisor, "-uuid "+string(id)) {
		t.Errorf("diagnosis is %+v", diag)
	}
	for _, end := range []struct {
		word string
		want vm.ExitReason
	}{{"poweroff", vm.ExitPowerOff}, {"restart", vm.ExitPowerOff}, {"panic", vm.ExitPanic}} {
		if err := m.Start(within(t)); err != nil {
			t.Fatal(err)
		}
		_ = ask(t, m, end.word)
		waitTest(t, m, end.want)
		if _, err := m.Dial(within(t), testPort); !errors.Is(err, vm.ErrGone) {
			t.Errorf("dialing an ended machine answers %v", err)
		}
	}
	if err := m.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	pid := m.proc.pid
	m.mu.Unlock()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitTest(t, m, vm.ExitKilled)
}

// TestDisk checks that the disk outlives a stop and the base is not written.
func TestDisk(t *testing.T) {
	if isolated(t) {
		return
	}
	g := guest(t)
	base := string(read(t, g.disk))
	d := openOn(t, openDir(t), nil)
	m := bootTest(t, d, g.spec(newID(t)))
	if got := ask(t, m, "write"); got != "<nil>" {
		t.Fatalf("guest says %q", got)
	}
	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	if s := m.Diagnose(t.Context()); s.State != "paused" {
		t.Errorf("state is %q", s.State)
	}
	if err := m.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, m, "read"); got != `"written"` {
		t.Errorf("guest says %q", got)
	}
	if err := m.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	waitTest(t, m, vm.ExitDestroyed)
	if err := m.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, m, "read"); got != `"written"` && got != `"\x00\x00\x00\x00\x00\x00\x00"` {
		t.Errorf("guest says %q", got) // it was not synced: both are right
	}
	if string(read(t, g.disk)) != base {
		t.Error("the shared base was written to")
	}
}

// TestFlood checks that a guest cannot fill the host's disk by its console. The
// state directory's path is longer than any socket's may be.
func TestFlood(t *testing.T) {
	if isolated(t) {
		return
	}
	g := guest(t)
	dir := filepath.Join(openDir(t), strings.Repeat("long/", 20))
	d := openOn(t, dir, nil)
	m := bootTest(t, d, g.spec(newID(t)))
	if got := ask(t, m, "flood"); got != "done" {
		t.Fatalf("guest says %q", got)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx := within(t); ; {
		now, nowErr := os.Stat(m.files.console())
		old, oldErr := os.Stat(m.files.console() + rotated)
		if nowErr == nil && oldErr == nil && now.Size() <= maxConsoleFile && old.Size() == maxConsoleFile {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("console is not bounded: %v %v", now, old)
		}
	}
	if n := len(m.Diagnose(t.Context()).Console); n == 0 || n > maxConsole {
		t.Errorf("console has %d bytes", n)
	}
}

// TestHang checks that a hypervisor that answers nobody can be removed.
func TestHang(t *testing.T) {
	if isolated(t) {
		return
	}
	g := guest(t)
	d := openOn(t, openDir(t), nil)
	m := bootTest(t, d, g.spec(newID(t)))
	_ = ask(t, m, "hello")
	m.mu.Lock()
	pid := m.proc.pid
	m.mu.Unlock()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := m.monitor(ctx).Run([]byte(`{"execute":"query-status"}`)); err == nil {
		t.Error("a stopped hypervisor answers")
	}
	if diag := m.Diagnose(ctx); diag.State != "running" {
		t.Errorf("diagnosis is %+v", diag)
	}
	closeTest(t, d, m)
	waitTest(t, m, vm.ExitDestroyed)
}

// TestUndo fails every step of Create and Start in turn.
func TestUndo(t *testing.T) {
	if isolated(t) {
		return
	}
	g := guest(t)
	failing := ""
	errStep := errors.New("this step fails")
	d := openOn(t, openDir(t), func(c *Config) {
		c.fail = func(step string) error {
			if step == failing {
				return errStep
			}
			return nil
		}
	})
	id := newID(t)
	for _, failing = range []string{"directory", "console", "initramfs", "overlay", "record"} {
		if _, _, err := d.Create(within(t), g.spec(id)); !errors.Is(err, errStep) {
			t.Fatalf("%s: create answers %v", failing, err)
		}
		if left := leftovers(t, d, id); len(left) > 0 {
			t.Errorf("%s: left behind: %q", failing, left)
		}
		if list, err := d.List(within(t)); err != nil || len(list) != 0 {
			t.Errorf("%s: list is %v, %v", failing, list, err)
		}
	}
	failing = ""
	m := createTest(t, d, g.spec(id))
	before := leftovers(t, d, id)
	for _, failing = range []string{"check", "link", "journal", "domain", "process", "plug", "resume", "journal running"} {
		if err := m.Start(within(t)); !errors.Is(err, errStep) {
			t.Fatalf("%s: start answers %v", failing, err)
		}
		if left := leftovers(t, d, id); !slices.Equal(left, before) {
			t.Errorf("%s: left behind: %q, was %q", failing, left, before)
		}
		if _, err := m.Wait(within(t)); err == nil {
			t.Errorf("%s: a machine that never ran has ended", failing)
		}
	}
	failing = ""
	if err := m.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, m, "hello"); got != "hello" {
		t.Errorf("guest says %q", got)
	}
}
