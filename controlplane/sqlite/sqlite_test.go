package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const anInstance = instance.ID("01900000-0000-7000-8000-000000000001")

func open(t *testing.T, path string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newTask(id string) task.New {
	return task.New{
		ID: id, ContextID: "ctx-" + id, InstanceID: anInstance, Owner: "alice",
		Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart("hi")}},
		Run:     task.Run{RunID: "run-" + id, Runner: "echo", Spec: []byte("spec"), Artifacts: [2]string{"stdout", "stderr"}},
		At:      time.UnixMilli(1_700_000_000_123),
	}
}

func create(t *testing.T, db *sqlite.DB, id string) task.Record {
	t.Helper()
	rec, err := db.Create(t.Context(), newTask(id))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func move(ctx context.Context, db *sqlite.DB, rec task.Record, s task.State, ends ...task.Chunk) (task.Record, error) {
	return db.Move(ctx, rec.ID, task.Transition{
		Version: rec.Version, Status: task.Status{State: s, Timestamp: task.Stamp(time.Now())}, Ends: ends,
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("this is no database, it only looks like a file of some length"), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer")
	db := open(t, newer)
	sqlite.ExecForTest(t, db, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999999, 1)")
	for path, code := range map[string]string{
		garbage:                               "database.damaged",
		newer:                                 "database.newer",
		filepath.Join(dir, "no", "directory"): "database.not_writable",
	} {
		before, _ := os.ReadFile(path)
		_, err := sqlite.Open(t.Context(), path)
		var f *instance.Fault
		if !errors.As(err, &f) || f.Code != code || f.Hint == "" {
			t.Errorf("open %q: %v, want a fault %s with a hint", path, err, code)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Errorf("open %q changed the file", path)
		}
	}
}

func TestOpenRefusesTornDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		create(t, db, id)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096 * 2; i < 4096*8; i++ { // a few pages behind the schema
		whole[i] ^= 0x5a
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	var f *instance.Fault
	if _, err := sqlite.Open(t.Context(), path); !errors.As(err, &f) || f.Code != "database.damaged" {
		t.Fatalf("open: %v, want database.damaged", err)
	}
}

func TestTaskLife(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "a ?#%db"))
	rec := create(t, db, "t1")
	if _, err := db.Create(t.Context(), newTask("t1")); err == nil {
		t.Error("the same id twice was accepted")
	}
	work, err := move(t.Context(), db, rec, task.Working)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := move(t.Context(), db, rec, task.Completed); !errors.Is(err, task.ErrConflict) {
		t.Errorf("move with an old version: %v, want ErrConflict", err)
	}
	p := task.Progress{AfterSeq: 2, Received: [2]uint64{6, 0}, Carry: [2][]byte{{0xc3}, nil}}
	chunks := []task.Chunk{{ArtifactID: "stdout", Data: []byte("ab")}, {ArtifactID: "stdout", Offset: 2, Data: []byte("\xff\xfe\xfd")}}
	if err := db.Output(t.Context(), "t1", chunks, p); err != nil {
		t.Fatal(err)
	}
	// The same chunks again do not continue the artifact.
	if err := db.Output(t.Context(), "t1", chunks, p); !errors.Is(err, task.ErrConflict) {
		t.Errorf("output twice: %v, want ErrConflict", err)
	}
	run, err := db.Run(t.Context(), "t1")
	if err != nil || run.Progress.AfterSeq != 2 || string(run.Progress.Carry[0]) != "\xc3" || run.State != task.Working {
		t.Errorf("run: %+v, %v", run, err)
	}
	bad := task.Chunk{ArtifactID: "stdout", Last: true, Size: 4, SHA256: "x"}
	if _, err := move(t.Context(), db, work, task.Completed, bad); !errors.Is(err, task.ErrConflict) {
		t.Errorf("close at the wrong size: %v, want ErrConflict", err)
	}
	bad.Size = 5
	if _, err := move(t.Context(), db, work, task.Completed, bad); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"output": db.Output(t.Context(), "t1", nil, p),
		"cancel": db.RequestCancel(t.Context(), task.System(), "t1"),
	} {
		if !errors.Is(err, task.ErrTerminal) {
			t.Errorf("%s after the end: %v, want ErrTerminal", name, err)
		}
	}
	events, err := db.Events(t.Context(), task.System(), "t1", 0)
	if err != nil || len(events) != 6 {
		t.Fatalf("events: %d, %v", len(events), err)
	}
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			t.Errorf("event %d has sequence %d", i+1, e.Seq)
		}
	}
	got, err := db.Task(t.Context(), task.System(), "t1", task.View{History: -1, Inline: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Artifacts) != 1 || len(got.Artifacts[0].Parts) != 2 || *got.Artifacts[0].Parts[0].Text != "ab" ||
		string(got.Artifacts[0].Parts[1].Raw) != "\xff\xfe\xfd" || string(got.Artifacts[0].Metadata["sha256"]) != `"x"` {
		t.Errorf("artifacts: %+v", got.Artifacts)
	}
	if len(got.History) != 1 || got.LastSeq != 6 {
		t.Errorf("record: %+v", got)
	}
	cut, err := db.Task(t.Context(), task.System(), "t1", task.View{Inline: 1})
	if err != nil || !slices.Equal(cut.Cuts, []string{"stdout"}) || cut.History != nil ||
		string(cut.Artifacts[0].Metadata["truncated"]) != "true" || string(cut.Artifacts[0].Metadata["total_bytes"]) != "5" ||
		*cut.Artifacts[0].Parts[0].Text != "a" {
		t.Errorf("cut: %+v, %v", cut, err)
	}
}

// TestOutputOfManyChunks: one transaction takes chunks of both streams as they
// alternate, or none of them.
func TestOutputOfManyChunks(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	create(t, db, "t")
	var p task.Progress
	var chunks []task.Chunk
	var want [2]strings.Builder
	ids := [2]string{"stdout", "stderr"}
	for i := range 3000 {
		line := strings.Repeat("x", i%7+1) + "\n"
		stream := i % 3 % 2
		chunks = append(chunks, task.Chunk{ArtifactID: ids[stream], Offset: uint64(want[stream].Len()), Data: []byte(line)})
		want[stream].WriteString(line)
	}
	for name, spoil := range map[string]func(*task.Chunk){
		"gap":    func(c *task.Chunk) { c.Offset++ },
		"repeat": func(c *task.Chunk) { c.Offset-- },
		"other":  func(c *task.Chunk) { c.ArtifactID = "other" },
	} {
		bad := append([]task.Chunk(nil), chunks...)
		spoil(&bad[2000])
		if err := db.Output(t.Context(), "t", bad, p); !errors.Is(err, task.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", name, err)
		}
	}
	for _, part := range [][]task.Chunk{chunks[:1], chunks[1:1000], chunks[1000:]} {
		if err := db.Output(t.Context(), "t", part, p); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := db.Task(t.Context(), task.System(), "t", task.View{Inline: 1 << 20})
	if err != nil || rec.LastSeq != 3001 || len(rec.Artifacts) != 2 {
		t.Fatalf("%d events, %d artifacts, %v", rec.LastSeq, len(rec.Artifacts), err)
	}
	for i, a := range rec.Artifacts {
		if a.ArtifactID != ids[i] || *a.Parts[0].Text != want[i].String() {
			t.Errorf("artifact %d is %q of %d bytes", i, a.ArtifactID, len(*a.Parts[0].Text))
		}
	}
}

func TestListPages(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		create(t, db, id) // all with the same timestamp: the id breaks the tie
	}
	var ids strings.Builder
	f := task.Filter{InstanceID: anInstance, Limit: 2}
	for {
		page, err := db.List(t.Context(), task.System(), f, task.View{Inline: -1})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Tasks {
			ids.WriteString(r.ID)
		}
		if page.Total != 5 {
			t.Errorf("total is %d, want 5", page.Total)
		}
		if f.After = page.Next; f.After == nil {
			break
		}
	}
	if ids.String() != "edcba" {
		t.Errorf("listed %q, want edcba", ids.String())
	}
	for name, f := range map[string]task.Filter{
		"context": {InstanceID: anInstance, ContextID: "no", Limit: 9},
		"state":   {InstanceID: anInstance, State: task.Failed, Limit: 9},
		"since":   {InstanceID: anInstance, Since: time.UnixMilli(1_700_000_000_124), Limit: 9},
		"other":   {InstanceID: "x", Limit: 9},
	} {
		if page, err := db.List(t.Context(), task.System(), f, task.View{}); err != nil || len(page.Tasks) != 0 || page.Total != 0 {
			t.Errorf("filter by %s: %d tasks, %v", name, len(page.Tasks), err)
		}
	}
}
