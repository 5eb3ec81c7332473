package fleet

import (
	"context"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Orphans lists the machines, and files of some, that no instance knows.
func (f *Fleet) Orphans(context.Context) ([]Orphan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Orphan, 0, len(f.orphans))
	for _, o := range f.orphans {
		all = append(all, Orphan{Provider: o.provider, ID: o.found.ID, Running: o.found.Running, Note: o.found.Note, Since: o.since})
	}
	return all, nil
}

// RemoveOrphan destroys a machine that no instance knows, and all of it.
func (f *Fleet) RemoveOrphan(ctx context.Context, id instance.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.orphans {
		if o.found.ID != id {
			continue
		}
		m, err := f.cfg.Drivers[o.provider].Recover(ctx, o.found.Handle)
		if err == nil {
			err = m.Close(ctx)
		}
		if err != nil {
			return fmt.Errorf("cannot remove machine %q: %w", id, err)
		}
		f.orphans = append(f.orphans[:i:i], f.orphans[i+1:]...)
		return nil
	}
	return &instance.Fault{
		Blame: instance.Caller, Code: "orphan.not_found", Hint: "`sandboxctl doctor` lists those there are",
		Err: fmt.Errorf("cannot find a machine %q without an instance", id),
	}
}
