package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

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
	// What is counted is of all.
	if up, silent := r.fleet.Links(); up != 2 || silent != 0 {
		t.Errorf("%d agents answer, %d do not", up, silent)
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

// TestHostTellsATenantItsOwn: machines that no instance knows were somebody's,
// and are shown to the operator's tenant only; others learn neither of them nor
// how many instances there are that are not theirs.
func TestHostTellsATenantItsOwn(t *testing.T) {
	r := newRig(t)
	id := r.stranger()
	r.config = func(c *fleet.Config) { c.OrphanGrace = time.Hour }
	r.open()
	r.create("mine")
	other := fleet.WithTenant(t.Context(), "other")
	for _, c := range []struct {
		ctx                context.Context
		orphans, instances int
	}{{t.Context(), 1, 1}, {other, 0, 0}} {
		orphans, err := r.fleet.Orphans(c.ctx)
		if err != nil || len(orphans) != c.orphans {
			t.Errorf("orphans: %+v, %v, want %d", orphans, err, c.orphans)
		}
		facts, err := r.fleet.Facts(c.ctx)
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		for _, check := range facts.Checks {
			if strings.Contains(check.Detail, id.String()) {
				told++
			}
		}
		if facts.Instances != c.instances || told != c.orphans {
			t.Errorf("the host tells of %d instances and %d orphans, want %d and %d", facts.Instances, told, c.instances, c.orphans)
		}
	}
	if err := r.fleet.RemoveOrphan(other, id); faultCode(err) != "orphan.not_found" {
		t.Errorf("removal by another tenant: %v", err)
	}
	if err := r.fleet.RemoveOrphan(t.Context(), id); err != nil {
		t.Error(err)
	}
}
