package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// fleetConfig is what becomes of machines that nobody knows.
type fleetConfig struct {
	OrphanGrace time.Duration
	AcceptEmpty bool
}

func (c *fleetConfig) flags(f *pflag.FlagSet) {
	f.DurationVar(&c.OrphanGrace, "orphan-grace", 24*time.Hour,
		"how long a machine that no instance knows is kept before it is removed; 0: for ever")
	f.BoolVar(&c.AcceptEmpty, "accept-empty-database", false,
		"start with a new database although there are machines, which it does not know; they are kept until they are removed by hand")
}

func (c *fleetConfig) complete() error {
	if c.OrphanGrace < 0 {
		return fmt.Errorf("--orphan-grace %v: must not be negative", c.OrphanGrace)
	}
	return nil
}

// guests gives the engine the links of the fleet. A command that runs keeps
// its machine in use.
type guests struct{ fleet *fleet.Fleet }

func (g guests) Guest(ctx context.Context, id instance.ID) (engine.Guest, error) {
	link, err := g.fleet.Guest(ctx, id)
	if err != nil {
		return nil, err // not a nil *Link in a non-nil interface
	}
	return usedGuest{Guest: link, fleet: g.fleet, id: id}, nil
}

type usedGuest struct {
	engine.Guest
	fleet *fleet.Fleet
	id    instance.ID
}

func (g usedGuest) StartRun(ctx context.Context, runID string, spec *agentv1.RunSpec) (*agentv1.RunState, error) {
	defer g.fleet.Touch(g.id)()
	return g.Guest.StartRun(ctx, runID, spec)
}

func (g usedGuest) FollowRun(ctx context.Context, runID string, o agentlink.FollowOptions) (*agentv1.Exited, error) {
	defer g.fleet.Touch(g.id)()
	return g.Guest.FollowRun(ctx, runID, o)
}

// inTenant has the fleet find only what belongs to the caller's tenant.
func inTenant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := auth.FromContext(r.Context())
		next.ServeHTTP(w, r.WithContext(fleet.WithTenant(r.Context(), p.TenantOrDefault())))
	})
}

// inUse keeps a machine in use while an A2A request to it lasts, and wakes it
// if it rests. Reading is no use, but a stream is: who only looks at what a
// task was must not keep a machine up, and neither must who may not invoke it.
func (d *daemon) inUse(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := d.usedBy(r); ok {
			if _, err := d.fleet.Get(r.Context(), id.String()); err == nil { // the caller's tenant has it
				defer d.fleet.Touch(id)()
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (d *daemon) usedBy(r *http.Request) (instance.ID, bool) {
	p, _ := auth.FromContext(r.Context())
	if !p.Has(auth.ScopeInvoke) || r.Method != http.MethodPost && !strings.HasSuffix(r.URL.Path, ":subscribe") {
		return "", false
	}
	if domain := d.cfg.Surface.Domain; domain != "" {
		if id, ok := a2a.VirtualHost(r.Host, domain); ok {
			return id, true
		}
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/agents/")
	if !ok {
		return "", false
	}
	name, _, _ := strings.Cut(rest, "/")
	id, err := instance.ParseID(name)
	return id, err == nil
}
