package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

func TestManagementRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(1_767_225_600_000)
	bounds := once.Bounds{TTL: time.Hour, Entries: 3}
	key := func(principal, name string) once.Key {
		return once.Key{Tenant: "default", Principal: principal, Name: name}
	}
	want := func(k once.Key, hash, op string, expect once.Reservation) {
		t.Helper()
		got, err := db.ManagementRequests().Reserve(t.Context(), k, once.Reservation{Hash: hash, OperationID: op}, now, bounds)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Error(diff)
		}
	}
	answered := func(k once.Key, op string, a once.Answer) {
		t.Helper()
		if err := db.ManagementRequests().Answered(t.Context(), k, op, a); err != nil {
			t.Fatal(err)
		}
	}
	want(key("alice", "k1"), "h1", "o1", once.Reservation{Hash: "h1", OperationID: "o1"})
	want(key("alice", "k1"), "h2", "o2", once.Reservation{Hash: "h1", OperationID: "o1"})
	want(key("bob", "k1"), "h3", "o3", once.Reservation{Hash: "h3", OperationID: "o3"})
	other := key("alice", "k1")
	other.Tenant = "other"
	want(other, "h4", "o4", once.Reservation{Hash: "h4", OperationID: "o4"})

	answer := once.Answer{Status: 202, Header: map[string]string{"Location": "/operations/o1"}, Body: []byte(`{"id":"o1"}`)}
	answered(key("alice", "k1"), "o9", once.Answer{Status: 500, Body: []byte("of another reservation")})
	want(key("alice", "k1"), "h2", "o2", once.Reservation{Hash: "h1", OperationID: "o1"})
	answered(key("alice", "k1"), "o1", answer)
	answered(key("alice", "k1"), "o1", once.Answer{Status: 404, Body: []byte("a second answer")})

	// What was stored survives, and the first answer stays.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = sqlite.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	want(key("alice", "k1"), "h2", "o2", once.Reservation{Hash: "h1", OperationID: "o1", Answer: &answer})

	// The oldest answered one of the principal makes room, those of others stay.
	for i := range 3 {
		k, op := key("alice", fmt.Sprint("n", i)), fmt.Sprint("on", i)
		want(k, "h", op, once.Reservation{Hash: "h", OperationID: op})
	}
	want(key("alice", "k1"), "h5", "o5", once.Reservation{Hash: "h5", OperationID: "o5"})
	want(key("bob", "k1"), "h9", "o9", once.Reservation{Hash: "h3", OperationID: "o3"})

	// What is too old counts as nothing.
	now = now.Add(time.Hour)
	want(key("bob", "k1"), "h9", "o9", once.Reservation{Hash: "h9", OperationID: "o9"})
}

// TestManagementRequestsRace: of many at once, one reserves.
func TestManagementRequestsRace(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	ops := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ops {
		wg.Go(func() {
			r, err := db.ManagementRequests().Reserve(t.Context(), once.Key{Tenant: "t", Principal: "p", Name: "k"},
				once.Reservation{Hash: "h", OperationID: strconv.Itoa(i)}, time.UnixMilli(1), once.Bounds{TTL: time.Hour, Entries: 10})
			if err != nil {
				t.Error(err)
			}
			ops[i] = r.OperationID
		})
	}
	wg.Wait()
	for _, op := range ops {
		if op != ops[0] || op == "" {
			t.Fatalf("got %v, want one reservation", ops)
		}
	}
}
