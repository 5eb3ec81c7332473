package faults

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// consistent waits until everything that was asked for has ended, and compares
// what the control plane says with what clients were told, with the processes
// and with the files. After it, nothing is under way.
func (w *world) consistent(when string) {
	w.Helper()
	if w.Failed() {
		return
	}
	all := w.settled()
	w.names(when, all)
	w.machines(when, all)
	w.journal(when, all)
	var orphans struct{ Items []object }
	w.read("/orphans", &orphans)
	w.want(len(orphans.Items) == 0, "%s: orphans: %v", when, orphans.Items)
	if w.Failed() {
		w.FailNow()
	}
}

// settled waits for the end of every operation, and for phases that stay.
func (w *world) settled() (all []instance) {
	w.Helper()
	goesOn := func(op operation) bool { return op.EndedAt == nil }
	for _, op := range slices.DeleteFunc(w.operations(), func(op operation) bool { return !goesOn(op) }) {
		w.end(op.ID)
	}
	w.until("the ends to be stored", func() bool { return !slices.ContainsFunc(w.operations(), goesOn) })
	w.until("phases that stay", func() bool {
		all = w.instances()
		return !slices.ContainsFunc(all, func(i instance) bool {
			return slices.Contains([]string{"provisioning", "starting", "stopping", "deleting"}, i.State)
		})
	})
	return all
}

// names: no instance is lost, none is there twice, none came from nowhere.
func (w *world) names(when string, all []instance) {
	w.Helper()
	there := map[string]string{}
	for _, i := range all {
		w.want(there[i.Name] == "", "%s: two instances are called %q: %s and %s", when, i.Name, there[i.Name], i.ID)
		there[i.Name] = i.ID
		w.want((i.State == "failed") == (i.Fault != nil) || i.State == "stopped", "%s: %q is %s with %s", when, i.Name, i.State, i.Fault)
		if f := i.Fault; f != nil {
			w.want(f.Code != "" && f.Cause != "" && f.Remediation != "", "%s: the fault of %q does not say what to do: %s", when, i.Name, f)
		}
	}
	w.want(maps.Equal(there, w.held), "%s: there are the instances %v, there should be %v", when, there, w.held)
}

// machines: every instance has the one process that its state says, and its
// files; nobody else has any. A process that is being forked looks like two,
// so there is some time for that to pass.
func (w *world) machines(when string, all []instance) {
	w.Helper()
	var wrong []string
	for deadline := time.Now().Add(5 * time.Second); ; {
		if wrong = w.compare(all); len(wrong) == 0 || time.Now().After(deadline) {
			break
		}
	}
	w.want(len(wrong) == 0, "%s: %s", when, strings.Join(wrong, "; "))
}

func (w *world) compare(all []instance) (wrong []string) {
	w.Helper()
	agents := w.agents()
	dirs := map[string]bool{}
	entries, err := os.ReadDir(w.machinesDir())
	w.check(err)
	for _, e := range entries {
		dirs[e.Name()] = true
	}
	for _, i := range all {
		want := 0
		if i.State == "running" || i.State == "paused" {
			want = 1
		}
		if n := len(agents[i.ID]); n != want {
			wrong = append(wrong, fmt.Sprintf("%q is %s and has the processes %v", i.Name, i.State, agents[i.ID]))
		}
		// A stop may come before the first answer of a machine, of which nothing
		// is kept then.
		if !dirs[i.ID] && (i.Guest != nil || i.State != "stopped") {
			wrong = append(wrong, fmt.Sprintf("%q is %s and has no files", i.Name, i.State))
		}
		delete(agents, i.ID)
		delete(dirs, i.ID)
	}
	if len(agents) > 0 {
		wrong = append(wrong, fmt.Sprintf("processes of nobody: %v", agents))
	}
	if len(dirs) > 0 {
		wrong = append(wrong, fmt.Sprintf("files of nobody: %v", slices.Collect(maps.Keys(dirs))))
	}
	for _, f := range w.files() {
		if !slices.Contains(w.bare, f) {
			wrong = append(wrong, "a file of nobody: "+f)
		}
	}
	return wrong
}

// journal: every operation ended once and truthfully, and the log of events
// tells the same story without a gap.
func (w *world) journal(when string, all []instance) {
	w.Helper()
	story := w.events()
	began, ended, made, gone, phase := map[string]int{}, map[string]string{}, map[string]int{}, map[string]int{}, map[string]string{}
	for n, e := range story {
		w.want(n == 0 || e.Seq == story[n-1].Seq+1, "%s: event %d comes after %d", when, e.Seq, story[max(0, n-1)].Seq)
		switch e.Type {
		case "operation.created":
			began[e.Operation]++
		case "operation.ended":
			w.want(ended[e.Operation] == "", "%s: operation %s ended twice", when, e.Operation)
			ended[e.Operation] = e.Reason
		case "instance.created":
			made[e.Instance]++
			phase[e.Instance] = e.State
		case "instance.deleted":
			gone[e.Instance]++
		case "instance.phase":
			w.want(gone[e.Instance] == 0, "%s: %q became %s after its end", when, e.Name, e.State)
			phase[e.Instance] = e.State
		}
	}
	for _, op := range w.operations() {
		w.want((began[op.ID] == 1 || w.full && began[op.ID] == 0) && ended[op.ID] == op.State, "%s: %s of %q is %s; the log has it begin %d times and end as %q",
			when, op.Kind, op.Name, op.State, began[op.ID], ended[op.ID])
		w.want((op.State == "succeeded") == (op.Fault == nil), "%s: %s of %q ended %s with %s", when, op.Kind, op.Name, op.State, op.Fault)
		if op.Fault != nil {
			w.want(op.Fault.Code != "" && op.Fault.Cause != "", "%s: %s of %q ended %s without a reason", when, op.Kind, op.Name, op.State)
		}
	}
	for _, i := range all {
		w.want(made[i.ID] == 1 && gone[i.ID] == 0 && phase[i.ID] == i.State, "%s: %q is %s; the log made it %d times, removed it %d times and says %q",
			when, i.Name, i.State, made[i.ID], gone[i.ID], phase[i.ID])
	}
}
