package fleet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// loseDatabase takes the database away while no daemon is there.
func (r *rig) loseDatabase() {
	r.t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(filepath.Join(r.dir, "db"+suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			r.t.Fatal(err)
		}
	}
}

// TestLostDatabaseStopsTheDaemon: with machines and a new database nothing
// starts, as often as it is tried, and nothing is removed. With the operator's
// word it does, and the machines are kept until they are removed by hand.
func TestLostDatabaseStopsTheDaemon(t *testing.T) {
	r := newRig(t)
	r.config = func(c *fleet.Config) { c.OrphanGrace = 50 * time.Millisecond }
	r.open()
	v := r.create("kept")
	r.close()
	r.loseDatabase()
	for range 2 {
		err := r.tryOpen()
		if faultCode(err) != "database.missing" || !strings.Contains(instance.AsFault(err).Hint, "--accept-empty-database") {
			t.Fatalf("start with a new database: %v", err)
		}
	}
	r.config = func(c *fleet.Config) { c.Drivers = map[string]vm.Driver{"host": unavailable{c.Drivers["host"]}} }
	if err := r.tryOpen(); faultCode(err) != "database.missing" {
		t.Fatalf("start with a new database and without the hypervisor: %v", err)
	}
	r.config = func(c *fleet.Config) { c.OrphanGrace, c.AcceptEmpty = 50*time.Millisecond, true }
	r.open()
	orphans, err := r.fleet.Orphans(t.Context())
	if err != nil || len(orphans) != 1 || orphans[0].ID != v.ID || !orphans[0].Running || !orphans[0].RemoveAfter.IsZero() {
		t.Fatalf("orphans: %+v, %v", orphans, err)
	}
	r.create("other") // all goes on
	r.close()
	r.config = nil
	r.open() // and needs the word only once
	if err := r.fleet.RemoveOrphan(t.Context(), v.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.fleet.RemoveOrphan(t.Context(), v.ID); faultCode(err) != "orphan.not_found" {
		t.Errorf("second removal: %v", err)
	}
	if r.get("other").Phase == "" {
		t.Error("the other one is gone")
	}
}

// unavailable is a driver that lacks what it stands on.
type unavailable struct{ vm.Driver }

func (unavailable) Capabilities(context.Context) (vm.Capabilities, error) {
	return vm.Capabilities{Driver: "host", Reason: "no hypervisor"}, nil
}

// stranger makes a machine that no instance knows, without a daemon.
func (r *rig) stranger() instance.ID {
	r.t.Helper()
	r.open()
	v := r.create("stranger")
	rec, err := r.db.Fleet().Instances(r.t.Context(), "")
	if err != nil || len(rec) != 1 {
		r.t.Fatal(err)
	}
	store := r.db.Fleet()
	r.fleet.Close()
	if err := store.Apply(r.t.Context(), &fleet.Change{Remove: &rec[0]}); err != nil {
		r.t.Fatal(err)
	}
	r.close()
	return v.ID
}

// TestStrangersAreQuarantined: a machine without a row is told of, kept for a
// time that goes on across daemons, and removed only then and only while the
// database is sound.
func TestStrangersAreQuarantined(t *testing.T) {
	r := newRig(t)
	id := r.stranger()
	r.config = func(c *fleet.Config) { c.OrphanGrace = time.Hour }
	r.open()
	first, err := r.fleet.Orphans(t.Context())
	if err != nil || len(first) != 1 || first[0].ID != id || first[0].RemoveAfter.Sub(first[0].Since) != time.Hour {
		t.Fatalf("orphans: %+v, %v", first, err)
	}
	found, err := r.fleet.Events(t.Context(), 0, fleet.EventFilter{Types: []string{fleet.EventOrphan}}, 0)
	if err != nil || len(found) != 1 || found[0].Instance != id || found[0].Reason != "found" {
		t.Errorf("events: %+v, %v", found, err)
	}
	r.close()
	r.open()
	second, err := r.fleet.Orphans(t.Context())
	if err != nil || len(second) != 1 || !second[0].Since.Equal(first[0].Since) {
		t.Errorf("in the next daemon: %+v, %v", second, err)
	}
	r.close()

	// Its time is up, but the database is not sound: nothing is removed.
	checked := make(chan struct{}, 64)
	r.config = func(c *fleet.Config) {
		c.OrphanGrace = 400 * time.Millisecond
		c.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
		c.Keeper = unsound{c.Keeper, checked}
	}
	r.open()
	<-checked
	<-checked
	if list, err := r.fleet.Orphans(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("with an unsound database: %+v, %v", list, err)
	}
	r.close()

	r.config = func(c *fleet.Config) {
		c.OrphanGrace = 400 * time.Millisecond
		c.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	}
	r.open()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := r.fleet.Follow(ctx, 0, fleet.EventFilter{Types: []string{fleet.EventOrphan}})
	if err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Reason == "removed" {
			break
		}
	}
	r.empty()
}

// unsound is a keeper whose database is damaged.
type unsound struct {
	fleet.Keeper
	checked chan struct{}
}

func (u unsound) Check(context.Context) error {
	select {
	case u.checked <- struct{}{}:
	default:
	}
	return errBoom
}

// TestLostDiskIsTold: a stopped instance whose files are gone is not started
// with a new disk as if nothing had been on the old one.
func TestLostDiskIsTold(t *testing.T) {
	r := newRig(t)
	r.open()
	for _, name := range []string{"stopped", "running"} {
		r.create(name)
	}
	if op := r.act("stopped", fleet.ActionStop); op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	found, err := r.driver.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var machines []vm.Instance
	r.fleet.Close()
	for _, f := range found {
		m, err := r.driver.Recover(t.Context(), f.Handle)
		if err != nil {
			t.Fatal(err)
		}
		machines = append(machines, m)
	}
	for _, m := range machines {
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.close()
	r.open()
	for _, name := range []string{"stopped", "running"} {
		v := r.until(name, instance.Failed)
		if v.Fault == nil || v.Fault.Code != "machine.lost" {
			t.Errorf("%s: %v", name, v.Fault)
		}
		if op := r.act(name, fleet.ActionStart); op.State != fleet.OperationFailed || op.Fault.Code != "machine.lost" {
			t.Errorf("start of %s ended %s: %v", name, op.State, op.Fault)
		}
	}
}

// TestProviderThatIsNotOffered: its instances stay listed as they were, and
// work again when it is back.
func TestProviderThatIsNotOffered(t *testing.T) {
	r := newRig(t)
	r.open()
	before := r.create("orphaned")
	r.close()
	r.config = func(c *fleet.Config) { c.Drivers = map[string]vm.Driver{} }
	r.open()
	v := r.when("orphaned", "unhealthy", func(v fleet.View) bool { return v.Health != nil })
	if v.ID != before.ID || v.Phase != instance.Running || v.Health.Code != "machine.unreachable" {
		t.Errorf("without its provider: %+v", v)
	}
	for _, a := range []fleet.Action{fleet.ActionStop, fleet.ActionRestart, fleet.ActionPause} {
		if _, err := r.fleet.Act(t.Context(), "orphaned", a, fleet.ActOptions{Force: true}); faultCode(err) != "provider.unavailable" {
			t.Errorf("%s without its provider: %v", a, err)
		}
	}
	if v := r.get("orphaned"); v.Phase != instance.Running {
		t.Errorf("it runs, and is said to be %s", v.Phase)
	}
	r.close()
	r.config = nil
	r.open()
	v = r.when("orphaned", "well", func(v fleet.View) bool { return v.Phase == instance.Running && v.Health == nil })
	if out := r.run(v, "echo", "here"); out != "here\n" {
		t.Errorf("output is %q", out)
	}
}

// TestProviderThatIsGone: an instance of a provider that is not offered can be
// removed. Its machine, if the provider comes back, is a stranger's.
func TestProviderThatIsGone(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("bereft")
	r.close()
	r.config = func(c *fleet.Config) { c.Drivers = map[string]vm.Driver{} }
	r.open()
	op, err := r.fleet.Delete(t.Context(), "bereft", 0)
	if err != nil {
		t.Fatal(err)
	}
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		t.Fatalf("the delete ended %s: %v", op.State, op.Fault)
	}
	told := slices.ContainsFunc(op.Steps, func(s fleet.OperationStep) bool {
		return s.Name == "machine" && s.Mark == "skipped" && strings.Contains(s.Cause, "not offered")
	})
	if !told {
		t.Errorf("nothing says that the machine was left: %+v", op.Steps)
	}
	r.gone("bereft")
	r.close()
	r.config = nil
	r.open()
	if left, err := r.fleet.Orphans(t.Context()); err != nil || len(left) != 1 || left[0].ID != v.ID {
		t.Errorf("its provider is back: %+v, %v", left, err)
	}
}

// TestClockThatIsSetCostsNoStranger: a clock that is set while the daemon runs
// takes nothing of the grace of a machine that no instance knows, and gives it
// nothing.
func TestClockThatIsSetCostsNoStranger(t *testing.T) {
	r := newRig(t)
	r.stranger()
	r.config = func(c *fleet.Config) { c.OrphanGrace = time.Hour }
	r.open() // it is known from now on, with an hour of grace
	r.close()
	var ahead atomic.Int64
	r.config = func(c *fleet.Config) {
		c.OrphanGrace = time.Second // looked at four times as often
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}
	r.open()
	due := func() time.Time {
		list, err := r.fleet.Orphans(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("orphans: %+v, %v", list, err)
		}
		return list[0].RemoveAfter
	}
	was := due()
	for _, jump := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		ahead.Store(int64(jump))
		deadline := time.NewTimer(patience)
		tick := time.NewTicker(10 * time.Millisecond)
		for by := due().Sub(was); (by - jump).Abs() > time.Minute; by = due().Sub(was) {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatalf("the clock was set by %v, the end of its grace by %v", jump, by)
			}
		}
		tick.Stop()
		deadline.Stop()
	}
}
