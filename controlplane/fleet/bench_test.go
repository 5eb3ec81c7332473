package fleet_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// many is a fleet of stopped instances, as a start finds them in its store.
func many(b *testing.B, n int) *fleet.Fleet {
	b.Helper()
	db, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	store := db.Fleet()
	for i := range n {
		id, err := instance.NewID()
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		r := supervise.Record{
			ID: id, Tenant: instance.DefaultTenant, Name: "n" + strconv.Itoa(i), Phase: instance.Stopped, Provider: "none",
			Plan:   plan.Plan{Version: plan.Version, ID: id, Runners: []string{"echo"}, Env: map[string]string{"A": "b"}},
			Labels: map[string]string{"team": strconv.Itoa(i % 10)}, CreatedAt: now, UpdatedAt: now, Generation: 1,
		}
		if err := store.Apply(b.Context(), &fleet.Change{Insert: &r}); err != nil {
			b.Fatal(err)
		}
	}
	f := fleet.New(fleet.Config{
		Store: store, Keeper: store, Images: &shelf{}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	began := time.Now()
	if err := f.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d instances were taken up in %v", n, time.Since(began))
	b.Cleanup(func() {
		f.Close()
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return f
}

// BenchmarkList pages through lists of ten thousand instances.
func BenchmarkList(b *testing.B) {
	const n = 10_000
	f := many(b, n)
	teams, err := fleet.ParseSelector("team in (3,4),!nobody")
	if err != nil {
		b.Fatal(err)
	}
	for name, filter := range map[string]fleet.Filter{
		"page": {Limit: 100}, "selector": {Limit: 100, Selector: teams}, "all": {},
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				page, err := f.List(b.Context(), filter)
				if err != nil || len(page.Views) == 0 {
					b.Fatal(fmt.Sprint(page.Total, err))
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
