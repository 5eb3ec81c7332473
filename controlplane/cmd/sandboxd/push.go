package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// pushConfig says where push notifications may go.
type pushConfig struct {
	Enabled bool
	Allow   []string // networks or addresses
	HTTP    bool
	allow   []netip.Prefix // parsed
}

func (c *pushConfig) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.Enabled, "push", true, "deliver A2A push notifications to webhooks")
	f.StringArrayVar(&c.Allow, "push-allow", nil,
		"`network` (CIDR), or one address, that webhooks may have although it is not public, such as 10.1.0.0/16; may be repeated")
	f.BoolVar(&c.HTTP, "push-http", false, "let webhooks have http:// addresses, where anybody on the way reads tasks and tokens")
}

func (c *pushConfig) complete() error {
	c.allow = nil
	for _, s := range c.Allow {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return fmt.Errorf("--push-allow %q: want a network such as 10.1.0.0/16, or an address", s)
		}
		c.allow = append(c.allow, p.Masked())
	}
	return nil
}

// newPush makes the outbox of webhooks, or nil when it is off. It must outlive
// ctx by the drain, as the engine must.
func newPush(ctx context.Context, d *daemon, cfg a2a.Config) *push.Service {
	if !d.cfg.Push.Enabled {
		return nil
	}
	return push.New(context.WithoutCancel(ctx), push.Config{
		Store: d.db.Webhooks(), Log: d.db, Tasks: d.engine, Format: inItsTenant(a2a.PushFormat(cfg)),
		Guard:  &push.Guard{Allow: d.cfg.Push.allow, HTTP: d.cfg.Push.HTTP},
		Logger: d.log,
	})
}

// inItsTenant has the instance of a task found, of whichever tenant it is.
func inItsTenant(format push.Format) push.Format {
	return func(ctx context.Context, version string, rec task.Record, e task.Event) (push.Body, error) {
		return format(fleet.WithTenant(ctx, rec.Tenant), version, rec, e)
	}
}
