package sqlite_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const promptInstance = "01900000-0000-7000-8000-000000000001"

// asked opens a database with one working task.
func asked(t *testing.T) (*sqlite.DB, task.Record) {
	t.Helper()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	rec, err := db.Create(t.Context(), task.New{
		ID: "t1", ContextID: "c1", InstanceID: promptInstance, Owner: "alice", At: time.Now(),
		Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart("x")}},
		Run:     task.Run{TaskID: "t1", InstanceID: promptInstance, RunID: "r1", Runner: "x", Artifacts: [2]string{"stdout", "stderr"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return db, moveOn(t, db, rec, task.Working)
}

func status(s task.State) task.Status {
	return task.Status{State: s, Timestamp: task.Stamp(time.Now())}
}

func moveOn(t *testing.T, db *sqlite.DB, rec task.Record, s task.State) task.Record {
	t.Helper()
	rec, err := db.Move(t.Context(), rec.ID, task.Transition{Version: rec.Version, Status: status(s)})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func ref(id string) prompt.Ref {
	return prompt.Ref{PromptID: id, TaskID: "t1", ContextID: "c1", InstanceID: promptInstance, RunID: "r1"}
}

func raise(t *testing.T, db *sqlite.DB, rec task.Record, id string, start uint64) task.Record {
	t.Helper()
	rec, err := db.Raise(t.Context(), task.Transition{Version: rec.Version, Status: status(task.InputRequired)},
		prompt.Record{Ref: ref(id), Envelope: json.RawMessage(`{}`), Start: start, Deadline: time.UnixMilli(5000).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func notCurrent(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, prompt.ErrNotCurrent) {
		t.Errorf("%s: %v, want ErrNotCurrent", what, err)
	}
}

func TestPromptLife(t *testing.T) {
	db, rec := asked(t)
	ctx := t.Context()
	rec = raise(t, db, rec, "p1", 0)
	if rec.Status.State != task.InputRequired {
		t.Fatalf("the task is %s", rec.Status.State)
	}
	for name, change := range map[string]func(*prompt.Ref){
		"prompt": func(r *prompt.Ref) { r.PromptID = "p2" }, "task": func(r *prompt.Ref) { r.TaskID = "t2" },
		"context": func(r *prompt.Ref) { r.ContextID = "c2" }, "run": func(r *prompt.Ref) { r.RunID = "r2" },
		"instance": func(r *prompt.Ref) { r.InstanceID = "01900000-0000-7000-8000-000000000002" },
	} {
		other := ref("p1")
		change(&other)
		notCurrent(t, "another "+name, db.Claim(ctx, task.System(), other, []byte("y\n"), [2]uint64{}))
	}
	_, err := db.Answered(ctx, ref("p1"), task.Transition{Version: rec.Version, Status: status(task.Working)}, nil)
	notCurrent(t, "answered unclaimed", err)
	notCurrent(t, "restored unclaimed", db.Restore(ctx, ref("p1")))

	if err := db.Claim(ctx, task.System(), ref("p1"), []byte("y\n"), [2]uint64{7, 8}); err != nil {
		t.Fatal(err)
	}
	notCurrent(t, "claimed twice", db.Claim(ctx, task.System(), ref("p1"), []byte("n\n"), [2]uint64{}))
	if err := db.Restore(ctx, ref("p1")); err != nil {
		t.Fatal(err)
	}
	if err := db.Claim(ctx, task.System(), ref("p1"), []byte("yes\n"), [2]uint64{9, 10}); err != nil {
		t.Fatal(err)
	}
	d, err := db.Dialogue(ctx, "t1")
	if err != nil || d.Claimed == nil || string(d.Claimed.Answer) != "yes\n" || d.Claimed.Ref != ref("p1") || d.Seen != [2]uint64{9, 10} {
		t.Fatalf("%+v, %v", d, err)
	}
	turn := task.Message{MessageID: "a", Role: task.User, Parts: []task.Part{task.TextPart("yes")}}
	rec, err = db.Answered(ctx, ref("p1"), task.Transition{Version: rec.Version, Status: status(task.Working)}, []task.Message{turn})
	if err != nil || rec.Status.State != task.Working {
		t.Fatalf("%+v, %v", rec, err)
	}
	notCurrent(t, "claimed after the answer", db.Claim(ctx, task.System(), ref("p1"), []byte("n\n"), [2]uint64{}))

	rec = raise(t, db, rec, "p2", 4)
	if err := db.Claim(ctx, task.System(), ref("p2"), []byte("no\n"), [2]uint64{20, 20}); err != nil {
		t.Fatal(err)
	}
	rec = moveOn(t, db, rec, task.Working) // it moved on by itself
	notCurrent(t, "restored after the task moved on", db.Restore(ctx, ref("p2")))
	rec = raise(t, db, rec, "p3", 4)
	rec = raise(t, db, rec, "p4", 4) // asked anew, the older one is past
	notCurrent(t, "claimed a prompt of the past", db.Claim(ctx, task.System(), ref("p3"), []byte("n\n"), [2]uint64{}))
	d, err = db.Dialogue(ctx, "t1")
	want := prompt.Dialogue{Asked: 4, Deadline: time.UnixMilli(5000).UTC(), Input: []byte("yes\n"), Seen: [2]uint64{9, 10}}
	if diff := cmp.Diff(want, d); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	moveOn(t, db, rec, task.Completed)
	notCurrent(t, "claimed after the end", db.Claim(ctx, task.System(), ref("p4"), []byte("n\n"), [2]uint64{}))
	whole, err := db.Task(ctx, task.System(), "t1", task.View{History: -1, Inline: -1})
	if err != nil || len(whole.History) != 2 || *whole.History[1].Parts[0].Text != "yes" {
		t.Errorf("history %+v, %v", whole.History, err)
	}
}

// TestClaimsRace: of many replies at once exactly one gets the prompt.
func TestClaimsRace(t *testing.T) {
	db, rec := asked(t)
	raise(t, db, rec, "p1", 0)
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = db.Claim(t.Context(), task.System(), ref("p1"), fmt.Appendf(nil, "%d\n", i), [2]uint64{})
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case err == nil:
			t.Errorf("claims %d and %d both won", won, i)
		case !errors.Is(err, prompt.ErrNotCurrent):
			t.Error(err)
		}
	}
	d, err := db.Dialogue(t.Context(), "t1")
	if err != nil || d.Claimed == nil || string(d.Claimed.Answer) != fmt.Sprintf("%d\n", won) {
		t.Errorf("%+v, %v", d, err)
	}
}
