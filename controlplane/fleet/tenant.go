package fleet

import (
	"cmp"
	"context"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

func tenantOr(t string) string { return cmp.Or(t, instance.DefaultTenant) }

type tenantKey struct{}

// WithTenant returns ctx in which only what belongs to a tenant is found, made
// and listed; what belongs to others looks as if it were not there. Without it
// the tenant is the default one.
func WithTenant(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, tenantKey{}, tenant)
}

// tenantOf is the tenant asked for, or that of ctx.
func tenantOf(ctx context.Context, asked string) string {
	if asked != "" {
		return asked
	}
	t, _ := ctx.Value(tenantKey{}).(string)
	return tenantOr(t)
}

// find returns the supervisor of an instance of the tenant, by id or name.
func (f *Fleet) find(ctx context.Context, ref string) (*supervise.Supervisor, error) {
	tenant := tenantOf(ctx, "")
	f.mu.Lock()
	s := f.byID[f.byName[name{tenant, ref}]]
	if s == nil {
		s = f.byID[instance.ID(ref)]
	}
	f.mu.Unlock()
	if s != nil {
		mine := false
		s.Peek(func(r *supervise.Record) { mine = r.Tenant == tenant })
		if mine {
			return s, nil
		}
	}
	return nil, noInstance(ref)
}

// findID returns the supervisor of an instance of any tenant, for our own work.
func (f *Fleet) findID(id instance.ID) (*supervise.Supervisor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.byID[id]; s != nil {
		return s, nil
	}
	return nil, noInstance(id.String())
}

func noInstance(ref string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "instance.not_found",
		Hint: "`sandboxctl ls` lists the instances there are",
		Err:  fmt.Errorf("cannot find instance %q", ref),
	}
}
