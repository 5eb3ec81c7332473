package faults

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// killAgent kills the process of an instance.
func (w *world) killAgent(id string) {
	w.Helper()
	w.want(w.killAny(id) == 1, "%s had another number of processes than one", id)
}

// killAny kills the processes of an instance and returns how many there were.
func (w *world) killAny(id string) int {
	w.Helper()
	pids := w.agents()[id]
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			w.Fatal(err)
		}
	}
	return len(pids)
}

// failed waits until an instance has failed, and wants that to be told well.
func (w *world) failed(name string, codes ...string) instance {
	w.Helper()
	var i instance
	w.until(name+" to fail", func() bool {
		var ok bool
		i, ok = w.find(name)
		return !ok || i.State == "failed"
	})
	f := i.Fault
	if f == nil {
		w.Fatalf("%q is %q without a fault", name, i.State)
	}
	w.want(slices.Contains(codes, f.Code) && f.Cause != "" && f.Remediation != "", "the fault is %s, want %v", f, codes)
	return i
}

// TestKilledAgents kills the process that is the machine, in every state it
// can be in. That becomes a fault with a name, and a start mends it.
func TestKilledAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("victim")
	w.create("bystander")
	i, _ := w.find("victim")
	// What the machine's console said last belongs to the fault.
	const words = "these were its last words"
	console := filepath.Join(w.d.StateDir, "host", "machines", i.ID, "console.log")
	mend := func(when string) {
		t.Helper()
		w.consistent(when)
		w.works("victim")
		w.works("bystander")
	}
	speak := func() {
		t.Helper()
		f, err := os.OpenFile(console, os.O_WRONLY|os.O_APPEND, 0)
		w.check(err)
		_, err = f.WriteString(words + "\n")
		w.check(err)
		w.check(f.Close())
	}

	speak()
	w.killAgent(i.ID)
	got := w.failed("victim", "machine.killed")
	w.want(got.Fault.Blame == "host" && strings.Contains(got.Fault.Console, words), "the fault is %s with the console %q", got.Fault, got.Fault.Console)
	mend("killed while idle")

	k := w.adapt(i.ID)
	w.until("output", func() bool { return strings.Contains(w.task(i.ID, k.ID).output(), "tick 2") })
	w.killAgent(i.ID)
	w.failed("victim", "machine.killed")
	if k = w.finished(i.ID, k.ID); k.Status.State != "TASK_STATE_FAILED" {
		t.Errorf("the task of a killed machine is %s: %+v", k.Status.State, k.Status.Message)
	}
	mend("killed while it works")

	w.want(w.act("victim", "pause").State == "succeeded", "it cannot be paused")
	w.killAgent(i.ID)
	w.failed("victim", "machine.killed")
	mend("killed while paused")

	// Between the request and its end, wherever that is.
	for range 3 {
		a := w.ask(http.MethodPost, "/instances/victim:restart", nil, "")
		w.killAny(i.ID)
		w.ended(a)
		mend("killed in a restart")
	}

	// While nobody looks.
	w.check(w.d.Kill())
	w.killAgent(i.ID)
	w.launch()
	w.failed("victim", "machine.killed", "machine.ended")
	mend("killed without a daemon")

	w.check(w.d.Stop())
	for id := range w.agents() {
		w.killAgent(id)
	}
	w.launch()
	w.failed("victim", "machine.killed", "machine.ended")
	w.failed("bystander", "machine.killed", "machine.ended")
	mend("all killed without a daemon")
}

// adapt starts the adapter command, which counts for some seconds.
func (w *world) adapt(id string) task {
	w.Helper()
	return w.speak(id, object{
		"parts": []any{object{"text": "count"}},
		"metadata": object{extAdapter: object{
			"adapter": "sandbox-agent-runner", "mode": "plan",
			"command": []any{"node", rig.AdapterDir + "/runner.mjs", "--request", rig.AdapterDir + "/request.json"},
		}},
	}, extAdapter, true)
}
