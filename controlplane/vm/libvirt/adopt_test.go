package libvirt

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
)

// filesOnly is a driver on a host without libvirt: it has machines' files, and
// nothing executes.
func filesOnly(t *testing.T) *Driver {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	files, err := watchFiles(log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := files.close(); err != nil {
			t.Error(err)
		}
	})
	d := &Driver{
		cfg: Config{URI: "qemu:///system"}, log: log, root: &embedded.Root{Base: t.TempDir()}, files: files,
		inbox: newInbox(), closing: make(chan struct{}), machines: map[instance.ID]*machine{},
	}
	d.life, d.end = context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(d.end)
	return d
}

// made puts a machine's files where a driver finds them.
func made(t *testing.T, d *Driver, r *run, console string) (instance.ID, vm.Handle) {
	t.Helper()
	id := newID(t)
	if err := os.MkdirAll(d.filesOf(id).dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.filesOf(id).console(), []byte(console), 0o600); err != nil {
		t.Fatal(err)
	}
	rec := newRecord(vm.Spec{ID: id, Name: "dev", CPUs: 1, Memory: minMemory, Kernel: "/k", RootDisk: "/d"})
	rec.Run = r
	if err := rec.save(d.filesOf(id)); err != nil {
		t.Fatal(err)
	}
	h, err := newHandle(id)
	if err != nil {
		t.Fatal(err)
	}
	return id, h
}

// TestAdoptWhatEnded: how a run ended that nobody watched is said as well as it
// can be, once and for all.
func TestAdoptWhatEnded(t *testing.T) {
	told := vm.Exit{Reason: vm.ExitPanic, Detail: "told before"}
	for name, c := range map[string]struct {
		run     *run
		console string
		want    vm.Exit
	}{
		"watched":   {&run{Resumed: true, Ended: &told}, "", told},
		"unwatched": {&run{Resumed: true}, "all is well", vm.Exit{Reason: vm.ExitUnknown, Detail: "ended while nobody watched"}},
		"panicked": {&run{Resumed: true}, "Kernel panic - not syncing: boom\n", vm.Exit{
			Reason: vm.ExitUnknown, Detail: `ended while nobody watched; its console says "Kernel panic - not syncing: boom"`,
		}},
		"half born": {&run{}, "", vm.Exit{Reason: vm.ExitUnknown, Detail: "the control plane ended while it was being started"}},
	} {
		d := filesOnly(t)
		id, h := made(t, d, c.run, c.console)
		m, err := d.Recover(t.Context(), h)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if exit, err := m.Wait(within(t)); err != nil || exit != c.want {
			t.Errorf("%s: it ended %+v, %v; want %+v", name, exit, err, c.want)
		}
		rec, err := loadRecord(d.filesOf(id))
		if err != nil || rec.Run.Ended == nil || *rec.Run.Ended != c.want {
			t.Errorf("%s: stored is %+v, %v", name, rec.Run, err)
		}
	}
}

// TestAdoptWhatWasNeverStarted: there is nothing to wait for.
func TestAdoptWhatWasNeverStarted(t *testing.T) {
	d := filesOnly(t)
	_, h := made(t, d, nil, "")
	m, err := d.Recover(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := m.Wait(within(t)); err == nil {
		t.Errorf("it ended %+v", exit)
	}
	again, err := d.Recover(t.Context(), h)
	if err != nil || again != m {
		t.Errorf("recovered twice it is two machines: %v", err)
	}
}

// TestOrphanFiles: files without a record can be removed, not started; where
// there are none, nothing is left of the question.
func TestOrphanFiles(t *testing.T) {
	d := filesOnly(t)
	id, h := made(t, d, nil, "")
	if err := os.Remove(d.filesOf(id).record()); err != nil {
		t.Fatal(err)
	}
	m, err := d.Recover(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); !errors.Is(err, errNoRecord) {
		t.Errorf("start: %v", err)
	}
	for range 2 {
		if err := m.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := os.Stat(d.filesOf(id).dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its files: %v", err)
	}
	if err := m.Start(t.Context()); !errors.Is(err, vm.ErrGone) {
		t.Errorf("start after close: %v", err)
	}
	if _, err := d.Recover(t.Context(), h); !errors.Is(err, vm.ErrGone) {
		t.Errorf("recover after close: %v", err)
	}
	if len(d.machines) != 0 {
		t.Errorf("the driver keeps %v", d.machines)
	}
}

// TestRunIsStoredBeforeItBegins: what a dead process leaves must be known for
// what it is.
func TestRunIsStoredBeforeItBegins(t *testing.T) {
	d := filesOnly(t)
	id, h := made(t, d, nil, "")
	if _, err := d.Recover(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	m := d.known(id)
	stored := func() *run {
		t.Helper()
		rec, err := loadRecord(m.files)
		if err != nil {
			t.Fatal(err)
		}
		return rec.Run
	}
	b := &boot{m: m}
	if err := b.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := stored(); r == nil || r.Resumed || m.life.phase != phaseStarting {
		t.Errorf("before it begins %+v is stored, and it is %s", r, m.life.phase)
	}
	waited := make(chan error, 1)
	attempt := m.ended
	go func() { <-attempt; waited <- nil }()
	if err := b.rewind(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-waited:
	case <-time.After(patience):
		t.Error("who waits for the end of the attempt waits on")
	}
	if r := stored(); r != nil || m.life.phase != phaseIdle || m.ended != nil {
		t.Errorf("after the undoing %+v is stored, and it is %s", r, m.life.phase)
	}
	if err := b.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.running(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := stored(); r == nil || !r.Resumed || m.life.phase != phaseRunning {
		t.Errorf("once it runs %+v is stored, and it is %s", r, m.life.phase)
	}
}
