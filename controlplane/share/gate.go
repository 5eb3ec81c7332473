// Package share divides what there is little of among those who ask for it, so
// that one who wants much, or gives nothing back, leaves some to the others.
//
//	Gate    who finds no place waits for one; each has a bound of its own
//	Places  who finds no place is refused; the last are for who has few
//
// It knows nothing of who asks and what for.
package share

import (
	"context"
	"sync"
)

// Owner is who holds places: a principal of a tenant.
type Owner struct{ Tenant, Name string }

// Gate admits a bounded number, of each owner and in all. Safe for concurrent
// use.
type Gate struct {
	perOwner int
	all      chan struct{}

	mu     sync.Mutex
	owners map[Owner]*ownerGate
}

type ownerGate struct {
	slots chan struct{}
	users int // that hold a slot or wait for one
}

// NewGate makes a gate for so many, both at least one.
func NewGate(perOwner, all int) *Gate {
	return &Gate{perOwner: max(perOwner, 1), all: make(chan struct{}, max(all, 1)), owners: map[Owner]*ownerGate{}}
}

// Enter waits for a place and returns how to leave it; nil if ctx ended first.
func (g *Gate) Enter(ctx context.Context, owner Owner) func() {
	o := g.owner(owner)
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		g.leave(owner, o)
		return nil
	}
	select {
	case g.all <- struct{}{}:
	case <-ctx.Done():
		<-o.slots
		g.leave(owner, o)
		return nil
	}
	return func() {
		<-g.all
		<-o.slots
		g.leave(owner, o)
	}
}

func (g *Gate) owner(name Owner) *ownerGate {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.owners[name]
	if o == nil {
		o = &ownerGate{slots: make(chan struct{}, g.perOwner)}
		g.owners[name] = o
	}
	o.users++
	return o
}

func (g *Gate) leave(name Owner, o *ownerGate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(g.owners, name)
	}
}
