package sqlite_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestSweep: the tasks of a removed instance go, but for those that go on, and
// those whose end somebody is still to be told.
func TestSweep(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	now := time.UnixMilli(1_700_000_000_000)
	there := supervise.Record{
		ID: "01900000-0000-7000-8000-000000000002", Tenant: "default", Name: "there", Phase: "running", Provider: "host",
		CreatedAt: now, UpdatedAt: now,
	}
	if err := db.Fleet().Apply(t.Context(), &fleet.Change{Insert: &there}); err != nil {
		t.Fatal(err)
	}
	hooks := map[string]push.Hook{}
	for _, id := range []string{"ended", "goes-on", "to-be-told", "told", "given-up", "of-one-that-is-there"} {
		n := newTask(id)
		if id == "of-one-that-is-there" {
			n.InstanceID = there.ID
		}
		rec, err := db.Create(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		hooked := slices.Contains([]string{"to-be-told", "told", "given-up"}, id)
		if hooked {
			h := push.Hook{TaskID: id, ID: "h", Version: "1.0", URL: "https://example.org/"}
			if hooks[id], err = db.Webhooks().Put(t.Context(), task.System(), h, 0, 1); err != nil {
				t.Fatal(err)
			}
		}
		if id == "goes-on" {
			continue
		}
		if _, err := move(t.Context(), db, rec, task.Completed); err != nil {
			t.Fatal(err)
		}
	}
	for id, state := range map[string]push.State{"told": push.Done, "given-up": push.GaveUp} {
		if err := db.Webhooks().Save(t.Context(), hooks[id].Serial, push.Progress{State: state, Delivered: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		"ended": false, "goes-on": true, "to-be-told": true, "told": false, "given-up": false, "of-one-that-is-there": true,
	} {
		_, err := db.Task(t.Context(), task.System(), id, task.View{})
		if err != nil && !errors.Is(err, task.ErrNotFound) {
			t.Fatal(err)
		}
		if (err == nil) != want {
			t.Errorf("%s: kept %t, want %t", id, err == nil, want)
		}
	}
	active, err := db.Webhooks().Active(t.Context())
	if err != nil || len(active) != 1 || active[0].TaskID != "to-be-told" {
		t.Errorf("active are %+v, %v", active, err)
	}
}

// TestEndedTasksDoNotMove, nor does any go back to its beginning.
func TestEndedTasksDoNotMove(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	rec := create(t, db, "t")
	if _, err := move(t.Context(), db, rec, task.Submitted); err == nil {
		t.Error("it began anew")
	}
	rec, err := move(t.Context(), db, rec, task.Canceled)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []task.State{task.Working, task.Completed, task.Canceled} {
		if _, err := move(t.Context(), db, rec, s); !errors.Is(err, task.ErrTerminal) {
			t.Errorf("after its end to %s: %v", s, err)
		}
	}
	if now, err := db.Task(t.Context(), task.System(), "t", task.View{}); err != nil || now.Status.State != task.Canceled || now.LastSeq != rec.LastSeq {
		t.Errorf("it is %+v, %v", now, err)
	}
}

// TestProgressComesBack as it was stored: the next process goes on with it.
func TestProgressComesBack(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	create(t, db, "t")
	want := task.Progress{AfterSeq: 7, Received: [2]uint64{5, 6}, Carry: [2][]byte{{0xc3}, {0xe2, 0x82}}, Overflow: true}
	chunks := []task.Chunk{{ArtifactID: "stdout", Data: []byte("abcd")}}
	if err := db.Output(t.Context(), "t", chunks, want); err != nil {
		t.Fatal(err)
	}
	if run, err := db.Run(t.Context(), "t"); err != nil || !reflect.DeepEqual(run.Progress, want) {
		t.Errorf("%+v, %v; want %+v", run.Progress, err, want)
	}
}

// TestReadsAreBounded: what is read at once is, and the reads go on where the
// one before ended; an artifact is not read from within a chunk.
func TestReadsAreBounded(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	create(t, db, "t")
	const chunks, each, most = 10, 300 << 10, 1 << 20
	for i := range uint64(chunks) {
		c := task.Chunk{ArtifactID: "stdout", Offset: i * each, Data: []byte(strings.Repeat(string(rune('a'+i)), each))}
		if err := db.Output(t.Context(), "t", []task.Chunk{c}, task.Progress{AfterSeq: i + 1}); err != nil {
			t.Fatal(err)
		}
	}
	for last := uint64(1); last < chunks+1; {
		events, err := db.Events(t.Context(), task.System(), "t", last)
		if err != nil || len(events) == 0 || len(events)*each > most {
			t.Fatalf("behind %d: %d events, %v", last, len(events), err)
		}
		for _, e := range events {
			if last++; e.Seq != last {
				t.Fatalf("event %d is %d", last, e.Seq)
			}
		}
	}
	for at := 0; at < chunks*each; {
		data, err := db.ReadArtifact(t.Context(), task.System(), "t", "stdout", uint64(at))
		if err != nil || len(data) == 0 || len(data) > most || data[0] != byte('a'+at/each) {
			t.Fatalf("at %d: %d bytes, %v", at, len(data), err)
		}
		at += len(data)
	}
	if data, err := db.ReadArtifact(t.Context(), task.System(), "t", "stdout", 1); err == nil {
		t.Errorf("from within a chunk it reads %.10q", data)
	}
}

// TestOpenRuns are those that the guest has not forgotten, ended or not.
func TestOpenRuns(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	for _, id := range []string{"runs", "ended", "released"} {
		rec := create(t, db, id)
		if id == "runs" {
			continue
		}
		if _, err := move(t.Context(), db, rec, task.Completed); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Released(t.Context(), "released"); err != nil {
		t.Fatal(err)
	}
	runs, err := db.OpenRuns(t.Context())
	if err != nil || len(runs) != 2 || runs[0].TaskID != "ended" || runs[0].State != task.Completed || runs[1].TaskID != "runs" {
		t.Errorf("open are %+v, %v", runs, err)
	}
}

// TestListSince: what changed at that very moment is among it.
func TestListSince(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	at := create(t, db, "t").Status.Timestamp.Time
	for since, want := range map[time.Time]int{at: 1, at.Add(-time.Millisecond): 1, at.Add(time.Millisecond): 0} {
		f := task.Filter{InstanceID: anInstance, Limit: 9, Since: since}
		page, err := db.List(t.Context(), task.System(), f, task.View{Inline: -1})
		if err != nil || page.Total != want || len(page.Tasks) != want {
			t.Errorf("since %v: %d tasks, %v", since, page.Total, err)
		}
	}
}

// TestPagesOfOperations: each is on one page, newest first, whatever the filter.
func TestPagesOfOperations(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db")).Fleet()
	at := time.UnixMilli(1_700_000_000_000).UTC()
	var all, unended []string
	for i := range 9 {
		op := fleet.Operation{
			ID: fmt.Sprintf("01900000-0000-7000-8000-%012d", i), Kind: "instance.stop", Tenant: "default", Instance: anInstance,
			State: fleet.OperationRunning, CreatedAt: at, UpdatedAt: at,
		}
		all = append(all, op.ID)
		if i%3 == 0 {
			op.State, op.EndedAt = fleet.OperationSucceeded, at
		} else {
			unended = append(unended, op.ID)
		}
		if err := s.Apply(t.Context(), &fleet.Change{Operation: &op}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Reverse(all)
	slices.Reverse(unended)
	for _, c := range []struct {
		f    fleet.OperationFilter
		want []string
	}{{fleet.OperationFilter{}, all}, {fleet.OperationFilter{Unended: true}, unended}} {
		for limit := range 11 {
			var got []string
			for f, more := c.f, true; more; {
				f.Limit = limit
				page, err := s.Operations(t.Context(), f)
				if err != nil || limit > 0 && len(page.Operations) > limit {
					t.Fatalf("%d of at most %d: %v", len(page.Operations), limit, err)
				}
				for _, op := range page.Operations {
					got = append(got, op.ID)
				}
				f.After, more = page.Next, page.Next != "" && len(got) <= len(all)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%+v by %d: %v, want %v", c.f, limit, got, c.want)
			}
		}
	}
}

// TestOldOperationsAreDropped, but for those that go on.
func TestOldOperationsAreDropped(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	sqlite.ExecForTest(t, db, `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 10002)
		INSERT INTO operations (id, tenant, kind, instance, name, state, phase, percent, warnings, steps, canceling,
		created_ms, updated_ms, ended_ms)
		SELECT printf('%08d', i), 'default', 'k', 'i', 'n', iif(i = 1, 'running', 'succeeded'), '', 0, 'null', 'null', 0, 1, 1, iif(i = 1, NULL, 1) FROM n`)
	next := fleet.Operation{ID: "1", Tenant: "default", Kind: "k", State: fleet.OperationPending, CreatedAt: time.Now(), UpdatedAt: time.Now()}
	if err := db.Fleet().Apply(t.Context(), &fleet.Change{Operation: &next}); err != nil {
		t.Fatal(err)
	}
	page, err := db.Fleet().Operations(t.Context(), fleet.OperationFilter{})
	if err != nil {
		t.Fatal(err)
	}
	oldest := page.Operations[len(page.Operations)-2:]
	if len(page.Operations) != 10_001 || oldest[0].ID != "00000004" || oldest[1].ID != "00000001" {
		t.Errorf("%d are kept, the oldest of them %q and %q", len(page.Operations), oldest[0].ID, oldest[1].ID)
	}
}

// TestListHoldsLittle: what a page cannot hold is not read either.
func TestListHoldsLittle(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	const tasks, each = 30, 512 << 10
	big := task.Metadata{"x": []byte(`"` + strings.Repeat("x", each) + `"`)}
	for i := range tasks {
		n := newTask(fmt.Sprint("t", i))
		n.Metadata = big
		if _, err := db.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := task.Filter{InstanceID: anInstance, Limit: tasks, Bytes: 2 * each}
	page, err := db.List(t.Context(), task.System(), f, task.View{Inline: -1})
	runtime.ReadMemStats(&after)
	if err != nil || len(page.Tasks) != 1 || page.Total != tasks {
		t.Fatalf("%d of %d tasks, %v", len(page.Tasks), page.Total, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > tasks*each/2 {
		t.Errorf("a page of one task took %d MiB", took>>20)
	}
}
