package sqlite_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestParts: parts of every kind come back as they were, from the log and from
// the artifact, beside ordinary output.
func TestParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	create(t, db, "t")
	url := "https://example.com/x"
	var chunks []task.Chunk
	var want []string
	offset := uint64(0)
	for i, p := range []task.Part{
		{URL: &url, Filename: "x", MediaType: "text/plain"},
		{Data: json.RawMessage(`{"k":[1]}`)},
		{Raw: []byte("text that is none"), Filename: "raw"},
		{Raw: []byte{0xff, 0}},
		task.TextPart("one"),
		task.TextPart("two"),
	} {
		data, form := task.Content(p)
		c := task.Chunk{ArtifactID: "mixed", Offset: offset, Data: data, Form: form}
		if offset += uint64(len(data)); i == 5 {
			c.Last, c.Size, c.SHA256 = true, offset, "sum"
		}
		chunks = append(chunks, c, task.Chunk{ArtifactID: "stdout", Offset: uint64(i), Data: []byte("x")})
		want = append(want, encoded(t, p))
	}
	bad := append([]task.Chunk(nil), chunks...)
	bad[len(bad)-2].Size++
	if err := db.Output(t.Context(), "t", bad, task.Progress{AfterSeq: 9}); !errors.Is(err, task.ErrConflict) {
		t.Errorf("closed at a wrong size: %v, want ErrConflict", err)
	}
	if err := db.Output(t.Context(), "t", chunks, task.Progress{AfterSeq: 1}); err != nil {
		t.Fatal(err)
	}
	more := task.Chunk{ArtifactID: "mixed", Offset: offset, Data: []byte("x")}
	if err := db.Output(t.Context(), "t", []task.Chunk{more}, task.Progress{AfterSeq: 2}); !errors.Is(err, task.ErrConflict) {
		t.Errorf("more of a closed artifact: %v, want ErrConflict", err)
	}
	rec, err := db.Task(t.Context(), task.System(), "t", task.View{Inline: 1 << 20})
	if err != nil || len(rec.Artifacts) != 2 {
		t.Fatalf("%+v, %v", rec.Artifacts, err)
	}
	for i, p := range rec.Artifacts[0].Parts {
		if got := encoded(t, p); got != want[i] {
			t.Errorf("part %d is %s, want %s", i, got, want[i])
		}
	}
	if a := rec.Artifacts[0]; len(a.Parts) != 6 || string(a.Metadata["sha256"]) != `"sum"` {
		t.Errorf("artifact is %+v", a)
	}
	if p := rec.Artifacts[1].Parts; len(p) != 1 || *p[0].Text != "xxxxxx" {
		t.Errorf("output beside it is %+v", p)
	}
	events, err := db.Events(t.Context(), task.System(), "t", 1)
	if err != nil || len(events) != 12 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, e := range events {
		c := e.Chunk
		if i%2 == 1 {
			if c.Form != nil || c.Last || c.ArtifactID != "stdout" {
				t.Errorf("output is %+v", c)
			}
			continue
		}
		if got := encoded(t, c.Part()); got != want[i/2] || c.Offset != chunks[i].Offset {
			t.Errorf("event %d has %s at %d, want %s", i, got, c.Offset, want[i/2])
		}
		if c.Last != (i == 10) || c.Last && (c.Size != offset || c.SHA256 != "sum") {
			t.Errorf("event %d is the last: %+v", i, c)
		}
	}
	if size, complete, err := db.ArtifactSize(t.Context(), task.System(), "t", "mixed"); size != offset || !complete || err != nil {
		t.Errorf("size is %d, complete %v, %v", size, complete, err)
	}
}

func encoded(t *testing.T, p task.Part) string {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestScriptOfRun: a script, how far it has come and what it is replaced by
// change with the status of the task, or not at all.
func TestScriptOfRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	if r, err := db.Run(t.Context(), create(t, db, "command").ID); err != nil || r.Script != nil {
		t.Errorf("a command has the script %q, %v", r.Script, err)
	}
	n := newTask("t")
	n.Run.Spec, n.Run.Script = nil, []byte(`{"steps":[1]}`)
	rec, err := db.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	check := func(script string, step uint64, turns int) {
		t.Helper()
		runs, err := db.OpenRuns(t.Context())
		if err != nil || len(runs) != 2 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		for _, r := range runs {
			if r.TaskID == "t" && (string(r.Script) != script || r.Progress.AfterSeq != step) {
				t.Errorf("script is %s at %d, want %s at %d", r.Script, r.Progress.AfterSeq, script, step)
			}
		}
		now, err := db.Task(t.Context(), task.System(), "t", task.View{History: -1, Inline: -1})
		if err != nil || len(now.History) != turns {
			t.Errorf("history is %+v, %v", now.History, err)
		}
	}
	check(`{"steps":[1]}`, 0, 1)
	status := func(s task.State) task.Status { return task.Status{State: s, Timestamp: task.Stamp(time.Now())} }
	asked, err := db.Move(t.Context(), "t", task.Transition{Version: rec.Version, Status: status(task.InputRequired), Step: 3})
	if err != nil {
		t.Fatal(err)
	}
	check(`{"steps":[1]}`, 3, 1)
	next := task.Transition{
		Version: asked.Version, Status: status(task.Working), Script: []byte(`{"steps":[2]}`),
		Turns: []task.Message{{MessageID: "asked"}, {MessageID: "answer"}},
	}
	stale := next
	stale.Version = rec.Version
	if _, err := db.Move(t.Context(), "t", stale); !errors.Is(err, task.ErrConflict) {
		t.Errorf("a stale move: %v, want ErrConflict", err)
	}
	check(`{"steps":[1]}`, 3, 1)
	if _, err := db.Move(t.Context(), "t", next); err != nil {
		t.Fatal(err)
	}
	check(`{"steps":[2]}`, 0, 3)
	if _, err := db.Move(t.Context(), "t", next); !errors.Is(err, task.ErrConflict) {
		t.Errorf("the same again: %v, want ErrConflict", err)
	}
	check(`{"steps":[2]}`, 0, 3)
}

// TestScriptsMigrateBack: the tables without scripts, and with them again.
func TestScriptsMigrateBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	create(t, db, "t")
	if err := db.Output(t.Context(), "t", []task.Chunk{{ArtifactID: "stdout", Data: []byte("kept")}}, task.Progress{AfterSeq: 1}); err != nil {
		t.Fatal(err)
	}
	sqlite.DownForTest(t, db, 500)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, path)
	rec, err := db.Task(t.Context(), task.System(), "t", task.View{Inline: 100})
	if err != nil || *rec.Artifacts[0].Parts[0].Text != "kept" {
		t.Errorf("%+v, %v", rec, err)
	}
}
