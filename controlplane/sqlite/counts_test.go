package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

func TestCounts(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if c, err := db.Counts(t.Context()); err != nil || c.Undelivered != 0 || len(c.Instances) != 0 {
		t.Fatalf("empty: %+v, %v", c, err)
	}
	now := time.UnixMilli(1_767_225_600_000)
	for i, phase := range []instance.Phase{instance.Running, instance.Running, instance.Stopped} {
		id, err := instance.NewID()
		if err != nil {
			t.Fatal(err)
		}
		state := []fleet.OperationState{fleet.OperationRunning, fleet.OperationFailed, fleet.OperationFailed}[i]
		change := fleet.Change{
			Insert:    &supervise.Record{ID: id, Tenant: "default", Name: string(id), Phase: phase, Provider: "host", CreatedAt: now, UpdatedAt: now},
			Operation: &fleet.Operation{ID: string(id), Tenant: "default", Kind: "instance.create", Instance: id, State: state, CreatedAt: now, UpdatedAt: now},
		}
		if err := db.Fleet().Apply(t.Context(), &change); err != nil {
			t.Fatal(err)
		}
	}
	c, err := db.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(c.Operations, func(a, b sqlite.Count) int { return int(a.N - b.N) })
	slices.SortFunc(c.Instances, func(a, b sqlite.Count) int { return int(a.N - b.N) })
	want := sqlite.Counts{
		Instances:  []sqlite.Count{{"host", "stopped", 1}, {"host", "running", 2}},
		Operations: []sqlite.Count{{"instance.create", "running", 1}, {"instance.create", "failed", 2}},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

// TestProbe: an open database takes writes, one that was closed, or for which
// there is no time, does not.
func TestProbe(t *testing.T) {
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := db.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Probe(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db.Probe(t.Context()) == nil {
		t.Error("a closed database takes writes")
	}
}
