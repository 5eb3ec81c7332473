package fleet_test

import (
	"slices"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// TestTenantsDoNotSeeOneAnother: what belongs to another tenant looks exactly
// like what is not there, and names are each tenant's own.
func TestTenantsDoNotSeeOneAnother(t *testing.T) {
	r := newRig(t)
	r.open()
	mine := r.create("same")
	ctx := fleet.WithTenant(t.Context(), "other")
	op, err := r.fleet.Create(ctx, request("same"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.fleet.Operation(t.Context(), op.ID); faultCode(err) != "operation.not_found" {
		t.Errorf("operation of another tenant: %v", err)
	}
	if _, err := r.fleet.CancelOperation(t.Context(), op.ID); faultCode(err) != "operation.not_found" {
		t.Errorf("cancel of another tenant's operation: %v", err)
	}
	ch, err := r.fleet.Watch(ctx, op.ID)
	if err != nil {
		t.Fatal(err)
	}
	for op = range ch { // the last one counts
	}
	if op.State != fleet.OperationSucceeded || op.Tenant != "other" {
		t.Fatalf("create of the other tenant: %+v", op)
	}
	theirs, err := r.fleet.Get(ctx, "same")
	if err != nil || theirs.ID == mine.ID {
		t.Fatalf("%+v, %v", theirs, err)
	}
	for name, err := range map[string]error{
		"get": second(r.fleet.Get(ctx, mine.ID.String())), "act": second(r.fleet.Act(ctx, mine.ID.String(), fleet.ActionStop, fleet.ActOptions{})),
		"delete": second(r.fleet.Delete(ctx, mine.ID.String(), 0)), "renew": second(r.fleet.Renew(ctx, mine.ID.String(), 0)),
		"labels": second(r.fleet.SetLabels(ctx, mine.ID.String(), nil, 0)), "log": second(r.fleet.Log(ctx, mine.ID.String())),
		"console": second(r.fleet.Console(ctx, mine.ID.String(), true, 0)), "plan": second(r.fleet.Plan(ctx, mine.ID)),
	} {
		if unknown := second(r.fleet.Get(ctx, "01a22d8f-926f-7270-a3c2-9c54c023e9fd")); faultCode(err) != faultCode(unknown) {
			t.Errorf("%s of another tenant's: %v, of nobody's: %v", name, err, unknown)
		}
	}
	for tenant, want := range map[string]int{"": 1, "other": 1, "third": 0} {
		ctx := fleet.WithTenant(t.Context(), tenant)
		page, err := r.fleet.List(ctx, fleet.Filter{})
		if err != nil || page.Total != want {
			t.Errorf("list of %q: %+v, %v", tenant, page, err)
		}
		ops, err := r.fleet.Operations(ctx, fleet.OperationFilter{Kind: "instance.create"})
		if err != nil || len(ops.Operations) != want {
			t.Errorf("operations of %q: %+v, %v", tenant, ops, err)
		}
		events, err := r.fleet.Events(ctx, 0, fleet.EventFilter{Types: []string{fleet.EventCreated}}, 0)
		if err != nil || len(events) != want {
			t.Errorf("events of %q: %+v, %v", tenant, events, err)
		}
		facts, err := r.fleet.Facts(ctx)
		if err != nil || facts.Instances != want {
			t.Errorf("%q is told of %d instances on the host, %v", tenant, facts.Instances, err)
		}
	}
	if err := r.fleet.StopAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, err := r.fleet.Get(ctx, "same"); err != nil || v.Phase != "stopped" {
		t.Errorf("after all were stopped: %+v, %v", v, err)
	}
	del, err := r.fleet.Delete(ctx, "same", 0)
	if err != nil {
		t.Fatal(err)
	}
	if ch, err = r.fleet.Watch(ctx, del.ID); err != nil {
		t.Fatal(err)
	}
	for range ch { // until it has ended
	}
}

func second[T any](_ T, err error) error { return err }

// TestOrphansAreTheDefaultTenants: whose they were nobody knows.
func TestOrphansAreTheDefaultTenants(t *testing.T) {
	r := newRig(t)
	stray := r.stranger()
	r.open()
	for _, tenant := range []string{"other", ""} {
		ctx := fleet.WithTenant(t.Context(), tenant)
		orphans, err := r.fleet.Orphans(ctx)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := r.fleet.Facts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checks := slices.ContainsFunc(facts.Checks, func(c fleet.Check) bool { return c.Name == "orphan" })
		if owner := tenant == ""; (len(orphans) == 1) != owner || checks != owner {
			t.Errorf("%q sees the orphans %+v, in the checks: %t", tenant, orphans, checks)
		}
		if err := r.fleet.RemoveOrphan(ctx, stray); (err == nil) != (tenant == "") || err != nil && faultCode(err) != "orphan.not_found" {
			t.Errorf("%q removes it: %v", tenant, err)
		}
	}
}
