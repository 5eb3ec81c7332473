package fleet_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// agentPid is the pid of the agent of an instance: a command's parent is its
// shim, and the shim's parent is the agent.
func (r *rig) agentPid(v fleet.View) int {
	r.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(r.run(v, "sh", "-c", `cut -d" " -f4 "/proc/$PPID/stat"`)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// events returns all kept events of an instance.
func (r *rig) events(id instance.ID) []fleet.Event {
	r.t.Helper()
	all, err := r.fleet.Events(r.t.Context(), 0, fleet.EventFilter{Instance: id}, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func TestRestart(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("again")
	before := r.agentPid(v)
	if op := r.act("again", fleet.ActionRestart); op.State != fleet.OperationSucceeded {
		t.Fatalf("restart ended %s: %v", op.State, op.Fault)
	}
	after := r.get("again")
	if after.Phase != instance.Running || after.Restarts != 1 || r.agentPid(after) == before {
		t.Errorf("after a restart: %+v", after)
	}
	r.act("again", fleet.ActionStop)
	if op := r.act("again", fleet.ActionRestart); op.State != fleet.OperationSucceeded || r.get("again").Phase != instance.Running {
		t.Errorf("restart of a stopped one: %v", op.Fault)
	}
}

// TestWhatIsSoAlready: a request for it succeeds, and its journal says that
// nothing was done.
func TestWhatIsSoAlready(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("so")
	for _, c := range []struct {
		action  fleet.Action
		already bool
	}{
		{fleet.ActionStart, true}, {fleet.ActionResume, true},
		{fleet.ActionPause, false}, {fleet.ActionPause, true}, {fleet.ActionResume, false},
		{fleet.ActionStop, false}, {fleet.ActionStop, true}, {fleet.ActionStart, false}, {fleet.ActionStart, true},
	} {
		op := r.act("so", c.action)
		if op.State != fleet.OperationSucceeded || op.Percent != 100 {
			t.Fatalf("%s ended %s: %v", c.action, op.State, op.Fault)
		}
		already := len(op.Steps) == 1 && op.Steps[0].Mark == "skipped" && op.Steps[0].Name == string(c.action)
		if already != c.already {
			t.Errorf("%s: steps are %+v", c.action, op.Steps)
		}
	}
}

// TestLacks: what keeps this host from making a loadout's machine is told by
// the field that asks for it.
func TestLacks(t *testing.T) {
	r := newRig(t)
	r.open()
	lacks := func(text string) map[string]string {
		t.Helper()
		l, err := loadouts.Resolve("l.yaml", func(string) ([]byte, string, error) { return []byte(text), "l.yaml", nil })
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, f := range r.fleet.Lacks(t.Context(), l) {
			found[f.Field] = f.Code
		}
		return found
	}
	const head = "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: l}\n"
	for text, want := range map[string]map[string]string{
		loadout: {},
		head + "image: nowhere\nruntime_options: {kind: host}\n":                                     {"image": "image.not_found"},
		head + "image: nowhere\nruntime_options: {provider: moon}\n":                                 {"image": "image.not_found", "runtime_options": "provider.unknown"},
		head + "image: minimal\nruntime_options: {kind: host, required_capabilities: [moon.land]}\n": {"runtime_options.required_capabilities": "provider.capability"},
	} {
		if got := lacks(text); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// TestEndOfTime: an instance whose time is up is stopped and removed, and the
// log says why.
func TestEndOfTime(t *testing.T) {
	r := newRig(t)
	r.open()
	req := request("mayfly")
	req.TTL = time.Hour
	v := r.createFrom(req)
	if left := time.Until(v.ExpiresAt); left <= 0 || left > time.Hour {
		t.Fatalf("it expires in %v", left)
	}
	if v, err := r.fleet.Renew(t.Context(), "mayfly", 0); err != nil || !v.ExpiresAt.IsZero() {
		t.Fatalf("renew without an end: %+v, %v", v, err)
	}
	if _, err := r.fleet.Renew(t.Context(), "mayfly", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r.gone("mayfly")
	r.empty()
	var phases []string
	for _, e := range r.events(v.ID) {
		if e.Type == fleet.EventPhase || e.Type == fleet.EventDeleted {
			phases = append(phases, string(e.Phase)+" "+e.Reason)
		}
	}
	want := []string{"starting request", "running request", "stopping expired", "deleting expired", "deleting expired"}
	if !slices.Equal(phases, want) {
		t.Errorf("the log says %q, want %q", phases, want)
	}
	page, err := r.fleet.Operations(t.Context(), fleet.OperationFilter{Instance: v.ID, Kind: "instance.expire"})
	if err != nil || len(page.Operations) != 1 {
		t.Fatalf("operations of the expiry: %+v, %v", page, err)
	}
	if op := r.end(page.Operations[0]); op.State != fleet.OperationSucceeded {
		t.Errorf("the expiry ended %s: %v", op.State, op.Fault)
	}
}

// TestEndOfTimeWhileAway: the end passes while no daemon is there. What is
// paused or stopped goes as well.
func TestEndOfTimeWhileAway(t *testing.T) {
	r := newRig(t)
	r.open()
	for name, action := range map[string]fleet.Action{"runs": "", "rests": fleet.ActionStop, "waits": fleet.ActionPause} {
		r.create(name)
		if action != "" {
			r.act(name, action)
		}
		if _, err := r.fleet.Renew(t.Context(), name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	r.close()
	r.config = func(c *fleet.Config) { c.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } }
	r.open()
	for _, name := range []string{"runs", "rests", "waits"} {
		r.gone(name)
	}
	r.empty()
}

const idlePause = "lifecycle: {idle: {timeout_seconds: 1, action: pause}}\n"

func TestIdleMachineIsPausedAndWoken(t *testing.T) {
	r := newRig(t)
	r.open()
	r.createFrom(requestWith("sleepy", idlePause))
	v := r.until("sleepy", instance.Paused)
	if !v.Resting || v.Reason != "idle" {
		t.Errorf("paused: %+v", v)
	}
	done := r.fleet.Touch(v.ID)
	if out := r.run(v, "echo", "awake"); out != "awake\n" { // it waits for the agent
		t.Errorf("output is %q", out)
	}
	if v = r.get("sleepy"); v.Phase != instance.Running || v.Resting || v.Reason != "used" {
		t.Errorf("woken: %+v", v)
	}
	done()
	r.until("sleepy", instance.Paused)
	// Whoever pauses it by hand wants it to stay so.
	if op := r.act("sleepy", fleet.ActionResume); op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	r.act("sleepy", fleet.ActionPause)
	if v = r.get("sleepy"); v.Phase == instance.Paused && !v.Resting {
		defer r.fleet.Touch(v.ID)()
		if _, err := r.fleet.Link(t.Context(), v.ID); faultCode(err) != "instance.state" {
			t.Errorf("link to one paused by hand: %v", err)
		}
	}
}

func TestIdleMachineIsStoppedAndWoken(t *testing.T) {
	r := newRig(t)
	r.open()
	r.createFrom(requestWith("lazy", "lifecycle: {idle: {timeout_seconds: 1, action: stop}}\n"))
	v := r.until("lazy", instance.Stopped)
	if !v.Resting {
		t.Errorf("stopped: %+v", v)
	}
	r.close() // rest outlives the daemon
	r.open()
	if out := r.run(v, "echo", "awake"); out != "awake\n" {
		t.Errorf("output is %q", out)
	}
	if v = r.get("lazy"); v.Restarts != 1 {
		t.Errorf("woken: %+v", v)
	}
}

func TestIdleMachineThatMustNotWake(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.createFrom(requestWith("deep", "lifecycle: {idle: {timeout_seconds: 1, action: pause, wake: false}}\n"))
	r.until("deep", instance.Paused)
	defer r.fleet.Touch(v.ID)()
	if _, err := r.fleet.Link(t.Context(), v.ID); faultCode(err) != "instance.state" {
		t.Errorf("link: %v", err)
	}
}

// TestUsedMachineIsNotIdle: while it is in use, its clock does not run.
func TestUsedMachineIsNotIdle(t *testing.T) {
	var ahead time.Duration // changed only while no daemon looks
	r := newRig(t)
	r.config = func(c *fleet.Config) { c.Now = func() time.Time { return time.Now().Add(ahead) } }
	r.open()
	v := r.createFrom(requestWith("busy", "lifecycle: {idle: {timeout_seconds: 2, action: pause}}\n"))
	done := r.fleet.Touch(v.ID)
	began := time.Now()
	r.when("busy", "in use for a while", func(v fleet.View) bool {
		if v.Phase != instance.Running {
			t.Fatalf("it is %s while in use", v.Phase)
		}
		return time.Since(began) > 4*time.Second
	})
	done()
	r.until("busy", instance.Paused)
}

// TestIdleClockBeginsWhenItRuns: what a boot takes, and the time in which a
// machine is paused or stopped, is not counted as idle.
func TestIdleClockBeginsWhenItRuns(t *testing.T) {
	const timeout = 2 * time.Second
	var ahead, last atomic.Int64 // of the clock; when it was moved
	pass := func() {
		ahead.Add(int64(time.Hour))
		last.Store(time.Now().UnixNano())
	}
	r := newRig(t)
	r.config = func(c *fleet.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}
	r.shelf.ensure = func(context.Context) error { pass(); return nil } // every boot takes an hour
	r.open()
	rested := func(after string) {
		t.Helper()
		r.when("fresh", "idle", func(v fleet.View) bool { return v.Phase == instance.Paused && v.Resting })
		if ran := time.Since(time.Unix(0, last.Load())); ran < timeout {
			t.Errorf("after a %s it was paused within %v, want no sooner than after %v", after, ran, timeout)
		}
	}
	r.createFrom(requestWith("fresh", "lifecycle: {idle: {timeout_seconds: 2, action: pause}}\n"))
	rested("create")
	for _, action := range []fleet.Action{fleet.ActionResume, fleet.ActionStart, fleet.ActionRestart} {
		if action == fleet.ActionStart {
			r.act("fresh", fleet.ActionStop)
		}
		pass()
		if op := r.act("fresh", action); op.State != fleet.OperationSucceeded {
			t.Fatal(op.Fault)
		}
		rested(string(action))
	}
}

// TestSilentAgentIsAFault stops the agent's process: the machine runs, its
// health says that nobody answers, and is well again when it does.
func TestSilentAgentIsAFault(t *testing.T) {
	r := newRig(t)
	r.config = func(c *fleet.Config) { c.Limits = supervise.Limits{Silence: time.Second} }
	r.open()
	v := r.create("mute")
	pid := r.agentPid(v)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The host driver calls a stopped process paused, which a hung machine is
	// not; so the fleet corrects its phase.
	r.when("mute", "paused or unhealthy", func(v fleet.View) bool {
		return v.Phase == instance.Paused || v.Health != nil && v.Health.Code == "agent.silent"
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r.get("mute").Phase == instance.Paused {
		r.act("mute", fleet.ActionResume)
	}
	r.when("mute", "well", func(v fleet.View) bool { return v.Phase == instance.Running && v.Health == nil })
	if out := r.run(v, "echo", "back"); out != "back\n" {
		t.Errorf("output is %q", out)
	}
}

// TestPauseHasADeadline: a hypervisor that does not answer is a fault, and the
// machine can be ended.
func TestPauseHasADeadline(t *testing.T) {
	r := newRig(t)
	r.config = func(c *fleet.Config) { c.Limits = supervise.Limits{Toggle: 50 * time.Millisecond} }
	r.fault.pause = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	r.open()
	r.create("stuck")
	op := r.act("stuck", fleet.ActionPause)
	if op.State != fleet.OperationFailed || op.Fault.Code != "machine.unresponsive" || !strings.Contains(op.Fault.Hint, "stop --force") {
		t.Fatalf("pause ended %s: %v", op.State, op.Fault)
	}
	if v := r.get("stuck"); v.Phase != instance.Running {
		t.Errorf("it is %s", v.Phase)
	}
	op, err := r.fleet.Act(t.Context(), "stuck", fleet.ActionStop, fleet.ActOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		t.Errorf("forced stop ended %s: %v", op.State, op.Fault)
	}
}

// TestGuestThatPowersOffSaysSo: it is stopped, and the fault says why.
func TestGuestThatPowersOffSaysSo(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("leaver")
	link, err := r.fleet.Link(t.Context(), v.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := link.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	v = r.until("leaver", instance.Stopped)
	if v.Fault == nil || v.Fault.Code != "machine.powered_off" {
		t.Errorf("it stopped with %v", v.Fault)
	}
	if op := r.act("leaver", fleet.ActionStart); op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	if v = r.get("leaver"); v.Fault != nil {
		t.Errorf("it runs with %v", v.Fault)
	}
}

func TestLabelsAndGenerations(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("labelled")
	if _, err := r.fleet.SetLabels(t.Context(), "labelled", map[string]string{"a": "b"}, v.Generation+7); faultCode(err) != "instance.changed" {
		t.Errorf("with a wrong generation: %v", err)
	}
	v, err := r.fleet.SetLabels(t.Context(), "labelled", map[string]string{"team": "blue", "n": "1"}, v.Generation)
	if err != nil || v.Labels["team"] != "blue" {
		t.Fatalf("labels: %v, %v", v.Labels, err)
	}
	if _, err := r.fleet.Delete(t.Context(), "labelled", v.Generation-1); faultCode(err) != "instance.changed" {
		t.Errorf("delete with an old generation: %v", err)
	}
	for text, want := range map[string]int{"team=blue": 1, "team!=blue": 0, "team in (red,blue),n": 1, "!team": 0} {
		sel, err := fleet.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		page, err := r.fleet.List(t.Context(), fleet.Filter{Selector: sel})
		if err != nil || page.Total != want || len(page.Views) != want {
			t.Errorf("%s: %+v, %v", text, page, err)
		}
	}
	if _, err := r.fleet.Renew(t.Context(), "labelled", -1); faultCode(err) != "instance.ttl" {
		t.Errorf("renew into the past: %v", err)
	}
	if _, err := r.fleet.Renew(t.Context(), "nobody", 0); faultCode(err) != "instance.not_found" {
		t.Errorf("renew of nobody: %v", err)
	}
}

var errBoom = errors.New("boom")
