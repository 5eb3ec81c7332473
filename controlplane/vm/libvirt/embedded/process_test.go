package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	testName = "sbx-0123456789ab"
	testUUID = "01980a5e-7c31-7a02-b1c5-0123456789ab"
)

// pretend starts a process whose arguments are those of a hypervisor.
func pretend(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return pretendIn(t, "", args...)
}

// pretendIn is pretend with a file that the process has open; empty: none.
func pretendIn(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", "read forever"}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if path != "" {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.Stdout = f
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd
}

func machineArgs(name, uuid, root string) []string {
	return []string{
		"-name", "guest=" + name + ",debug-threads=on", "-uuid", uuid,
		"-object", `{"file":"` + root + "/lib/qemu/domain-1-" + name + `/master-key.aes"}`,
	}
}

func TestIsMachine(t *testing.T) {
	p := Process{PID: 1, Args: append([]string{"qemu"}, machineArgs(testName, testUUID, "/r")...)}
	if !p.IsMachine(testName, testUUID) {
		t.Error("a machine is not known by its arguments")
	}
	for _, other := range [][2]string{{"sbx-0123456789a", testUUID}, {testName, "x"}, {"", ""}} {
		if p.IsMachine(other[0], other[1]) {
			t.Errorf("machine is taken for %q", other)
		}
	}
	if (Process{Args: []string{"cat", "-name"}}).IsMachine("", "") {
		t.Error("cat is a machine")
	}
}

// sweepRoot makes a root as a killed process would leave it.
func sweepRoot(t *testing.T) *Root {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"run/qemu", "lib/qemu/channel/target", "lib/qemu/ram"} {
		if err := os.MkdirAll(filepath.Join(dir, "libvirt", sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &Root{StateDir: dir, Base: dir, Dir: filepath.Join(dir, "libvirt")}
}

func (r *Root) status(t *testing.T, name, uuid, pid string) {
	t.Helper()
	text := fmt.Sprintf("<!-- x --><domstatus state='running' reason='booted' pid='%s'><monitor path='/x'/>"+
		"<domain type='qemu' id='1'><name>%s</name><uuid>%s</uuid></domain></domstatus>", pid, name, uuid)
	r.file(t, "run/qemu/"+name+".xml", text)
	r.file(t, "run/qemu/"+name+".pid", pid)
}

func (r *Root) file(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *Root) has(name string) bool {
	_, err := os.Lstat(filepath.Join(r.Dir, name))
	return err == nil
}

func TestSweep(t *testing.T) {
	r := sweepRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	names := []string{"sbx-live00000000", "sbx-ghost0000000", "sbx-dead00000000", "sbx-reused000000", "sbx-broken000000", "sbx-renamed00000", "sbx-copied000000"}
	live := pretend(t, machineArgs(names[0], testUUID, r.Dir)...)
	r.status(t, names[0], testUUID, strconv.Itoa(live.Process.Pid))
	r.status(t, names[1], testUUID, "0")
	ended := exec.CommandContext(ctx, "/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	r.status(t, names[2], testUUID, strconv.Itoa(ended.Process.Pid))
	innocent := pretend(t, "somebody", "else")
	r.status(t, names[3], testUUID, strconv.Itoa(innocent.Process.Pid))
	r.file(t, "run/qemu/"+names[4]+".xml", "<domstatus")
	r.status(t, names[5], testUUID, strconv.Itoa(live.Process.Pid))
	r.file(t, "run/qemu/driver.pid", strconv.Itoa(os.Getpid()))
	// The ghost's hypervisor was started after all, and a probe goes on.
	ghost := pretend(t, machineArgs(names[1], testUUID, r.Dir)...)
	probe := pretend(t, "-machine", "none", "-qmp", "unix:"+r.Dir+"/lib/qemu/qmp-ABC/qmp.monitor,server=on")
	other := pretend(t, machineArgs("sbx-elsewhere000", testUUID, "/another/root")...)
	original := pretend(t, machineArgs(names[6], testUUID, "/another/root")...)
	r.status(t, names[6], testUUID, strconv.Itoa(original.Process.Pid))
	// This one was started when the directory had another name.
	moved := pretendIn(t, filepath.Join(r.StateDir, "console"), machineArgs("sbx-moved0000000", testUUID, "/its/old/name")...)
	dirs := map[string]bool{ // and whether they stay
		"lib/qemu/domain-1-" + names[0]: true, "lib/qemu/ram/1-" + names[0]: true,
		"lib/qemu/domain-2-" + names[2]: false, "lib/qemu/ram/2-" + names[2]: false,
		"lib/qemu/channel/target/domain-2-" + names[2]: false, "lib/qemu/qmp-ABC": false, "lib/qemu/save": true,
	}
	for dir := range dirs {
		if err := os.Mkdir(filepath.Join(r.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	swept, err := Sweep(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(swept.Kept, names[:1]) || len(swept.Dropped) != 6 || len(swept.Killed) != 3 {
		t.Errorf("swept %+v", swept)
	}
	for i, name := range names {
		if got := r.has("run/qemu/" + name + ".xml"); got != (i == 0) {
			t.Errorf("status of %q stays: %v", name, got)
		}
		if got := r.has("run/qemu/" + name + ".pid"); got != (i == 0) {
			t.Errorf("pid of %q stays: %v", name, got)
		}
	}
	if !r.has("run/qemu/driver.pid") {
		t.Error("libvirt's own pid file is gone")
	}
	for dir, stays := range dirs {
		if r.has(dir) != stays {
			t.Errorf("%s stays: %v", dir, !stays)
		}
	}
	for name, p := range map[string]*exec.Cmd{"ghost": ghost, "probe": probe, "moved": moved} {
		if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%s ended by %v", name, err)
		}
	}
	for name, p := range map[string]*exec.Cmd{"live": live, "innocent": innocent, "other": other, "original": original} {
		if err := p.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, err := Sweep(ctx, r); err != nil || len(again.Dropped)+len(again.Killed) != 0 || len(again.Kept) != 1 {
		t.Errorf("a second sweep did %+v, %v", again, err)
	}
}

func TestSweepOfNothing(t *testing.T) {
	dir := t.TempDir()
	if swept, err := Sweep(t.Context(), &Root{StateDir: dir, Base: dir, Dir: filepath.Join(dir, "libvirt")}); err != nil || len(swept.Kept) != 0 {
		t.Errorf("sweep of nothing: %+v, %v", swept, err)
	}
}

func TestPIDFD(t *testing.T) {
	p := pretend(t, machineArgs(testName, testUUID, "/r")...)
	mine := func(p Process) bool { return p.IsMachine(testName, testUUID) }
	if _, err := OpenPIDFD(os.Getpid(), mine); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("another process answers %v", err)
	}
	f, err := OpenPIDFD(p.Process.Pid, mine)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := AwaitPIDFD(short, f); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a process that lives answers %v", err)
	}
	if err := KillPIDFD(f); err != nil {
		t.Fatal(err)
	}
	if err := AwaitPIDFD(t.Context(), f); err != nil {
		t.Error(err)
	}
	_ = p.Wait()
	if err := KillPIDFD(f); err != nil {
		t.Errorf("killing an ended process answers %v", err)
	}
}

// TestReaper checks that daemons are reaped and children of os/exec are not.
func TestReaper(t *testing.T) {
	r, err := StartReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	// A daemon as libvirt makes one: its parent leads a session and goes.
	out, err := exec.CommandContext(t.Context(), "setsid", "--fork", "--wait", "/bin/sh", "-c", "/bin/sh -c 'echo $$' & exit 0").Output()
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	// A child that ends long before anybody waits for it.
	child := exec.CommandContext(t.Context(), "/bin/sh", "-c", "exit 3")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	leader := exec.CommandContext(t.Context(), "/bin/sh", "-c", "exit 4")
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(settle)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for unix.Kill(daemon, 0) == nil {
		select {
		case <-tick.C:
		case <-limit:
			st, err := readStat(daemon)
			t.Fatalf("daemon is not reaped: %+v, %v", st, err)
		}
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("child ended by %v", err)
	}
	if err := leader.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 4 {
		t.Errorf("session leader ended by %v", err)
	}
}

func TestAdopted(t *testing.T) {
	const own = 2
	for _, test := range []struct {
		st   stat
		want bool
	}{
		{stat{pid: 5, session: own}, false},
		{stat{pid: 5, session: 5}, false},
		{stat{pid: 5, session: 4}, true},
	} {
		if got := test.st.adopted(own); got != test.want {
			t.Errorf("%+v: %v", test.st, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("17 (a) b) Z 1 2 3 4")
	f.Add("17 (")
	f.Add(") Z")
	f.Fuzz(func(_ *testing.T, line string) { _, _ = parseStat(line) })
}

func TestParseStat(t *testing.T) {
	if st, err := parseStat("17 (a (b) c) Z 1 2 3 4"); err != nil || st != (stat{pid: 17, state: 'Z', session: 3}) {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err := readStat(os.Getpid()); err != nil || st.pid != os.Getpid() {
		t.Errorf("we are %+v, %v", st, err)
	}
}

// TestShim checks what the shim passes on, and that it follows its emulator.
func TestShim(t *testing.T) {
	r := sweepRoot(t)
	emulator := filepath.Join(t.TempDir(), "it's qemu")
	if err := os.WriteFile(emulator, []byte("#!/bin/sh\nprintf '%s|' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shim, err := Shim(r, emulator)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), shim, "-S", "-machine", "none,accel=kvm:tcg", "a b", "", "$x'\"").Output()
	if err != nil || string(out) != "-S|-machine|none,accel=tcg|a b||$x'\"|" {
		t.Errorf("shim passes on %q, %v", out, err)
	}
	before := content(t, shim)
	if again, err := Shim(r, emulator); err != nil || again != shim || content(t, shim) != before {
		t.Errorf("the same emulator gets %q, %v", again, err)
	}
	if err := os.Chmod(emulator, 0o700); err != nil { // changes its ctime
		t.Fatal(err)
	}
	if _, err := Shim(r, emulator); err != nil || content(t, shim) == before {
		t.Errorf("a changed emulator is not noticed: %v", err)
	}
}
