package task

import (
	"cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Scope says whose tasks a query may see or change. Every query that is made
// for a caller takes one and applies it where the rows are, so that nobody has
// to compare owners afterwards: what is outside of it is not found. The zero
// value is that of the default tenant's callers without a name.
type Scope struct {
	// Tenant is the caller's; empty for the default tenant.
	Tenant string
	// Owner is the caller. With AllOwners it is the owner of what the caller
	// makes, but no bound of what it may see within its tenant.
	Owner     string
	AllOwners bool

	system bool
}

// System is the scope of who acts for no caller: the engine, which carries out
// all tasks, and the outbox, which tells of all. It must never be that of a
// request.
func System() Scope { return Scope{system: true} }

// TenantOrDefault is the tenant, by its name.
func (s Scope) TenantOrDefault() string { return cmp.Or(s.Tenant, instance.DefaultTenant) }

// Everywhere reports whether the scope has no bound at all.
func (s Scope) Everywhere() bool { return s.system }

// Includes reports whether a task of a tenant and an owner is within the scope.
// Stores say the same in their queries.
func (s Scope) Includes(tenant, owner string) bool {
	return s.system || tenant == s.TenantOrDefault() && (s.AllOwners || owner == s.Owner)
}
