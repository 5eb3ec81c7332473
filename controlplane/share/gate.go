package push

import (
	"context"
	"sync"
)

// gate admits a bounded number, of each owner and in all, so that the slow
// webhooks of one principal are not in the way of another's.
type gate struct {
	perOwner int
	all      chan struct{}

	mu     sync.Mutex
	owners map[principal]*ownerGate
}

// principal is who owns tasks.
type principal struct{ tenant, name string }

type ownerGate struct {
	slots chan struct{}
	users int // that hold a slot or wait for one
}

func newGate(perOwner, all int) *gate {
	return &gate{perOwner: perOwner, all: make(chan struct{}, all), owners: map[principal]*ownerGate{}}
}

// enter waits for a place and returns how to leave it; nil if ctx ended first.
func (g *gate) enter(ctx context.Context, owner principal) func() {
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

func (g *gate) owner(name principal) *ownerGate {
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

func (g *gate) leave(name principal, o *ownerGate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(g.owners, name)
	}
}
