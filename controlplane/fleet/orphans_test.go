package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// ledger is a keeper in memory.
type ledger struct {
	Keeper
	adopted bool
	all     []Orphan
	saved   int
}

func (l *ledger) Adopted(context.Context) (bool, error) { return l.adopted, nil }
func (l *ledger) Adopt(context.Context) error           { l.adopted = true; return nil }
func (l *ledger) Check(context.Context) error           { return nil }
func (l *ledger) Orphans(context.Context) ([]Orphan, error) {
	return slices.Clone(l.all), nil
}

func (l *ledger) SaveOrphans(_ context.Context, all []Orphan) error {
	l.all, l.saved = all, l.saved+1
	return nil
}

// provider is a driver that has machines, whether it is available or not.
type provider struct {
	vm.Driver
	available bool
	found     []vm.Found
	recovered int
	err       error // of Recover
}

func (p *provider) Capabilities(context.Context) (vm.Capabilities, error) {
	return vm.Capabilities{Available: p.available}, nil
}

func (p *provider) List(context.Context) ([]vm.Found, error) { return p.found, nil }

func (p *provider) Recover(context.Context, vm.Handle) (vm.Instance, error) {
	p.recovered++
	return nil, p.err
}

const (
	one instance.ID = "0197c1f0-0000-7000-8000-000000000001"
	two instance.ID = "0197c1f0-0000-7000-8000-000000000002"
)

// keeps is a fleet that keeps the book of strangers and nothing else. now may
// be moved.
func keeps(t *testing.T, l *ledger, grace time.Duration, now *time.Time, drivers map[string]vm.Driver) *Fleet {
	t.Helper()
	clock := func() time.Time { return *now }
	return &Fleet{
		cfg:    Config{Now: clock, OrphanGrace: grace, Keeper: l, Drivers: drivers},
		events: newEventLog(&shelf{}, clock), log: slog.New(slog.DiscardHandler),
		byID: map[instance.ID]*supervise.Supervisor{},
	}
}

func seenAt(provider string, ids ...instance.ID) survey {
	s := survey{provider: nil}
	for _, id := range ids {
		s[provider] = append(s[provider], vm.Found{ID: id})
	}
	return s
}

// TestStrangersMustBeSeenTwice: while the fleet works, a machine without an
// instance may be one that is just being removed. At the start there is none.
func TestStrangersMustBeSeenTwice(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &ledger{}
	f := keeps(t, l, time.Hour, &now, nil)
	for i, c := range []struct {
		seen survey
		want []instance.ID
	}{
		{seenAt("a", one), []instance.ID{one}},           // at the start
		{seenAt("a", one, two), []instance.ID{one}},      // two is new
		{seenAt("a", one), []instance.ID{one}},           // and gone again
		{seenAt("a", one, two), []instance.ID{one}},      // so it is new once more
		{seenAt("a", one, two), []instance.ID{one, two}}, // now it stays
		{seenAt("a"), nil},
	} {
		now = now.Add(time.Minute)
		if err := f.quarantine(t.Context(), c.seen); err != nil {
			t.Fatal(err)
		}
		var got, kept []instance.ID
		for _, o := range f.orphanList() {
			got = append(got, o.ID)
		}
		for _, o := range l.all {
			kept = append(kept, o.ID)
		}
		slices.Sort(kept)
		if !slices.Equal(got, c.want) || !slices.Equal(kept, c.want) {
			t.Errorf("look %d: strangers are %v, the book has %v, want %v", i, got, kept, c.want)
		}
	}
}

// TestBookOfStrangers: who is in it keeps the date of its removal, whatever
// comes; who is known as an instance is not, nor is another provider's.
func TestBookOfStrangers(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := Orphan{Provider: "a", ID: one, Since: now.Add(-time.Hour), RemoveAfter: now.Add(time.Minute)}
	held := Orphan{Provider: "b", ID: one, Since: now.Add(-time.Hour)} // must never be removed by itself
	l := &ledger{all: []Orphan{old, held}}
	f := keeps(t, l, time.Hour, &now, nil)
	f.byID[two] = &supervise.Supervisor{}
	if err := f.quarantine(t.Context(), seenAt("a", one, two)); err != nil { // b could not be asked
		t.Fatal(err)
	}
	if list := f.orphanList(); len(list) != 1 || list[0].Orphan != old {
		t.Errorf("strangers are %+v", list)
	}
	if len(l.all) != 2 || !slices.Contains(l.all, old) || !slices.Contains(l.all, held) {
		t.Errorf("the book has %+v", l.all)
	}
	both := seenAt("a", one)
	both["b"] = []vm.Found{{ID: one}}
	if err := f.quarantine(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	if list := f.orphanList(); len(list) != 2 || !slices.ContainsFunc(list, func(o orphan) bool { return o.Orphan == held }) {
		t.Errorf("then strangers are %+v", list)
	}
	for grace, want := range map[time.Duration]time.Time{0: {}, time.Hour: now.Add(time.Hour)} {
		f := keeps(t, &ledger{}, grace, &now, nil)
		if all, fresh := f.strangers(seenAt("a", one), nil); len(all) != 1 || len(fresh) != 1 || !all[0].RemoveAfter.Equal(want) {
			t.Errorf("with a grace of %v: %+v", grace, all)
		}
	}
}

// TestWhatHasBecomeKnownIsNotRemoved, nor is what could not be; what has gone by
// itself is no trouble.
func TestWhatHasBecomeKnownIsNotRemoved(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &provider{available: true, err: vm.ErrGone}
	f := keeps(t, &ledger{}, time.Hour, &now, map[string]vm.Driver{"a": p})
	o := orphan{Orphan: Orphan{Provider: "a", ID: one, RemoveAfter: now}}
	f.orphans = []orphan{o}
	f.byID[one] = &supervise.Supervisor{}
	if err := f.removeOrphan(t.Context(), o); err != nil || p.recovered != 0 {
		t.Errorf("one that is known: %v, touched %d times", err, p.recovered)
	}
	delete(f.byID, one)
	if err := f.removeOrphan(t.Context(), o); err != nil || p.recovered != 1 {
		t.Errorf("one that has gone: %v, touched %d times", err, p.recovered)
	}
	p.err = errors.New("boom")
	if err := f.removeOrphan(t.Context(), o); !errors.Is(err, p.err) {
		t.Errorf("one that cannot be removed: %v", err)
	}
}

// TestSweepWaits: until the time of a stranger has come, and for ever where it
// has none.
func TestSweepWaits(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		after time.Time
		want  int
	}{"later": {now.Add(time.Millisecond), 0}, "now": {now, 1}, "never": {time.Time{}, 0}} {
		p := &provider{available: true, found: []vm.Found{{ID: one}}, err: vm.ErrGone}
		l := &ledger{all: []Orphan{{Provider: "a", ID: one, Since: now, RemoveAfter: c.after}}}
		f := keeps(t, l, time.Hour, &now, map[string]vm.Driver{"a": p})
		if err := f.sweep(t.Context(), f.now()); err != nil || p.recovered != c.want {
			t.Errorf("%s: %v, touched %d times, want %d", name, err, p.recovered, c.want)
		}
	}
}

// TestUnavailableProviders: what one has is not known, so nothing is done to it;
// but that there is something is a sign that a database was lost.
func TestUnavailableProviders(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hidden := map[string]vm.Driver{"a": &provider{found: []vm.Found{{ID: one}}}, "b": &provider{available: true}}
	record := []supervise.Record{{ID: two}}
	for name, c := range map[string]struct {
		l       *ledger
		records []supervise.Record
		accept  bool
		code    string
		held    int
	}{
		"a new database":                   {&ledger{}, nil, false, "database.missing", 0},
		"a new database that is accepted":  {&ledger{}, nil, true, "", 1},
		"a new database that is not empty": {&ledger{}, record, false, "", 0},
		"one that was used before":         {&ledger{adopted: true}, nil, false, "", 0},
	} {
		f := keeps(t, c.l, time.Hour, &now, hidden)
		f.cfg.AcceptEmpty = c.accept
		seen, err := f.survey(t.Context())
		if _, asked := seen["a"]; err != nil || asked || len(seen) != 1 {
			t.Errorf("%s: the survey is %v, %v", name, seen, err)
		}
		err = f.adopt(t.Context(), c.records, seen)
		if got := instance.AsFault(err); err != nil && got.Code != c.code || err == nil && c.code != "" {
			t.Errorf("%s: %v", name, err)
		}
		if c.l.adopted != (c.code == "") || len(c.l.all) != c.held || c.held > 0 && !c.l.all[0].RemoveAfter.IsZero() {
			t.Errorf("%s: adopted %t, held are %+v", name, c.l.adopted, c.l.all)
		}
	}
}

// TestSettle: only a stopped machine that has run and whose disk is gone is lost.
func TestSettle(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	whole := supervise.Record{
		ID: one, Name: "dev", Phase: instance.Stopped, Provider: "a", Handle: &vm.Handle{}, Guest: &supervise.Guest{},
	}
	for name, c := range map[string]struct {
		change func(*supervise.Record)
		seen   survey
		lost   bool
	}{
		"its disk is gone":      {func(*supervise.Record) {}, seenAt("a", two), true},
		"its disk is there":     {func(*supervise.Record) {}, seenAt("a", one), false},
		"nobody could be asked": {func(*supervise.Record) {}, seenAt("b"), false},
		"it has never run":      {func(r *supervise.Record) { r.Guest = nil }, seenAt("a"), false},
		"it was never made":     {func(r *supervise.Record) { r.Handle = nil }, seenAt("a"), false},
		"it should run":         {func(r *supervise.Record) { r.Phase = instance.Running }, seenAt("a"), false},
	} {
		f := keeps(t, &ledger{}, 0, &now, nil)
		r := whole
		c.change(&r)
		got := f.settle(t.Context(), r, c.seen)
		want := r.Phase
		if c.lost {
			want = instance.Failed
		}
		if got.Phase != want || (f.LastEvent() > 0) != c.lost || c.lost != (got.Fault != nil && got.Fault.Code == "machine.lost") {
			t.Errorf("%s: %s with %v after %d events", name, got.Phase, got.Fault, f.LastEvent())
		}
	}
}
