package fleet_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// able is a driver that says of itself what a test wants.
type able struct {
	vm.Driver
	caps vm.Capabilities
}

func (a *able) Capabilities(context.Context) (vm.Capabilities, error) { return a.caps, nil }

// TestProviderMustFit: what a loadout demands of its provider is asked before
// anything is made, and the refusal names the field.
func TestProviderMustFit(t *testing.T) {
	r := newRig(t)
	driver := &able{}
	r.config = func(c *fleet.Config) {
		driver.Driver = c.Drivers["host"]
		c.Drivers = map[string]vm.Driver{"host": driver}
	}
	r.open()
	const pause = "lifecycle: {idle: {timeout_seconds: 60, action: pause}}\n"
	for name, c := range map[string]struct {
		options, more string
		off           bool
		can           string
		code, says    string
	}{
		"not here":       {off: true, code: "provider.unavailable", says: "no hypervisor"},
		"unknown":        {options: "provider: libvirt", code: "provider.unknown", says: "libvirt"},
		"lacks it":       {options: "provider: host, required_capabilities: [instance.pause]", can: "instance.stop", code: "provider.capability", says: "required_capabilities"},
		"has it":         {options: "provider: host, excluded_capabilities: [instance.stop]", can: "instance.stop", code: "provider.capability", says: "excluded_capabilities"},
		"cannot pause":   {more: pause, can: "instance.stop", code: "provider.capability", says: "lifecycle.idle.action"},
		"fits":           {options: "provider: host, required_capabilities: [instance.pause]", more: pause, can: "instance.pause"},
		"need not pause": {more: "lifecycle: {idle: {timeout_seconds: 60, action: stop}}\n", can: "instance.stop"},
	} {
		driver.caps = vm.Capabilities{Driver: "host", RuntimeKind: "host", Available: !c.off, Reason: "no hypervisor", Operations: []string{c.can}}
		options := c.options
		if options == "" {
			options = "provider: host"
		}
		text := strings.Replace(loadout, "provider: host", options, 1) + c.more
		op, err := r.fleet.Create(t.Context(), fleet.CreateRequest{Name: "fits", Loadout: fleet.Source{Name: "x.yaml", Data: []byte(text)}})
		if faultCode(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v (%q), want %q", name, err, faultCode(err), c.code)
		}
		blame := instance.Caller
		if c.off {
			blame = instance.Host
		}
		if err != nil && instance.AsFault(err).Blame != blame {
			t.Errorf("%s is the fault of the %s", name, instance.AsFault(err).Blame)
		}
		if err == nil {
			r.end(op)
			del, err := r.fleet.Delete(t.Context(), "fits", 0)
			if err != nil {
				t.Fatal(err)
			}
			r.end(del)
		}
	}
}

// TestRequestWinsOverLoadout: labels, environment and time to live of a request
// come before those of its loadout, which stand where it has none.
func TestRequestWinsOverLoadout(t *testing.T) {
	r := newRig(t)
	r.open()
	text := strings.Replace(loadout, "{name: tester}", "{name: tester, labels: {team: loadout, kept: yes-it-is}}", 1) +
		"env: {WHO: loadout, KEPT: it-is}\nlifecycle: {ttl_seconds: 3600}\n"
	for name, c := range map[string]struct {
		ttl, want time.Duration
	}{"loadout": {0, time.Hour}, "request": {2 * time.Hour, 2 * time.Hour}} {
		before := time.Now()
		op, err := r.fleet.Create(t.Context(), fleet.CreateRequest{
			Name: name, Loadout: fleet.Source{Name: "x.yaml", Data: []byte(text)}, TTL: c.ttl,
			Labels: map[string]string{"team": "request", "more": "1"}, Env: map[string]string{"WHO": "request"},
		})
		if err != nil {
			t.Fatal(err)
		}
		v := r.get(name)
		p, err := r.fleet.Plan(t.Context(), v.ID)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"team": "request", "kept": "yes-it-is", "more": "1"}; !maps.Equal(v.Labels, want) {
			t.Errorf("labels are %v, want %v", v.Labels, want)
		}
		if p.Env["WHO"] != "request" || p.Env["KEPT"] != "it-is" {
			t.Errorf("the environment is %v", p.Env)
		}
		if left := v.ExpiresAt.Sub(before); left < c.want-time.Second || left > c.want+time.Since(before) {
			t.Errorf("%s: it lives for %v, want %v", name, left, c.want)
		}
		r.end(op)
	}
	req := request("for-ever")
	for _, ttl := range []time.Duration{-1, 100 * 366 * 24 * time.Hour} {
		if req.TTL = ttl; faultCode(second(r.fleet.Create(t.Context(), req))) != "instance.ttl" {
			t.Errorf("a time to live of %v is taken", ttl)
		}
	}
}

// TestEndOfWhatIsBeingRemovedStays: the removal fails, so it lasts.
func TestEndOfWhatIsBeingRemovedStays(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("doomed")
	r.fault.dead.Store(true) // nothing can be removed
	del, err := r.fleet.Delete(t.Context(), "doomed", 0)
	if err != nil {
		t.Fatal(err)
	}
	if del = r.end(del); del.State != fleet.OperationFailed {
		t.Errorf("the removal ended %s", del.State)
	}
	if _, err := r.fleet.Renew(t.Context(), "doomed", time.Hour); faultCode(err) != "instance.state" {
		t.Errorf("renew: %v", err)
	}
	if v := r.get("doomed"); v.Phase != instance.Deleting || !v.ExpiresAt.IsZero() {
		t.Errorf("it is %s and ends at %v", v.Phase, v.ExpiresAt)
	}
	r.fault.dead.Store(false)
}

// TestPoliciesActForTheTenant: the operation of what an instance does by itself
// is its tenant's.
func TestPoliciesActForTheTenant(t *testing.T) {
	r := newRig(t)
	r.open()
	ctx := fleet.WithTenant(t.Context(), "other")
	op, err := r.fleet.Create(ctx, request("mayfly"))
	if err != nil {
		t.Fatal(err)
	}
	wait := func(id string) {
		t.Helper()
		ch, err := r.fleet.Watch(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		for range ch { // until it has ended
		}
	}
	wait(op.ID)
	if _, err := r.fleet.Renew(ctx, "mayfly", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	events, err := r.fleet.Follow(ctx, 0, fleet.EventFilter{Types: []string{fleet.EventDeleted}})
	if err != nil {
		t.Fatal(err)
	}
	<-events
	for tenant, want := range map[string]int{"": 0, "other": 1} {
		page, err := r.fleet.Operations(fleet.WithTenant(t.Context(), tenant), fleet.OperationFilter{Kind: "instance.expire"})
		if err != nil || len(page.Operations) != want {
			t.Errorf("%q has %+v, %v", tenant, page.Operations, err)
		}
	}
}
