package libvirt

import (
	"context"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// openTest opens a driver on a new state directory.
func openTest(t *testing.T, change func(*Config)) *Driver {
	t.Helper()
	cfg := Config{StateDir: openDir(t), Log: testLog(t)}
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

func TestMachine(t *testing.T) {
	g := guest(t)
	d := openTest(t, nil)
	id := newID(t)
	m, _, err := d.Create(within(t), g.spec(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if left := leftovers(t, d, id); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	if err := m.Start(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, m, "hello"); got != "hello" {
		t.Errorf("guest says %q", got)
	}
	t.Logf("%+v", m.Diagnose(t.Context()))
	_ = ask(t, m, "poweroff")
	exit, err := m.Wait(within(t))
	if err != nil || exit.Reason != vm.ExitPowerOff {
		t.Errorf("machine ended as %+v, %v", exit, err)
	}
}
