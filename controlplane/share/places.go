package share

import "sync"

// Places are a bounded number. The last quarter of them is kept for tenants that
// hold less than a quarter. Safe for concurrent use.
type Places struct {
	all, reserve int

	mu    sync.Mutex
	taken int
	held  map[string]int // by tenant
}

// NewPlaces makes so many places.
func NewPlaces(all int) *Places {
	return &Places{all: all, reserve: all / 4, held: map[string]int{}}
}

// Take takes a place and returns how to give it back; nil if there is none for
// this tenant.
func (p *Places) Take(tenant string) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all || p.taken >= p.all-p.reserve && p.held[tenant] >= p.reserve {
		return nil
	}
	p.taken++
	p.held[tenant]++
	return sync.OnceFunc(func() { p.give(tenant) })
}

func (p *Places) give(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.held[tenant]--; p.held[tenant] == 0 {
		delete(p.held, tenant)
	}
}
