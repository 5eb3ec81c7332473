package fleet

import (
	"context"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// Get returns one instance by id or name.
func (f *Fleet) Get(ctx context.Context, ref string) (View, error) {
	s, err := f.find(ctx, ref)
	if err != nil {
		return View{}, err
	}
	return f.view(s, s.Record()), nil
}

// List returns one page of the instances that match, ordered by id, which is
// the order of creation.
func (f *Fleet) List(ctx context.Context, filter Filter) (Page, error) {
	filter.Tenant = tenantOf(ctx, filter.Tenant)
	var page Page
	matches := false
	look := func(r *supervise.Record) { matches = filter.matches(r) }
	for _, s := range f.all() {
		if s.Peek(look); !matches {
			continue
		}
		page.Total++
		if s.ID() <= filter.After {
			continue
		}
		if filter.Limit > 0 && len(page.Views) == filter.Limit {
			if page.Next == "" {
				page.Next = page.Views[filter.Limit-1].ID
			}
			continue
		}
		page.Views = append(page.Views, f.view(s, s.Record()))
	}
	return page, nil
}

func (f Filter) matches(r *supervise.Record) bool {
	return r.Tenant == f.Tenant && (f.Phase == "" || r.Phase == f.Phase) && f.Selector.Matches(r.Labels)
}

// Links counts the running machines of all tenants by whether their agents
// answer.
func (f *Fleet) Links() (up, silent int) {
	for _, s := range f.all() {
		runs := false
		s.Peek(func(r *supervise.Record) { runs = r.Phase == instance.Running })
		if !runs {
			continue
		}
		if fault, _ := s.Health(); fault == nil {
			up++
		} else {
			silent++
		}
	}
	return up, silent
}
