package task_test

import (
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestScope: who sees whose tasks.
func TestScope(t *testing.T) {
	for _, c := range []struct {
		s             task.Scope
		tenant, owner string
		want          bool
	}{
		{task.Scope{Tenant: "a", Owner: "x"}, "a", "x", true},
		{task.Scope{Tenant: "a", Owner: "x"}, "a", "y", false},
		{task.Scope{Tenant: "a", Owner: "x"}, "b", "x", false},
		{task.Scope{Tenant: "a", Owner: "x", AllOwners: true}, "a", "y", true},
		{task.Scope{Tenant: "a", Owner: "x", AllOwners: true}, "b", "x", false},
		{task.Scope{Owner: "x"}, instance.DefaultTenant, "x", true},
		{task.Scope{Owner: "x"}, "", "x", false},
		{task.Scope{Tenant: instance.DefaultTenant, Owner: "x"}, instance.DefaultTenant, "x", true},
		{task.Scope{}, instance.DefaultTenant, "x", false},
		{task.System(), "a", "x", true},
		{task.System(), instance.DefaultTenant, "", true},
	} {
		if got := c.s.Includes(c.tenant, c.owner); got != c.want {
			t.Errorf("%+v sees the task of %q in %q: %t", c.s, c.owner, c.tenant, got)
		}
	}
	if (task.Scope{AllOwners: true}).Everywhere() || !task.System().Everywhere() {
		t.Error("only the system is everywhere")
	}
}

// TestStates: which end a task, and which wait for somebody.
func TestStates(t *testing.T) {
	for s, want := range map[task.State][2]bool{
		task.Submitted: {false, false}, task.Working: {false, false},
		task.InputRequired: {false, true}, task.AuthRequired: {false, true},
		task.Completed: {true, false}, task.Failed: {true, false}, task.Canceled: {true, false}, task.Rejected: {true, false},
	} {
		if got := [2]bool{s.Terminal(), s.Interrupted()}; got != want || !s.Valid() {
			t.Errorf("%s ends and waits: %v", s, got)
		}
	}
}
