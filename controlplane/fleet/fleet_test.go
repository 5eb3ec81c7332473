package fleet_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

func faultCode(err error) string {
	if err == nil {
		return ""
	}
	return instance.AsFault(err).Code
}

// run runs a command in an instance and returns its output.
func (r *rig) run(v fleet.View, argv ...string) string {
	r.t.Helper()
	link, err := r.fleet.Link(r.t.Context(), v.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := instance.NewID()
	if err != nil {
		r.t.Fatal(err)
	}
	spec := &agentv1.RunSpec{Argv: argv, Root: "/", WorkingDir: "/", Timeout: durationpb.New(time.Minute)}
	if _, err := link.StartRun(r.t.Context(), id.String(), spec); err != nil {
		r.t.Fatal(err)
	}
	var out strings.Builder
	x, err := link.FollowRun(r.t.Context(), id.String(), agentlink.FollowOptions{
		Sink: agentlink.Each(func(_ context.Context, o *agentv1.Output) error { out.Write(o.GetData()); return nil }),
	})
	if err != nil || x.GetCode() != 0 {
		r.t.Fatalf("run %q: %v, %v", argv, x, err)
	}
	return out.String()
}

func TestLifeOfAnInstance(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("life")
	if v.Phase != instance.Running || v.Guest == nil || v.Kind != "host" || v.ImageRef != "" {
		t.Fatalf("after create: %+v", v)
	}
	if out := r.run(v, "echo", "hello"); out != "hello\n" {
		t.Errorf("output is %q", out)
	}
	for _, step := range []struct {
		action fleet.Action
		phase  instance.Phase
		state  fleet.OperationState
	}{
		{fleet.ActionStart, instance.Running, fleet.OperationSucceeded}, // ignored: it runs
		{fleet.ActionPause, instance.Paused, fleet.OperationSucceeded},
		{fleet.ActionPause, instance.Paused, fleet.OperationSucceeded}, // ignored
		{fleet.ActionStart, instance.Paused, fleet.OperationFailed},    // denied
		{fleet.ActionResume, instance.Running, fleet.OperationSucceeded},
		{fleet.ActionStop, instance.Stopped, fleet.OperationSucceeded},
		{fleet.ActionResume, instance.Stopped, fleet.OperationFailed},
		{fleet.ActionStop, instance.Stopped, fleet.OperationSucceeded},
		{fleet.ActionStart, instance.Running, fleet.OperationSucceeded},
	} {
		op := r.act("life", step.action)
		got := r.get("life")
		if op.State != step.state || got.Phase != step.phase {
			t.Fatalf("%s: operation %s (%v), instance %s; want %s, %s", step.action, op.State, op.Fault, got.Phase, step.state, step.phase)
		}
		if op.State == fleet.OperationFailed && op.Fault.Blame != instance.Caller {
			t.Errorf("%s out of place is the fault of the %s", step.action, op.Fault.Blame)
		}
		if op.State == fleet.OperationFailed && !strings.HasSuffix(op.Fault.Hint, " life`") {
			t.Errorf("%s out of place: no next step in %q", step.action, op.Fault.Hint)
		}
	}
	if out := r.run(r.get("life"), "echo", "again"); out != "again\n" {
		t.Errorf("after a restart the output is %q", out)
	}
	op, err := r.fleet.Delete(t.Context(), v.ID.String(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		t.Fatalf("delete ended %s: %v", op.State, op.Fault)
	}
	r.gone("life")
	r.empty()
}

// gone waits until the fleet no longer knows a name.
func (r *rig) gone(name string) {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		_, err := r.fleet.Get(r.t.Context(), name)
		if faultCode(err) == "instance.not_found" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("%s is still there: %v", name, err)
		}
	}
}

// TestFailedCreateLeavesNothing fails each step in turn: nothing is left, not
// even the name, and the same create then succeeds.
func TestFailedCreateLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for step, breakIt := range map[string]func(*rig){
		"image":   func(r *rig) { r.shelf.ensure = func(context.Context) error { return boom } },
		"machine": func(r *rig) { r.fault.create = func() error { return boom } },
		"boot":    func(r *rig) { r.fault.start = func(context.Context) error { return boom } },
	} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t)
			r.open()
			breakIt(r)
			op, err := r.fleet.Create(t.Context(), request("phoenix"))
			if err != nil {
				t.Fatal(err)
			}
			op = r.end(op)
			if op.State != fleet.OperationFailed || !strings.Contains(op.Fault.Error(), "boom") || !strings.Contains(op.Fault.Error(), step) {
				t.Fatalf("create ended %s: %v", op.State, op.Fault)
			}
			r.gone("phoenix")
			r.empty()
			r.shelf.ensure, r.fault.create, r.fault.start = nil, nil, nil
			r.create("phoenix")
		})
	}
}

// TestMachineThatDiesWhileStarting is reported with its console, at once and
// not at the deadline.
func TestMachineThatDiesWhileStarting(t *testing.T) {
	r := newRig(t)
	r.open()
	r.fault.start = func(context.Context) error {
		return &instance.Fault{Blame: instance.Guest, Code: "machine.ended", Err: errors.New("it died")}
	}
	op, err := r.fleet.Create(t.Context(), request("short"))
	if err != nil {
		t.Fatal(err)
	}
	if op = r.end(op); op.Fault == nil || op.Fault.Blame != instance.Guest || op.Fault.Code != "machine.ended" {
		t.Errorf("create ended %s: %+v", op.State, op.Fault)
	}
}

func TestOneOfManyCreatesWins(t *testing.T) {
	r := newRig(t)
	r.open()
	var mu sync.Mutex
	var won []fleet.Operation
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			op, err := r.fleet.Create(t.Context(), request("same"))
			if err != nil {
				if faultCode(err) != "instance.name_taken" {
					t.Errorf("create: %v", err)
				}
				return
			}
			mu.Lock()
			won = append(won, op)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d creates of one name were taken", len(won))
	}
	if op := r.end(won[0]); op.State != fleet.OperationSucceeded {
		t.Errorf("it ended %s: %v", op.State, op.Fault)
	}
}

// TestDeleteCutsCreateShort deletes an instance whose machine hangs in its
// start.
func TestDeleteCutsCreateShort(t *testing.T) {
	r := newRig(t)
	r.open()
	starting := r.hang()
	create, err := r.fleet.Create(t.Context(), request("hangs"))
	if err != nil {
		t.Fatal(err)
	}
	<-starting
	del, err := r.fleet.Delete(t.Context(), "hangs", 0)
	if err != nil {
		t.Fatal(err)
	}
	if op := r.end(create); op.State != fleet.OperationCanceled {
		t.Errorf("create ended %s: %v", op.State, op.Fault)
	}
	if op := r.end(del); op.State != fleet.OperationSucceeded {
		t.Errorf("delete ended %s: %v", op.State, op.Fault)
	}
	r.gone("hangs")
	r.empty()
}

// TestNextDaemonTakesOver ends the daemon with machines in several phases; the
// next one has them in the same phases, and the running one answers.
func TestNextDaemonTakesOver(t *testing.T) {
	r := newRig(t)
	r.open()
	before := r.create("runs")
	r.create("rests")
	if op := r.act("rests", fleet.ActionStop); op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	pid := r.run(before, "sh", "-c", "echo $PPID")
	r.close()
	r.open()
	after := r.until("runs", instance.Running)
	if after.ID != before.ID || r.run(after, "sh", "-c", "echo $PPID") == "" || pid == "" {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if v := r.get("rests"); v.Phase != instance.Stopped {
		t.Errorf("the stopped one is %s", v.Phase)
	}
	if op := r.act("rests", fleet.ActionStart); op.State != fleet.OperationSucceeded {
		t.Errorf("start after the restart: %v", op.Fault)
	}
}

// TestNextDaemonGoesOnWithCreate ends the daemon in the middle of a create;
// the next one finishes it, under the same operation.
func TestNextDaemonGoesOnWithCreate(t *testing.T) {
	r := newRig(t)
	r.open()
	starting := r.hang()
	op, err := r.fleet.Create(t.Context(), request("halfway"))
	if err != nil {
		t.Fatal(err)
	}
	<-starting
	r.close()
	r.fault.start = nil
	r.open()
	if op = r.end(op); op.State != fleet.OperationSucceeded {
		t.Fatalf("create ended %s: %v", op.State, op.Fault)
	}
	if v := r.get("halfway"); v.Phase != instance.Running {
		t.Errorf("it is %s", v.Phase)
	}
}

// TestCrashIsAFault kills a machine behind the fleet's back.
func TestCrashIsAFault(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("crash")
	// A command's parent is its shim, and the shim's parent is the agent.
	out := r.run(v, "sh", "-c", `cut -d" " -f4 "/proc/$PPID/stat"`)
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	kill(t, pid)
	got := r.until("crash", instance.Failed)
	if got.Fault == nil || got.Fault.Code != "machine.killed" || got.Fault.Hint == "" {
		t.Errorf("the fault is %+v", got.Fault)
	}
	_, err = r.fleet.Guest(t.Context(), v.ID)
	if !errors.Is(err, vm.ErrGone) {
		t.Errorf("Guest of a failed instance: %v, want ErrGone", err)
	}
	if op := r.act("crash", fleet.ActionStart); op.State != fleet.OperationSucceeded {
		t.Errorf("start after the crash: %v", op.Fault)
	}
}

func TestBrokenRequests(t *testing.T) {
	r := newRig(t)
	r.open()
	for name, c := range map[string]struct {
		req  fleet.CreateRequest
		code string
	}{
		"loadout unknown": {fleet.CreateRequest{Loadout: fleet.Source{Name: "nothing"}}, "loadout.not_found"},
		"loadout broken":  {fleet.CreateRequest{Loadout: fleet.Source{Name: "x.yaml", Data: []byte("kind: [")}}, "loadout.invalid"},
		"name":            {fleet.CreateRequest{Name: "Not/A Name", Loadout: request("").Loadout}, "instance.name"},
		"image": {fleet.CreateRequest{Loadout: fleet.Source{
			Name: "x.yaml", Data: []byte(strings.Replace(loadout, "image: minimal", "image: other", 1)),
		}}, "image.not_found"},
		"provider": {fleet.CreateRequest{Loadout: fleet.Source{Name: "minimal"}}, "provider.kind"},
	} {
		if _, err := r.fleet.Create(t.Context(), c.req); faultCode(err) != c.code || instance.AsFault(err).Blame != instance.Caller {
			t.Errorf("%s: %v (code %q), want the caller's fault %q", name, err, faultCode(err), c.code)
		}
	}
	if page, err := r.fleet.List(t.Context(), fleet.Filter{}); err != nil || len(page.Views) != 0 {
		t.Errorf("list is %v, %v", page, err)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}
