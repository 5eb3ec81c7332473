package sqlite_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

func TestIdempotency(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(1_767_225_600_000)
	bounds := idempotency.Bounds{TTL: time.Hour, Entries: 3}
	reserve := func(principal, id, hash, taskID string) idempotency.Reservation {
		t.Helper()
		r, err := db.Idempotency().Reserve(t.Context(), idempotency.Key{Principal: principal, Instance: "i-1", MessageID: id},
			idempotency.Reservation{Hash: hash, TaskID: taskID}, now, bounds)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	key := idempotency.Key{Principal: "alice", Instance: "i-1", MessageID: "m1"}
	answer := func(k idempotency.Key, taskID, text string) {
		t.Helper()
		if err := db.Idempotency().Answer(t.Context(), k, taskID, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(got idempotency.Reservation, hash, taskID string, answered bool, text string) {
		t.Helper()
		if got.Hash != hash || got.TaskID != taskID || got.Answered != answered || string(got.Answer) != text {
			t.Errorf("got %+v", got)
		}
	}
	want(reserve("alice", "m1", "h1", "t1"), "h1", "t1", false, "")
	want(reserve("alice", "m1", "h2", "t2"), "h1", "t1", false, "")
	want(reserve("bob", "m1", "h3", "t3"), "h3", "t3", false, "")
	answer(key, "t2", "of another reservation")
	want(reserve("alice", "m1", "h2", "t2"), "h1", "t1", false, "")
	answer(key, "t1", "one")
	answer(key, "t1", "two")

	// What was stored survives, and the first answer stays.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = sqlite.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	want(reserve("alice", "m1", "h2", "t2"), "h1", "t1", true, "one")

	// An expired one is as if it had never been.
	now = now.Add(bounds.TTL)
	want(reserve("alice", "m1", "h4", "t4"), "h4", "t4", false, "")
	answer(key, "t1", "late")
	want(reserve("alice", "m1", "h5", "t5"), "h4", "t4", false, "")

	// The oldest answered ones of the same principal make room first.
	for i := 2; i <= 3; i++ {
		now = now.Add(time.Second)
		id := fmt.Sprint("m", i)
		reserve("alice", id, "h", id)
		answer(idempotency.Key{Principal: "alice", Instance: "i-1", MessageID: id}, id, "x")
	}
	reserve("carol", "m1", "h", "c1")
	now = now.Add(time.Second)
	reserve("alice", "m4", "h", "m4")
	want(reserve("alice", "m1", "-", "-"), "h4", "t4", false, "") // unanswered: it stays
	want(reserve("alice", "m3", "-", "-"), "h", "m3", true, "x")
	want(reserve("carol", "m1", "-", "-"), "h", "c1", false, "")
	want(reserve("alice", "m2", "-", "again"), "-", "again", false, "")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestIdempotencyAtOnce: of many who reserve at once, all are told the same.
func TestIdempotencyAtOnce(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	var wg sync.WaitGroup
	got := make([]string, 16)
	for i := range got {
		wg.Go(func() {
			r, err := db.Idempotency().Reserve(t.Context(), idempotency.Key{Principal: "p", Instance: "i", MessageID: "m"},
				idempotency.Reservation{Hash: "h", TaskID: strconv.Itoa(i)}, time.Now(), idempotency.Bounds{TTL: time.Hour, Entries: 10})
			if err != nil {
				t.Error(err)
			}
			got[i] = r.TaskID
		})
	}
	wg.Wait()
	if len(slices.Compact(got)) != 1 {
		t.Errorf("told were %v", got)
	}
}
