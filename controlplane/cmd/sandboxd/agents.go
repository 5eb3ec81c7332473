package main

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// agentsHandler serves the A2A surface of every instance.
func agentsHandler(ctx context.Context, d *daemon, url string) http.Handler {
	cfg := a2a.Config{
		Instances: d.cfg.Conformance.instances(agents{fleet: d.fleet}), Tasks: d.engine, Store: d.db,
		Caller: func(ctx context.Context) a2a.Caller {
			p, _ := auth.FromContext(ctx)
			return a2a.Caller{
				Name: p.Name, Tenant: p.TenantOrDefault(), AllTasks: p.Has(auth.ScopeAdmin),
				May:      func(scope string) bool { return p.Has(auth.Scope(scope)) },
				SeesHost: d.cfg.DiscloseHost && p.Has(auth.ScopeReadHost),
			}
		},
		PublicURL: url, Log: d.log, Signer: d.keys.Signer(strings.TrimRight(url, "/") + keySetPath),
		Reservations: d.db.Idempotency(),
	}
	cfg.NothingRequired = d.cfg.Conformance.Enabled
	d.cfg.Surface.a2a(&cfg)
	if d.push = newPush(ctx, d, cfg); d.push != nil {
		cfg.Push = d.push
	}
	return inTenant(d.inUse(a2a.New(cfg)))
}

// agents describes the fleet's instances as A2A agents.
type agents struct{ fleet *fleet.Fleet }

// Instance implements a2a.Instances.
func (a agents) Instance(ctx context.Context, id instance.ID) (a2a.Agent, error) {
	p, err := a.fleet.Plan(ctx, id)
	if f := instance.AsFault(err); err != nil && f.Code == "instance.not_found" {
		return a2a.Agent{}, errors.Join(a2a.ErrUnknownInstance, err)
	}
	if err != nil {
		return a2a.Agent{}, err
	}
	v, err := a.fleet.Get(ctx, id.String())
	if err != nil {
		return a2a.Agent{}, errors.Join(a2a.ErrUnknownInstance, err) // removed in between
	}
	agent := a2a.Agent{
		ID: id, Name: p.Agent.Name, Description: p.Agent.Description, Version: p.Agent.Version,
		Loadout: p.Loadout, Kind: v.Kind, Provider: v.Provider, ImageRef: v.ImageRef,
		Capabilities: v.Capabilities, Host: v.Host,
		Workspace: p.Workspace.Path, User: p.Agent.User, Env: p.Env, Runners: p.Runners,
	}
	for _, s := range p.Agent.Skills {
		agent.Skills = append(agent.Skills, a2a.Skill(s))
	}
	return agent, nil
}
