package main

import (
	"database/sql"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMultiply: copies differ from the template in nothing but id, name and
// labels, wherever those stand, and each has its machine's files.
func TestMultiply(t *testing.T) {
	dir := t.TempDir()
	const id = "01a22db3-4e23-781e-a850-d82e36321cdb"
	db, err := sql.Open("sqlite3", filepath.Join(dir, "sandbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE instances (id TEXT PRIMARY KEY, name TEXT UNIQUE, phase TEXT, later INTEGER, plan TEXT, handle TEXT, labels TEXT) STRICT`)
	exec(`INSERT INTO instances VALUES (?, ?, 'stopped', 7, ?, ?, '{}')`, id, template,
		`{"id":"`+id+`","name":"`+template+`","loadout":"bench"}`, `{"id":"`+id+`"}`)
	machine := filepath.Join(dir, "host", "machines", id)
	if err := errors.Join(os.MkdirAll(filepath.Join(machine, "disk"), 0o700),
		os.WriteFile(filepath.Join(machine, "spec.json"), []byte(id+" "+template), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := multiply(t.Context(), dir, 25); err != nil {
		t.Fatal(err)
	}
	rows, err := db.QueryContext(t.Context(), `SELECT id, name, phase, later, plan, handle, labels FROM instances ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, chosen := map[string]bool{}, 0
	for rows.Next() {
		var id, name, phase, plan, handle, labels string
		var later int
		if err := rows.Scan(&id, &name, &phase, &later, &plan, &handle, &labels); err != nil {
			t.Fatal(err)
		}
		names[name] = true
		if strings.Contains(labels, `"team":"t3"`) {
			chosen++
		}
		if phase != "stopped" || later != 7 || plan != `{"id":"`+id+`","name":"`+name+`","loadout":"bench"}` || handle != `{"id":"`+id+`"}` {
			t.Errorf("%s %s: %s %d %s %s", id, name, phase, later, plan, handle)
		}
		spec, err := os.ReadFile(filepath.Join(dir, "host", "machines", id, "spec.json"))
		if err != nil || string(spec) != id+" "+name {
			t.Errorf("%s: %q, %v", id, spec, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "host", "machines", id, "disk")); err != nil {
			t.Error(err)
		}
	}
	if err := rows.Err(); err != nil || len(names) != 26 || chosen != 3 {
		t.Errorf("%d instances, %d chosen, %v", len(names), chosen, err)
	}
}

// TestSplitEvents: events are told whole, a position by itself as nothing.
func TestSplitEvents(t *testing.T) {
	var got []string
	err := splitEvents(strings.NewReader("id: 7\n\n: still here\n\nid: 8\nevent: a\ndata: {}\n\nid: 9\ndata: cut"), func(e []byte) {
		got = append(got, string(e))
	})
	if !errors.Is(err, io.EOF) || !slices.Equal(got, []string{"", "id: 8\nevent: a\ndata: {}\n\n"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestFanout: the bare fan-out reaches all sockets each time, and a watcher
// that is lost, or that gets something else, is told.
func TestFanout(t *testing.T) {
	f, err := openFanout(t.Context(), []byte("data: x\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for range 3 {
		if at, err := f.once(t.Context()); err != nil || at.IsZero() {
			t.Fatal(at, err)
		}
	}
	for range watcherCount - 1 {
		f.seen <- arrival{event: []byte("a")}
	}
	f.seen <- arrival{event: []byte("b")}
	if _, err := f.await(t.Context()); err == nil {
		t.Error("a watcher that got something else was not told")
	}
	if err := f.ends[len(f.ends)-1].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.once(t.Context()); err == nil || errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "watcher") {
		t.Errorf("a lost watcher gives %v", err)
	}
}

// TestByteServer: the bare handler answers the same bytes, and a shorter
// answer is no sample.
func TestByteServer(t *testing.T) {
	p := page{uri: "/api/v1/instances?label=team%3Dt3&limit=100", body: []byte(`{"items":[]}`)}
	s, err := serveBytes(t.Context(), []page{p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	r := newRecordsClient()
	if took, err := r.replay(t.Context(), s.url, []page{p}, 3); err != nil || len(took) != 3 {
		t.Errorf("took %v, %v", took, err)
	}
	longer := page{uri: p.uri, body: append(slices.Clone(p.body), ' ')}
	unknown := page{uri: "/other", body: p.body}
	for _, bad := range []page{longer, unknown} {
		if _, err := r.replay(t.Context(), s.url, []page{bad}, 1); err == nil {
			t.Errorf("%s is a sample", bad.uri)
		}
	}
}

func TestResident(t *testing.T) {
	for status, want := range map[string]float64{
		"Name:\tsandboxd\nVmHWM:\t 9000 kB\nVmRSS:\t    2560 kB\nThreads:\t3\n": 2.5,
		"Name:\tkthreadd\n": 0, "VmRSS:\t-1 kB\n": 0, "VmRSS:\t12\n": 0, "": 0,
	} {
		if got, err := residentIn(status); got != want || (err == nil) != (want > 0) {
			t.Errorf("residentIn(%q) = %v, %v", status, got, err)
		}
	}
	if mib, err := residentOf(os.Getpid()); err != nil || mib < 1 {
		t.Errorf("this process has %v MiB, %v", mib, err)
	}
	at := func(v ...float64) *arm {
		a := &arm{byRound: map[int]float64{}}
		for i, v := range v {
			a.byRound[i] = v
		}
		return a
	}
	notes := perInstance([]residence{{arm: at(50, 50, 50)}, {stopped: 1024, arm: at(51, 52, 50)}, {running: 1, arm: at()}})
	if len(notes) != 1 || notes[0] != "sandboxd, 1024 stopped: 1024 bytes for each instance, give or take 1024." {
		t.Errorf("notes are %q", notes)
	}
}
