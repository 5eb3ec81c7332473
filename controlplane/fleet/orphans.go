package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// keepEvery is how often machines and instances are compared.
const keepEvery = time.Minute

// removeOrphanLimit bounds the removal of one machine.
const removeOrphanLimit = 2 * time.Minute

// orphan is a machine that no record knows, as the driver has it.
type orphan struct {
	Orphan
	handle vm.Handle
}

func (o orphan) check() Check {
	c := Check{
		Name: "orphan", Status: "warning",
		Detail: fmt.Sprintf("provider %q has machine %s that no instance knows (%s) since %s",
			o.Provider, o.ID, cmp.Or(o.Note, "left by an earlier state"), o.Since.Format(time.RFC3339)),
		Remedy: "keep it until you know what it was; it uses disk and maybe memory",
	}
	if !o.RemoveAfter.IsZero() {
		c.Detail += ", removed after " + o.RemoveAfter.Format(time.RFC3339)
	}
	return c
}

// survey is what the drivers have: by provider, those that could be asked.
type survey map[string][]vm.Found

func (s survey) machines() (n int) {
	for _, found := range s {
		n += len(found)
	}
	return n
}

// survey asks every driver for its machines. One that is not available is
// left out: what it has is then not known.
func (f *Fleet) survey(ctx context.Context) (survey, error) {
	seen := survey{}
	for provider, d := range f.cfg.Drivers {
		c, err := d.Capabilities(ctx)
		if err != nil || !c.Available {
			continue
		}
		found, err := d.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot list the machines of provider %q: %w", provider, err)
		}
		seen[provider] = found
	}
	return seen, nil
}

// withHidden adds the machines of providers that are not available. What is
// seen of them may not be all, so nothing is done to them; but they are a sign.
func (f *Fleet) withHidden(ctx context.Context, seen survey) survey {
	all := maps.Clone(seen)
	for provider, d := range f.cfg.Drivers {
		if _, asked := seen[provider]; asked {
			continue
		}
		if found, err := d.List(ctx); err == nil {
			all[provider] = found
		}
	}
	return all
}

// adopt takes a new store into use, unless it may be that the real one is lost.
func (f *Fleet) adopt(ctx context.Context, records []supervise.Record, seen survey) error {
	adopted, err := f.cfg.Keeper.Adopted(ctx)
	if err != nil || adopted {
		return err
	}
	seen = f.withHidden(ctx, seen)
	n := seen.machines()
	if n > 0 && len(records) == 0 {
		if !f.cfg.AcceptEmpty {
			return &instance.Fault{
				Blame: instance.Host, Code: "database.missing",
				Hint: "restore sandbox.db from a backup into the state directory; if there is none and the machines may be given up, " +
					"start sandboxd once with --accept-empty-database: they are then kept as orphans until they are removed by hand",
				Err: fmt.Errorf("the database in %q is new, but machines are there (%d): it was lost, or it belongs elsewhere",
					f.cfg.StateDir, n),
			}
		}
		if err := f.hold(ctx, seen); err != nil {
			return err
		}
	}
	return f.cfg.Keeper.Adopt(ctx)
}

// hold stores that the machines there are must never be removed by themselves.
func (f *Fleet) hold(ctx context.Context, seen survey) error {
	var all []Orphan
	now := f.now()
	for provider, found := range seen {
		for _, m := range found {
			all = append(all, Orphan{Provider: provider, ID: m.ID, Since: now})
		}
	}
	return f.cfg.Keeper.SaveOrphans(ctx, all)
}

func (f *Fleet) now() time.Time { return f.cfg.Now().UTC().Truncate(time.Millisecond) }

// settle gives a stored instance whose machine should be on disk and is not
// there a truthful state. Those that should run find out by themselves.
func (f *Fleet) settle(ctx context.Context, r supervise.Record, seen survey) supervise.Record {
	found, known := seen[r.Provider]
	if !known || r.Phase != instance.Stopped || r.Handle == nil || r.Guest == nil ||
		slices.ContainsFunc(found, func(m vm.Found) bool { return m.ID == r.ID }) {
		return r
	}
	next := r
	next.Phase, _, _ = instance.Next(r.Phase, instance.Lost)
	next.Fault = instance.AsFault(supervise.Lost(r))
	next.Reason = next.Fault.Code
	next.UpdatedAt = f.now()
	next.Generation++
	if err := (recorder{f.events}).Save(ctx, r, next, supervise.Note{}); err != nil {
		f.log.ErrorContext(ctx, "cannot store the instance", "instance", r.ID.String(), "error", err)
	}
	return next
}

// quarantine compares what the drivers have with the instances there are, and
// keeps the book of machines without one. Who was known before keeps its date.
func (f *Fleet) quarantine(ctx context.Context, seen survey) error {
	stored, err := f.cfg.Keeper.Orphans(ctx)
	if err != nil {
		return err
	}
	all, fresh := f.strangers(seen, stored)
	var book []Orphan
	for _, o := range stored { // whose provider could not be asked
		if _, asked := seen[o.Provider]; !asked {
			book = append(book, o)
		}
	}
	for _, o := range all {
		book = append(book, o.Orphan)
	}
	slices.SortFunc(all, func(a, b orphan) int { return cmp.Compare(a.ID, b.ID) })
	f.mu.Lock()
	f.orphans = all
	f.mu.Unlock()
	if len(fresh) == 0 && len(book) == len(stored) {
		return nil
	}
	for _, o := range fresh {
		f.log.WarnContext(ctx, "machine without an instance", "provider", o.Provider, "machine", o.ID.String(),
			"running", o.Running, "note", o.Note, "remove_after", o.RemoveAfter)
		f.tell(ctx, o, "found")
	}
	return f.cfg.Keeper.SaveOrphans(ctx, book)
}

// strangers are the machines that no instance knows, and which of them nobody
// knew before. While the fleet works a machine may be seen that is just being
// removed, so a new one must be seen twice.
func (f *Fleet) strangers(seen survey, stored []Orphan) (all, fresh []orphan) {
	now := f.now()
	suspects := map[instance.ID]bool{}
	for provider, found := range seen {
		for _, m := range found {
			if f.knows(m.ID) {
				continue
			}
			at := slices.IndexFunc(stored, func(o Orphan) bool { return o.ID == m.ID && o.Provider == provider })
			o := orphan{Orphan{Provider: provider, ID: m.ID, Since: now}, m.Handle}
			switch {
			case at >= 0:
				o.Orphan = stored[at]
			case f.suspects != nil && !f.suspects[m.ID]:
				suspects[m.ID] = true
				continue
			default:
				if f.cfg.OrphanGrace > 0 {
					o.RemoveAfter = now.Add(f.cfg.OrphanGrace)
				}
			}
			o.Running, o.Note = m.Running, m.Note
			all = append(all, o)
			if at < 0 {
				fresh = append(fresh, o)
			}
		}
	}
	f.suspects = suspects
	return all, fresh
}

func (f *Fleet) knows(id instance.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byID[id] != nil
}

func (f *Fleet) tell(ctx context.Context, o orphan, reason string) {
	e := Event{Tenant: instance.DefaultTenant, Type: EventOrphan, Instance: o.ID, Reason: reason, Message: o.Provider}
	if err := f.events.apply(ctx, &Change{Events: []Event{e}}); err != nil {
		f.log.ErrorContext(ctx, "cannot store an event", "error", err)
	}
}

// keep compares machines and instances again and again, and removes machines
// whose time of grace has passed, until ctx ends.
func (f *Fleet) keep(ctx context.Context, last reading) {
	every := keepEvery
	if g := f.cfg.OrphanGrace; g > 0 {
		every = min(every, max(g/4, 100*time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		f.ops.flush(ctx)
		// One look at the clock for both: it may be set in between.
		now := f.read()
		if err := f.regrace(ctx, now.wall.Sub(last.wall.Add(now.passed-last.passed))); err != nil {
			f.log.WarnContext(ctx, "cannot note that the clock was set", "error", err)
			continue // and removes nothing before its time
		}
		last = now
		if err := f.sweep(ctx, now.wall); err != nil && ctx.Err() == nil {
			f.log.WarnContext(ctx, "cannot compare machines and instances", "error", err)
		}
	}
}

// reading is one look at the clock: on the wall, and by how much time has passed
// since some moment.
type reading struct {
	wall   time.Time
	passed time.Duration
}

func (f *Fleet) read() reading { return reading{f.now(), f.cfg.Passed()} }

// clockSet is how far the clock must be from where it should be to have been set.
const clockSet = time.Minute

// regrace gives machines without an instance the grace that is left to them when
// the clock was set by jump. One that was wrong at the start of the host must
// not cost them.
func (f *Fleet) regrace(ctx context.Context, jump time.Duration) error {
	jump = jump.Truncate(time.Millisecond)
	if jump.Abs() < clockSet {
		return nil
	}
	f.tidying.Lock()
	defer f.tidying.Unlock()
	book, err := f.cfg.Keeper.Orphans(ctx)
	if err != nil {
		return err
	}
	for i := range book {
		if !book[i].RemoveAfter.IsZero() {
			book[i].Since, book[i].RemoveAfter = book[i].Since.Add(jump), book[i].RemoveAfter.Add(jump)
		}
	}
	f.log.WarnContext(ctx, "the clock was set; machines without an instance keep the grace they had", "by", jump)
	return f.cfg.Keeper.SaveOrphans(ctx, book)
}

// sweep is one round of keep.
func (f *Fleet) sweep(ctx context.Context, now time.Time) error {
	seen, err := f.survey(ctx)
	if err != nil {
		return err
	}
	f.tidying.Lock()
	err = f.quarantine(ctx, seen)
	f.tidying.Unlock()
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range f.orphanList() {
		if o.RemoveAfter.IsZero() || now.Before(o.RemoveAfter) {
			continue
		}
		// Whoever has no sound database does not know what belongs to whom.
		if err := f.cfg.Keeper.Check(ctx); err != nil {
			return fmt.Errorf("cannot remove machine %q without an instance: %w", o.ID, err)
		}
		errs = append(errs, f.removeOrphan(ctx, o))
	}
	return errors.Join(errs...)
}

func (f *Fleet) orphanList() []orphan {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.orphans)
}

// orphansOf are those that the tenant of ctx may see.
func (f *Fleet) orphansOf(ctx context.Context) []orphan {
	if tenantOf(ctx, "") != instance.DefaultTenant {
		return nil
	}
	return f.orphanList()
}

// Orphans lists the machines, and files of some, that no instance knows. Nobody
// knows whose they were, so they belong to the default tenant, as what is told
// of them does: for others there are none.
func (f *Fleet) Orphans(ctx context.Context) ([]Orphan, error) {
	list := f.orphansOf(ctx)
	all := make([]Orphan, 0, len(list))
	for _, o := range list {
		all = append(all, o.Orphan)
	}
	return all, nil
}

// RemoveOrphan destroys a machine that no instance knows, and all of it.
func (f *Fleet) RemoveOrphan(ctx context.Context, id instance.ID) error {
	for _, o := range f.orphansOf(ctx) {
		if o.ID == id {
			return f.removeOrphan(ctx, o)
		}
	}
	return &instance.Fault{
		Blame: instance.Caller, Code: "orphan.not_found", Hint: "`sandboxctl doctor` lists those there are",
		Err: fmt.Errorf("cannot find a machine %q without an instance", id),
	}
}

func (f *Fleet) removeOrphan(ctx context.Context, o orphan) error {
	f.tidying.Lock()
	defer f.tidying.Unlock()
	if f.knows(o.ID) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeOrphanLimit)
	defer cancel()
	m, err := f.cfg.Drivers[o.Provider].Recover(ctx, o.handle)
	if err == nil {
		err = m.Close(ctx)
	}
	if err != nil && !errors.Is(err, vm.ErrGone) {
		return fmt.Errorf("cannot remove machine %q: %w", o.ID, err)
	}
	f.log.WarnContext(ctx, "removed a machine without an instance", "provider", o.Provider, "machine", o.ID.String())
	f.tell(ctx, o, "removed")
	seen, err := f.survey(ctx)
	if err != nil {
		return err
	}
	return f.quarantine(ctx, seen)
}
