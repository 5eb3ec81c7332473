package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// record is a new instance of the default tenant.
func record(t *testing.T, name string) supervise.Record {
	t.Helper()
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	return supervise.Record{
		ID: id, Tenant: instance.DefaultTenant, Name: name, Phase: instance.Provisioning, Provider: "libvirt", Host: "here",
		Plan:   plan.Plan{Version: plan.Version, ID: id, Name: name, Image: "minimal", SetupTimeout: time.Minute},
		Labels: map[string]string{"a": "b"}, CreatedAt: now, UpdatedAt: now, Generation: 1,
	}
}

func openFleet(t *testing.T) (Fleet, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db.Fleet(), path
}

func eventsOf(tenant string, n int) []fleet.Event {
	all := make([]fleet.Event, 0, n)
	for range n {
		all = append(all, fleet.Event{At: time.UnixMilli(1000), Tenant: tenant, Type: fleet.EventPhase, Instance: "i", Reason: "r"})
	}
	return all
}

// TestEventsAreBounded: numbers go on without gaps while the oldest are
// dropped, and are never used again.
func TestEventsAreBounded(t *testing.T) {
	s, _ := openFleet(t)
	s.keep = trimEvery
	want := uint64(1)
	for range 5 {
		c := fleet.Change{Events: eventsOf("default", trimEvery/2+7)}
		if err := s.Apply(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Events {
			if e.Seq != want {
				t.Fatalf("number %d, want %d", e.Seq, want)
			}
			want++
		}
	}
	if err := s.Apply(t.Context(), &fleet.Change{Events: eventsOf("default", trimEvery-int((want-1)%trimEvery))}); err != nil {
		t.Fatal(err)
	}
	page, err := s.Events(t.Context(), 0, fleet.EventFilter{}, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Events) != trimEvery || page.Last%trimEvery != 0 {
		t.Errorf("%d are kept when the oldest are just dropped, up to %d", len(page.Events), page.Last)
	}
	for range 5 {
		c := fleet.Change{Events: eventsOf("default", trimEvery/2+7)}
		if err := s.Apply(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
		want = c.Events[len(c.Events)-1].Seq + 1
	}
	if page, err = s.Events(t.Context(), 0, fleet.EventFilter{}, 10_000); err != nil {
		t.Fatal(err)
	}
	if page.Last != want-1 || len(page.Events) < trimEvery || len(page.Events) > 2*trimEvery || page.Events[0].Seq != page.First {
		t.Errorf("%d kept, from %d to %d", len(page.Events), page.First, page.Last)
	}
	if len(page.Events) > 0 && uint64(len(page.Events)) != page.Last-page.First+1 {
		t.Error("what is kept has gaps")
	}
}

// TestFailedChangeStoresNothing: a name that is taken takes the operation and
// the events with it.
func TestFailedChangeStoresNothing(t *testing.T) {
	s, _ := openFleet(t)
	first, second := record(t, "same"), record(t, "same")
	for i, r := range []*fleet.Change{{Insert: &first, Events: eventsOf("default", 1)}, {
		Insert: &second, Events: eventsOf("default", 1),
		Operation: &fleet.Operation{ID: "op", Tenant: "default", State: fleet.OperationPending, CreatedAt: time.UnixMilli(1), UpdatedAt: time.UnixMilli(1)},
	}} {
		err := s.Apply(t.Context(), r)
		if (i == 1) != errors.Is(err, fleet.ErrNameTaken) {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	if _, err := s.Operation(t.Context(), "default", "op"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the operation: %v", err)
	}
	if page, err := s.Events(t.Context(), 0, fleet.EventFilter{}, 10); err != nil || page.Last != 1 {
		t.Errorf("events: %+v, %v", page, err)
	}
}

// TestTenantsSeeTheirOwn compares every query with a plain filter.
func TestTenantsSeeTheirOwn(t *testing.T) {
	s, _ := openFleet(t)
	var all []fleet.Event
	for i := range 60 {
		e := fleet.Event{
			At: time.UnixMilli(int64(i)), Tenant: []string{"default", "a", "b"}[i%3], Type: []string{fleet.EventPhase, fleet.EventFault}[i%2],
			Instance: instance.ID(fmt.Sprint("i", i%5)),
		}
		c := fleet.Change{Events: []fleet.Event{e}}
		if err := s.Apply(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c.Events...)
	}
	rapid.Check(t, func(t *rapid.T) {
		f := fleet.EventFilter{
			Tenant:   rapid.SampledFrom([]string{"default", "a", "b", "c"}).Draw(t, "tenant"),
			Instance: rapid.SampledFrom([]instance.ID{"", "i0", "i3", "i9"}).Draw(t, "instance"),
			Types: rapid.SampledFrom([][]string{nil, {fleet.EventPhase}, {fleet.EventFault, fleet.EventPhase}, {"phase"}, {"instance.p"}}).
				Draw(t, "types"),
		}
		after := uint64(rapid.IntRange(0, 70).Draw(t, "after"))
		limit := rapid.IntRange(1, 80).Draw(t, "limit")
		var want []fleet.Event
		for _, e := range all {
			if e.Seq > after && f.Matches(e) && len(want) < limit {
				want = append(want, e)
			}
		}
		page, err := s.Events(context.Background(), after, f, limit) //nolint:usetesting // rapid's t has no context that lasts
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(want, page.Events) {
			t.Fatalf("%+v behind %d: %v, want %v", f, after, page.Events, want)
		}
		if read := page.Read; (len(want) == limit && read != want[limit-1].Seq) || (len(want) < limit && read != 60) {
			t.Fatalf("read up to %d", read)
		}
	})
	mine, theirs := record(t, "x"), record(t, "x")
	theirs.Tenant = "a"
	for _, r := range []*fleet.Change{{Insert: &mine}, {Insert: &theirs}} {
		if err := s.Apply(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	stolen := theirs
	stolen.Tenant, stolen.Name = "default", "stolen"
	if err := s.Apply(t.Context(), &fleet.Change{Save: &stolen, Remove: &stolen}); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]int{"": 2, "default": 1, "a": 1, "c": 0} {
		got, err := s.Instances(t.Context(), tenant)
		if err != nil || len(got) != want {
			t.Errorf("instances of %q: %+v, %v", tenant, got, err)
		}
		for _, r := range got {
			if r.Name != "x" {
				t.Errorf("instance of %q was changed by another tenant", r.Tenant)
			}
		}
	}
}

// TestAnEndedOperationNeverChanges, whatever comes late.
func TestAnEndedOperationNeverChanges(t *testing.T) {
	s, _ := openFleet(t)
	op := fleet.Operation{
		ID: "op", Tenant: "default", Kind: "k", State: fleet.OperationSucceeded, Percent: 100,
		CreatedAt: time.UnixMilli(1), UpdatedAt: time.UnixMilli(2), EndedAt: time.UnixMilli(2),
	}
	late := op
	late.State, late.Percent, late.EndedAt = fleet.OperationRunning, 10, time.Time{}
	for _, o := range []fleet.Operation{op, late} {
		if err := s.Apply(t.Context(), &fleet.Change{Operation: &o}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Operation(t.Context(), "default", "op"); err != nil || got.State != fleet.OperationSucceeded {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Operation(t.Context(), "other", "op"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("of another tenant: %v", err)
	}
}

// TestTroubleIsNamed brings a database into every trouble that an operator can
// mend, and wants it named, with what to do.
func TestTroubleIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		code  string
		bring func(t *testing.T, s Fleet, path string)
	}{
		"full": {"store.full", func(t *testing.T, s Fleet, _ string) {
			var pages int
			if err := s.db.w.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
				t.Fatal(err)
			}
			if _, err := s.db.w.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
				t.Fatal(err)
			}
		}},
		"read-only": {"store.read_only", func(t *testing.T, s Fleet, _ string) {
			if _, err := s.db.w.ExecContext(t.Context(), "PRAGMA query_only = true"); err != nil {
				t.Fatal(err)
			}
		}},
		"busy": {"store.busy", func(t *testing.T, s Fleet, path string) {
			if _, err := s.db.w.ExecContext(t.Context(), "PRAGMA busy_timeout = 10"); err != nil {
				t.Fatal(err)
			}
			other := connect(path, "_txlock=immediate", 1)
			// The test's context ends before its clean-up, and would roll back itself.
			tx, err := other.BeginTx(context.WithoutCancel(t.Context()), &sql.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := errors.Join(tx.Rollback(), other.close()); err != nil {
					t.Error(err)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, path := openFleet(t)
			c.bring(t, s, path)
			r := record(t, "big")
			r.Labels = map[string]string{"big": strings.Repeat("x", 1<<20)}
			err := s.Apply(t.Context(), &fleet.Change{Insert: &r})
			var f *instance.Fault
			if !errors.As(err, &f) || f.Code != c.code || f.Hint == "" || f.Blame != instance.Host {
				t.Errorf("storing: %v", err)
			}
		})
	}
}

// TestDamageIsNamed writes over pages of an open database.
func TestDamageIsNamed(t *testing.T) {
	s, path := openFleet(t)
	for i := range 200 {
		r := record(t, fmt.Sprint("name-", i))
		if err := s.Apply(t.Context(), &fleet.Change{Insert: &r, Events: eventsOf("default", 20)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatalf("a sound database: %v", err)
	}
	if _, err := s.db.w.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(4096); at < st.Size(); at += 4096 {
		if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 1024)), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	fresh, err := Open(t.Context(), path)
	if err == nil {
		t.Error("a damaged database was opened")
		_ = fresh.Close()
	}
	if fault := instance.AsFault(err); fault.Code != "database.damaged" || !strings.Contains(fault.Hint, "restore a backup") {
		t.Errorf("opening it: %v", err)
	}
}

// TestDamagedContentIsNamed: SQLite finds nothing wrong with rows whose texts
// hold garbage. Whoever reads them says that they are damaged and what to do.
func TestDamagedContentIsNamed(t *testing.T) {
	for _, change := range []string{
		`UPDATE instances SET plan = '{"version":\u00ff'`,
		`UPDATE instances SET labels = 'garbage'`,
		`UPDATE instances SET phase = 'runn\xde\xad'`,
		`UPDATE instances SET follow = 'nothing'`,
		`UPDATE instances SET id = '../../etc'`,
		`UPDATE instances SET fault = 'x'`,
		`UPDATE operations SET steps = '[{]'`,
		`UPDATE operations SET state = 'done'`,
	} {
		s, _ := openFleet(t)
		r := record(t, "victim")
		op := fleet.Operation{
			ID: "01a00000-0000-7000-8000-000000000001", Kind: "instance.create", Tenant: instance.DefaultTenant, Instance: r.ID,
			State: fleet.OperationPending, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		}
		if err := s.Apply(t.Context(), &fleet.Change{Insert: &r, Operation: &op}); err != nil {
			t.Fatal(err)
		}
		ExecForTest(t, s.db, change)
		if err := s.Check(t.Context()); err != nil {
			t.Logf("%s: SQLite finds %v", change, err)
		}
		_, err := s.Instances(t.Context(), "")
		if strings.Contains(change, "operations") {
			_, err = s.Operations(t.Context(), fleet.OperationFilter{})
		}
		var f *instance.Fault
		if !errors.As(err, &f) || f.Code != "store.damaged" || !strings.Contains(f.Hint, "backup") || f.Blame != instance.Host {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestDatabaseThatIsTakenAway: what is written to a file that has no name any
// more would be lost, so nothing is promised until it is back.
func TestDatabaseThatIsTakenAway(t *testing.T) {
	s, path := openFleet(t)
	store := func(name string) error {
		r := record(t, name)
		return s.Apply(t.Context(), &fleet.Change{Insert: &r})
	}
	if err := store("before"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for _, another := range []bool{false, true} {
		if another {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for what, err := range map[string]error{"a write": store("meanwhile"), "a probe": s.db.Probe(t.Context()), "a check": s.Check(t.Context())} {
			if f := instance.AsFault(err); f == nil || f.Code != "store.missing" || f.Hint == "" {
				t.Errorf("another in its place %t: %s says %v", another, what, err)
			}
		}
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := store("after"); err != nil {
		t.Errorf("with the file back: %v", err)
	}
}

func TestAdoption(t *testing.T) {
	s, _ := openFleet(t)
	if is, err := s.Adopted(t.Context()); is || err != nil {
		t.Errorf("a new database: %t, %v", is, err)
	}
	if err := s.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is, err := s.Adopted(t.Context()); !is || err != nil {
		t.Errorf("an adopted one: %t, %v", is, err)
	}
	want := []fleet.Orphan{{Provider: "p", ID: "a", Since: time.UnixMilli(5).UTC()}, {
		Provider: "p", ID: "b", Since: time.UnixMilli(6).UTC(), RemoveAfter: time.UnixMilli(7).UTC(),
	}}
	for range 2 {
		if err := s.SaveOrphans(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Orphans(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("orphans: %+v, %v", got, err)
	}
}

// TestUpgradeKeepsInstances brings a database of the first version up to date.
func TestUpgradeKeepsInstances(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	old := connect(path, "_txlock=immediate", 1)
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, old.DB, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 400); err != nil {
		t.Fatal(err)
	}
	for _, stmt := range []string{
		"INSERT INTO instances (id, name, phase, host, provider, plan, generation, created_ms, updated_ms)" +
			" VALUES ('01900000-0000-7000-8000-000000000001', 'old', 'running', 'h', 'libvirt', '{}', 3, 1, 2)",
		"INSERT INTO operations (id, kind, instance, name, state, created_ms, updated_ms) VALUES ('o', 'k', '01900000-0000-7000-8000-000000000001', 'old', 'running', 1, 2)",
	} {
		if _, err := old.ExecContext(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.close(); err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := db.Fleet()
	all, err := s.Instances(t.Context(), instance.DefaultTenant)
	if err != nil || len(all) != 1 || all[0].Name != "old" || all[0].Generation != 3 || !all[0].ExpiresAt.IsZero() {
		t.Errorf("instances: %+v, %v", all, err)
	}
	if op, err := s.Operation(t.Context(), instance.DefaultTenant, "o"); err != nil || op.State != fleet.OperationRunning {
		t.Errorf("operation: %+v, %v", op, err)
	}
	if is, err := s.Adopted(t.Context()); !is || err != nil {
		t.Errorf("it counts as new: %v", err)
	}
}

// TestTasksAreOfTheirInstancesTenant, also once the instance is gone.
func TestTasksAreOfTheirInstancesTenant(t *testing.T) {
	s, _ := openFleet(t)
	r := record(t, "x")
	r.Tenant = "a"
	if err := s.Apply(t.Context(), &fleet.Change{Insert: &r}); err != nil {
		t.Fatal(err)
	}
	for id, of := range map[string]instance.ID{"theirs": r.ID, "nobodys": "gone"} {
		n := task.New{ID: id, InstanceID: of, Run: task.Run{RunID: id, Spec: []byte("s")}, At: time.UnixMilli(1)}
		if _, err := s.db.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Apply(t.Context(), &fleet.Change{Remove: &r}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"theirs": "a", "nobodys": "default"} {
		var got string
		if err := s.db.r.QueryRowContext(t.Context(), "SELECT tenant FROM tasks WHERE id = ?", id).Scan(&got); err != nil || got != want {
			t.Errorf("task %q is of tenant %q, want %q (%v)", id, got, want, err)
		}
	}
}
