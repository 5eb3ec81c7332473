package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
)

// Things that only a driver of processes must bear.

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// machine creates and starts a machine and waits for its agent.
func machine(t *testing.T, d *host.Driver, dir string) (vm.Instance, vm.Handle, instance.ID, *agentlink.Link) {
	t.Helper()
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	m, h, err := d.Create(deadline(t), spec(t, id, "odd"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(deadline(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Whatever driver the test has ended up with: this one is new.
		d, err := host.New(host.Config{StateDir: dir, AgentBinary: agent.Path(t)})
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		ctx := context.WithoutCancel(t.Context())
		if m, err := d.Recover(ctx, h); err == nil {
			if err := m.Close(ctx); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, vm.ErrGone) {
			t.Error(err)
		}
		if left := leftovers(t, dir, id); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	})
	return m, h, id, connect(t, m, id)
}

func connect(t *testing.T, m vm.Instance, id instance.ID) *agentlink.Link {
	t.Helper()
	l, err := agentlink.Connect(deadline(t), func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, agentv1.Port) },
		agentlink.Options{InstanceID: id})
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Diagnose(t.Context()).Console)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// start starts a script and returns once it has said "ready".
func start(t *testing.T, l *agentlink.Link, script string) {
	t.Helper()
	id := uuid.NewString()
	_, err := l.StartRun(deadline(t), id, &agentv1.RunSpec{
		Argv: []string{"/bin/sh", "-c", script}, Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Root: "/", WorkingDir: "/", Timeout: durationpb.New(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	ready := errors.New("ready")
	var out strings.Builder
	_, err = l.FollowRun(deadline(t), id, agentlink.FollowOptions{Sink: agentlink.Each(func(_ context.Context, c *agentv1.Output) error {
		out.Write(c.GetData())
		if strings.Contains(out.String(), "ready") {
			return ready
		}
		return nil
	})})
	if !errors.Is(err, ready) {
		t.Fatalf("%v: %q", err, out.String())
	}
}

func agentPID(t *testing.T, dir string, id instance.ID) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "machines", id.String(), "process.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ PID int }
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r.PID
}

// gone waits until no process has the word in its command line.
func gone(t *testing.T, word string) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := withWord(t, word)
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("processes live on: %q", left)
		}
	}
}

func withWord(t *testing.T, word string) []string {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, p := range procs {
		if b, _ := os.ReadFile(p); strings.Contains(string(b), word) {
			left = append(left, p+" "+string(b))
		}
	}
	return left
}

// stubborn is a script whose children ignore SIGTERM and leave the session.
func stubborn(word string) string {
	child := "trap '' TERM HUP INT; : " + word + "; while :; do sleep 1000; done"
	return "for i in 1 2 3; do setsid sh -c \"" + child + "\" & done; trap '' TERM; echo ready; wait"
}

func TestStopKillsStubbornTree(t *testing.T) {
	var s states
	dir := t.TempDir()
	m, _, _, l := machine(t, s.open(t, dir), dir)
	word := uuid.NewString()
	start(t, l, stubborn(word))
	if len(withWord(t, word)) < 3 {
		t.Fatal("the tree does not run")
	}
	if err := m.(vm.Stopper).Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if left := withWord(t, word); len(left) > 0 {
		t.Errorf("after Stop there are still %q", left)
	}
}

func TestStopOfPausedMachine(t *testing.T) {
	var s states
	dir := t.TempDir()
	m, _, _, l := machine(t, s.open(t, dir), dir)
	word := uuid.NewString()
	start(t, l, stubborn(word))
	if err := m.(vm.Pauser).Pause(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if d := m.Diagnose(t.Context()); d.State != "paused" {
		t.Errorf("state is %q", d.State)
	}
	if err := m.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if left := withWord(t, word); len(left) > 0 {
		t.Errorf("after Close there are still %q", left)
	}
}

// An agent that dies takes its runs with it, and is told from one that was
// stopped and from one that ended in order; also by a driver that is not its
// parent.
func TestAgentDies(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		t.Run("reopened "+strconv.FormatBool(reopened), func(t *testing.T) {
			var s states
			dir := t.TempDir()
			d := s.open(t, dir)
			m, h, id, l := machine(t, d, dir)
			word := uuid.NewString()
			start(t, l, stubborn(word))
			if reopened {
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				var err error
				if m, err = s.open(t, dir).Recover(deadline(t), h); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Kill(agentPID(t, dir, id), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if e, err := m.Wait(deadline(t)); err != nil || e.Reason != vm.ExitKilled {
				t.Errorf("ended as %+v, %v", e, err)
			}
			gone(t, word)
			if err := m.Start(deadline(t)); err != nil {
				t.Errorf("cannot start again: %v", err)
			}
			connect(t, m, id)
		})
	}
}

// The daemon may die between starting the agent and recording it.
func TestFoundWithoutRecord(t *testing.T) {
	var s states
	dir := t.TempDir()
	d := s.open(t, dir)
	_, h, id, l := machine(t, d, dir)
	nonce := string(l.Hello().GetBootNonce())
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "machines", id.String(), "process.json")
	record, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func() error{
		"gone":    func() error { return os.Remove(file) },
		"empty":   func() error { return os.WriteFile(file, nil, 0o600) },
		"garbage": func() error { return os.WriteFile(file, []byte("\xde\xad{"), 0o600) },
		"of another process": func() error {
			return os.WriteFile(file, []byte(strings.Replace(string(record), `"pid":`, `"pid":1`, 1)), 0o600)
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		d := s.open(t, dir)
		m, err := d.Recover(deadline(t), h)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := m.Start(deadline(t)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again := connect(t, m, id); string(again.Hello().GetBootNonce()) != nonce {
			t.Errorf("%s: the machine was started twice", name)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A pid that belongs to somebody else by now is not touched.
func TestPIDUsedAgain(t *testing.T) {
	var s states
	dir := t.TempDir()
	d := s.open(t, dir)
	m, h, id, _ := machine(t, d, dir)
	if err := m.(vm.Stopper).Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(dir, "machines", id.String())
	if err := os.Remove(filepath.Join(files, "exit.json")); err != nil {
		t.Fatal(err)
	}
	record := `{"pid":` + strconv.Itoa(os.Getpid()) + `,"start":1,"boot":"x"}`
	if err := os.WriteFile(filepath.Join(files, "process.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := s.open(t, dir).Recover(deadline(t), h)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := m.Wait(deadline(t)); err != nil || e.Reason != vm.ExitUnknown {
		t.Errorf("ended as %+v, %v", e, err)
	}
	if err := m.Close(deadline(t)); err != nil { // and we live on
		t.Fatal(err)
	}
}

// A copy of a state directory holds the record of a process that is another's:
// its driver does not touch that one. A directory that was only moved is the same.
func TestCopiedAndMovedStateDirectory(t *testing.T) {
	var s states
	dir := filepath.Join(t.TempDir(), "old")
	d := s.open(t, dir)
	moved := filepath.Join(filepath.Dir(dir), "new")
	_, h, id, l := machine(t, d, moved) // where it is cleaned up
	nonce := string(l.Hello().GetBootNonce())
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(dir, "machines", id.String())
	copied := t.TempDir()
	to := filepath.Join(copied, "machines", id.String())
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"spec.json", "boot.json", "process.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := s.open(t, copied).Recover(deadline(t), h)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := m.Wait(deadline(t)); err != nil || e.Reason != vm.ExitUnknown {
		t.Errorf("in the copy it ended as %+v, %v", e, err)
	}
	if err := m.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}

	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if m, err = s.open(t, moved).Recover(deadline(t), h); err != nil {
		t.Fatal(err)
	}
	if again := connect(t, m, id); string(again.Hello().GetBootNonce()) != nonce {
		t.Error("the machine is another one")
	}
}

// A socket address holds 107 bytes; a state directory may be deeper.
func TestDeepStateDirectory(t *testing.T) {
	var s states
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
	_, _, _, l := machine(t, s.open(t, dir), dir)
	if _, err := l.Stats(deadline(t)); err != nil {
		t.Error(err)
	}
}

func TestConsoleIsBoundedAndPrintable(t *testing.T) {
	var s states
	dir := t.TempDir()
	m, _, id, _ := machine(t, s.open(t, dir), dir)
	path := filepath.Join(dir, "machines", id.String(), "console.log")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Repeat("x\x1b[2J\xff\n", 1<<20) + "the end\n"); err != nil {
		t.Fatal(err)
	}
	d := m.Diagnose(t.Context())
	if len(d.Console) > 64<<10 || !strings.HasSuffix(d.Console, "the end\n") {
		t.Errorf("console has %d bytes and ends with %q", len(d.Console), d.Console[len(d.Console)-20:])
	}
	if strings.ContainsRune(d.Console, 0x1b) || !utf8.ValidString(d.Console) {
		t.Error("console is not printable")
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() > 1<<20 {
		t.Errorf("console was not cut: %v, %v", fi.Size(), err)
	}
	if d := m.Diagnose(t.Context()); !strings.HasSuffix(d.Console, "the end\n") {
		t.Error("the end of the console was cut")
	}
}

func TestNoAgent(t *testing.T) {
	d, err := host.New(host.Config{StateDir: t.TempDir(), AgentBinary: "/nonexistent/agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.Capabilities(t.Context())
	if err != nil || c.Available || c.Reason == "" || c.Remedy == "" {
		t.Errorf("%+v, %v", c, err)
	}
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Create(t.Context(), spec(t, id, "none")); !errors.Is(err, vm.ErrUnavailable) {
		t.Errorf("create answers %v", err)
	}
}

func TestStateDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := host.New(host.Config{StateDir: file, AgentBinary: agent.Path(t)}); err == nil {
		_ = d.Close()
		t.Error("a file is taken for a directory")
	}
}

func TestRemainsAreRemoved(t *testing.T) {
	var s states
	dir := t.TempDir()
	for _, remains := range []string{".new-123", ".removed-" + uuid.NewString()} {
		if err := os.MkdirAll(filepath.Join(dir, "machines", remains, "disk"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "machines", "somebody else's"), 0o700); err != nil {
		t.Fatal(err)
	}
	broken := uuid.NewString()
	if err := os.MkdirAll(filepath.Join(dir, "machines", broken), 0o700); err != nil {
		t.Fatal(err)
	}
	d := s.open(t, dir)
	all, err := d.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID.String() != broken || all[0].Note == "" {
		t.Errorf("list is %+v, %v", all, err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "machines"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

func TestWrongBootConfig(t *testing.T) {
	var s states
	d := s.open(t, t.TempDir())
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	good := spec(t, id, "wrong")
	for name, change := range map[string]func(*vm.Spec){
		"no id":        func(s *vm.Spec) { s.ID = "" },
		"path as id":   func(s *vm.Spec) { s.ID = "../../etc" },
		"no config":    func(s *vm.Spec) { s.BootConfig = nil },
		"other's":      func(s *vm.Spec) { s.BootConfig = spec(t, instance.ID(uuid.NewString()), "other").BootConfig },
		"next version": func(s *vm.Spec) { s.BootConfig = []byte(`{"version":2}`) },
	} {
		bad := good
		change(&bad)
		if _, _, err := d.Create(t.Context(), bad); err == nil {
			t.Errorf("%s: is accepted", name)
		}
	}
	if all, err := d.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("list is %+v, %v", all, err)
	}
}

// What the list shows can be removed, also files that make no machine.
func TestFilesWithoutAMachine(t *testing.T) {
	for name, content := range map[string]string{"nothing": "", "a damaged record": "{"} {
		t.Run(name, func(t *testing.T) {
			var s states
			dir := t.TempDir()
			d := s.open(t, dir)
			id, err := instance.NewID()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "machines", id.String())
			if err := os.MkdirAll(filepath.Join(path, "disk"), 0o700); err != nil {
				t.Fatal(err)
			}
			if content != "" {
				if err := os.WriteFile(filepath.Join(path, "spec.json"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			found, err := d.List(t.Context())
			if err != nil || len(found) != 1 || found[0].Note == "" || found[0].Running {
				t.Fatalf("list: %+v, %v", found, err)
			}
			m, err := d.Recover(t.Context(), found[0].Handle)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if found, err = d.List(t.Context()); err != nil || len(found) != 0 {
				t.Errorf("list: %+v, %v", found, err)
			}
			if _, err := d.Recover(t.Context(), vm.Handle{Driver: "host", Version: 1, Data: []byte(`{"id":"` + id.String() + `"}`)}); !errors.Is(err, vm.ErrGone) {
				t.Errorf("recovered what is gone: %v", err)
			}
			if left := leftovers(t, dir, id); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
