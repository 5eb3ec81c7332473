package libvirt

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// TestRecover kills the process that runs the driver and takes its machines
// over in another.
func TestRecover(t *testing.T) {
	guestParts(t)
	switch os.Getenv(phaseVar) {
	case "first":
		recoverFirst(t)
		return
	case "second":
		recoverSecond(t)
		return
	}
	g := guest(t)
	dir := openDir(t)
	var ids []instance.ID
	for range 5 {
		ids = append(ids, newID(t))
	}
	env := []string{"TEST_DIR=" + dir, fmt.Sprintf("TEST_IDS=%s %s %s %s %s", ids[0], ids[1], ids[2], ids[3], ids[4]),
		guestVar + "=" + g.kernel + " " + g.initramfs + " " + g.disk}
	first := again(t, "first", env...)
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	first.Stderr = t.Output()
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	ready := false
	for line := range lines(out) {
		t.Log("first: ", line)
		if strings.Contains(line, "all machines run") {
			ready = true
			break
		}
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if !ready {
		t.Fatal("the first process has not come far enough")
	}
	// One machine dies while nobody watches.
	if err := syscall.Kill(pidOf(t, ids[1]), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := again(t, "second", env...)
	text, err := second.CombinedOutput()
	t.Logf("%s", text)
	if err != nil {
		t.Fatalf("second: %v", err)
	}
}

func recoverParts(t *testing.T) (string, []instance.ID, guestFiles) {
	t.Helper()
	var ids []instance.ID
	for id := range strings.FieldsSeq(os.Getenv("TEST_IDS")) {
		ids = append(ids, instance.ID(id))
	}
	return os.Getenv("TEST_DIR"), ids, guest(t)
}

func recoverFirst(t *testing.T) {
	dir, ids, g := recoverParts(t)
	d := openOn(t, dir, nil)
	for i, id := range ids {
		m, _, err := d.Create(within(t), g.spec(id))
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			continue // is never started
		}
		if err := m.Start(within(t)); err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			continue // is taken over while it boots, when it cannot give its device up
		}
		if got := ask(t, m, "hello"); got != "hello" {
			t.Errorf("guest says %q", got)
		}
		if p, ok := m.(vm.Pauser); ok && i == 3 {
			if err := p.Pause(within(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fmt.Println("all machines run")
	<-t.Context().Done() // until we are killed
}

func recoverSecond(t *testing.T) {
	dir, ids, _ := recoverParts(t)
	d := openOn(t, dir, nil)
	list, err := d.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	running := map[instance.ID]bool{}
	for _, f := range list {
		running[f.ID] = f.Running
	}
	if len(list) != 5 || !running[ids[0]] || running[ids[1]] || running[ids[2]] || !running[ids[3]] || !running[ids[4]] {
		t.Fatalf("list is %+v", list)
	}
	machines := map[instance.ID]vm.Instance{}
	for _, f := range list {
		m, err := d.Recover(within(t), f.Handle)
		if err != nil {
			t.Fatal(err)
		}
		machines[f.ID] = m
	}
	if got := ask(t, machines[ids[0]], "still here"); got != "still here" {
		t.Errorf("guest says %q", got)
	}
	waitTest(t, machines[ids[1]], vm.ExitUnknown)
	if err := machines[ids[1]].Start(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, machines[ids[1]], "again"); got != "again" {
		t.Errorf("guest says %q", got)
	}
	if _, err := machines[ids[2]].Wait(within(t)); err == nil {
		t.Error("a machine that was never started has ended")
	}
	p, ok := machines[ids[3]].(vm.Pauser)
	if !ok {
		t.Fatal("machine cannot be resumed")
	}
	if err := p.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, machines[ids[3]], "resumed"); got != "resumed" {
		t.Errorf("guest says %q", got)
	}
	if got := ask(t, machines[ids[4]], "booted"); got != "booted" {
		t.Errorf("guest says %q", got)
	}
	for _, m := range machines {
		if m, ok := m.(*machine); ok {
			closeTest(t, d, m)
		}
	}
	if list, err = d.List(within(t)); err != nil || len(list) != 0 {
		t.Errorf("list is %+v, %v", list, err)
	}
	_, err = d.Recover(within(t), vm.Handle{Driver: driverName, Version: 1, Data: fmt.Appendf(nil, `{"id":%q}`, ids[0])})
	if !errors.Is(err, vm.ErrGone) {
		t.Errorf("recovering a removed machine answers %v", err)
	}
}
