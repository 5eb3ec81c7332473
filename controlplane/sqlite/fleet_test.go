package sqlite

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// sameError compares faults by what is kept of their error: its text.
var sameError = cmp.Comparer(func(a, b *instance.Fault) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Blame == b.Blame && a.Code == b.Code && a.Hint == b.Hint && a.Console == b.Console && a.Err.Error() == b.Err.Error()
})

func TestInstancesComeBackAsTheyWere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	r := record(t, "one")
	if err := db.Fleet().Apply(t.Context(), &fleet.Change{Insert: &r}); err != nil {
		t.Fatal(err)
	}
	r.Phase = instance.Failed
	r.Handle = &vm.Handle{Driver: "libvirt", Version: 1, Data: []byte(`{"x":1}`)}
	r.Fault = &instance.Fault{Blame: instance.Guest, Code: "c", Hint: "h", Console: "tail", Err: errors.New("why")}
	r.Guest = &supervise.Guest{Kernel: "6.1", BootTime: 2 * time.Second, Marks: []supervise.Mark{{Name: "init", Since: time.Second}}}
	r.Generation, r.Reason, r.After, r.Resting, r.Restarts = 2, "idle", instance.StartRequested, true, 3
	r.ExpiresAt = r.CreatedAt.Add(time.Hour)
	if err := db.Fleet().Apply(t.Context(), &fleet.Change{Save: &r}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := db.Fleet().Instances(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]supervise.Record{r}, all, sameError, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNamesAreUniqueUntilRemoved(t *testing.T) {
	s, _ := openFleet(t)
	first, second := record(t, "same"), record(t, "same")
	if err := s.Apply(t.Context(), &fleet.Change{Insert: &first}); err != nil {
		t.Fatal(err)
	}
	other := record(t, "same")
	other.Tenant = "other"
	if err := s.Apply(t.Context(), &fleet.Change{Insert: &other}); err != nil {
		t.Fatalf("one of the same name of another tenant: %v", err)
	}
	if err := s.Apply(t.Context(), &fleet.Change{Insert: &second}); !errors.Is(err, fleet.ErrNameTaken) {
		t.Fatalf("second insert: %v, want ErrNameTaken", err)
	}
	if err := s.Apply(t.Context(), &fleet.Change{Remove: &first}); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), &fleet.Change{Insert: &second}); err != nil {
		t.Error(err)
	}
	if err := s.Apply(t.Context(), &fleet.Change{Save: &first}); err != nil {
		t.Fatal(err)
	}
	all, err := s.Instances(t.Context(), instance.DefaultTenant)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].ID != second.ID {
		t.Errorf("a late save brought a removed instance back: %v", all)
	}
}

func TestOperationsComeBackAsTheyWere(t *testing.T) {
	s, _ := openFleet(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	op := fleet.Operation{
		ID: "018fc0a2-0000-7000-8000-000000000001", Tenant: instance.DefaultTenant, Kind: "instance.create", Name: "n",
		State: fleet.OperationPending, CreatedAt: now, UpdatedAt: now,
	}
	later := op
	later.ID = "018fc0a2-0000-7000-8000-000000000002"
	for _, o := range []fleet.Operation{op, later} {
		if err := s.Apply(t.Context(), &fleet.Change{Operation: &o}); err != nil {
			t.Fatal(err)
		}
	}
	op.State, op.Phase, op.Percent, op.EndedAt = fleet.OperationFailed, "boot", 45, now.Add(time.Minute)
	op.Fault = &instance.Fault{Blame: instance.Host, Code: "c", Err: errors.New("why")}
	op.Warnings = []string{"w"}
	op.Steps = []fleet.OperationStep{{Name: "boot", Mark: "failed", At: now, Cause: "why"}}
	if err := s.Apply(t.Context(), &fleet.Change{Operation: &op}); err != nil {
		t.Fatal(err)
	}
	page, err := s.Operations(t.Context(), fleet.OperationFilter{})
	got := page.Operations
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.Operation{later, op}, got, sameError, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
