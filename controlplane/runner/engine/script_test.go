package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// actor performs the script in the metadata of a message.
type actor struct{}

func (actor) Name() string               { return "actor" }
func (actor) Claims(runner.Request) bool { return true }
func (actor) Prepare(req runner.Request) (*runner.Command, error) {
	var s runner.Script
	if err := json.Unmarshal(req.Message.Metadata["script"], &s); err != nil {
		return nil, runner.Refuse("cannot act", "message.metadata.script", "is no script")
	}
	return &runner.Command{Script: &s}, nil
}

// noGuests fails the test when a guest is asked for.
type noGuests struct{ t testing.TB }

func (n noGuests) Guest(context.Context, instance.ID) (engine.Guest, error) {
	n.t.Error("a script asked for a guest")
	return nil, errors.New("there is none")
}

// clock is a time that only tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func newStage(t testing.TB) (*rig, *clock) {
	t.Helper()
	c := &clock{at: time.UnixMilli(1_767_225_600_000)}
	return newRig(t, func(cfg *engine.Config) {
		cfg.Guests, cfg.Runners, cfg.Now = noGuests{t}, []runner.Runner{actor{}}, c.now
	}), c
}

func (r *rig) send(to, id string, s runner.Script) (engine.Result, error) {
	r.t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.Submit(r.t.Context(), engine.Submission{
		Scope: task.Scope{Owner: "alice"}, Machine: machine("actor"), Continues: to,
		Message: task.Message{
			MessageID: id, Role: task.User, Parts: []task.Part{task.TextPart(id)}, Metadata: task.Metadata{"script": raw},
		},
	})
}

func (r *rig) act(steps ...runner.Step) string {
	r.t.Helper()
	res, err := r.send("", "first", runner.Script{Steps: steps})
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Task.ID
}

func (r *rig) reaches(id string, s task.State) task.Record {
	r.t.Helper()
	return r.wait(id, func(rec task.Record) bool { return rec.Status.State == s })
}

// story is the log of a task in short.
func (r *rig) story(id string) []string {
	r.t.Helper()
	var all []string
	var after uint64
	for {
		events, err := r.db.Events(r.t.Context(), task.System(), id, after)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(events) == 0 {
			return all
		}
		for _, e := range events {
			after = e.Seq
			if e.Status != nil {
				all = append(all, string(e.Status.Status.State)[len("TASK_STATE_"):])
				continue
			}
			line := fmt.Sprintf("%s+%s", e.Chunk.ArtifactID, e.Chunk.Data)
			if e.Chunk.Last {
				line += "."
			}
			all = append(all, line)
		}
	}
}

func piece(s string, last bool) runner.Step {
	p := task.TextPart(s)
	return runner.Step{Artifact: "a", Part: &p, Last: last}
}

func after(d time.Duration, s runner.Step) runner.Step {
	s.Wait = d
	return s
}

var (
	working = runner.Status(task.Working, "")
	done    = runner.Status(task.Completed, "done")
	asks    = runner.Status(task.InputRequired, "what?")
)

func TestScript(t *testing.T) {
	r, _ := newStage(t)
	url := "https://example.com/x"
	id := r.act(working, piece("one ", false), piece("two", true),
		runner.Whole("b", task.Part{URL: &url, Filename: "x", MediaType: "text/plain"}),
		runner.Whole("c", task.Part{Data: json.RawMessage(`{"k":[1]}`)}),
		runner.Whole("d", task.Part{Raw: []byte("ascii"), Filename: "d.txt"}),
		after(time.Millisecond, done))
	rec := r.end(id)
	checkLog(t, r.db, rec)
	want := []string{"SUBMITTED", "WORKING", "a+one ", "a+two.", "b+" + url + ".", `c+{"k":[1]}.`, "d+ascii.", "COMPLETED"}
	if got := r.story(id); !slices.Equal(got, want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
	if m := rec.Status.Message; m == nil || *m.Parts[0].Text != "done" || m.Role != task.Agent || m.TaskID != id {
		t.Errorf("message is %+v", m)
	}
	b, err := json.Marshal(rec.Artifacts)
	if err != nil {
		t.Fatal(err)
	}
	var shown []struct{ Parts []json.RawMessage }
	if err := json.Unmarshal(b, &shown); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, a := range shown {
		for _, p := range a.Parts {
			parts = append(parts, string(p))
		}
	}
	if want := []string{
		`{"text":"one "}`, `{"text":"two"}`, `{"url":"https://example.com/x","filename":"x","mediaType":"text/plain"}`,
		`{"data":{"k":[1]}}`, `{"raw":"YXNjaWk=","filename":"d.txt"}`,
	}; !slices.Equal(parts, want) {
		t.Errorf("parts are %q, want %q", parts, want)
	}
	for c := r.Changed(id); c != nil; c = r.Changed(id) {
		<-c
	}
	if open, err := r.db.OpenRuns(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("%d runs are open, %v", len(open), err)
	}
}

// TestScriptEnds reaches every state a task can end in.
func TestScriptEnds(t *testing.T) {
	r, _ := newStage(t)
	for _, s := range []task.State{task.Completed, task.Failed, task.Rejected, task.Canceled} {
		if rec := r.end(r.act(runner.Status(s, ""))); rec.Status.State != s || rec.Status.Message != nil {
			t.Errorf("ended as %+v, want %s", rec.Status, s)
		}
	}
}

func TestScriptReply(t *testing.T) {
	r, _ := newStage(t)
	res, err := r.send("", "m", runner.Script{Reply: []task.Part{task.TextPart("hi")}})
	if err != nil || res.Message == nil || *res.Message.Parts[0].Text != "hi" || res.Message.ContextID == "" || res.Message.MessageID == "" {
		t.Fatalf("%+v, %v", res, err)
	}
	page, err := r.db.List(t.Context(), task.System(), task.Filter{InstanceID: machine().ID, Limit: 1}, task.View{Inline: -1})
	if err != nil || page.Total != 0 {
		t.Errorf("%d tasks were made, %v", page.Total, err)
	}
	// It cannot be the answer to a message that a task waits for.
	id := r.act(asks)
	r.reaches(id, task.InputRequired)
	var refusal *runner.Refusal
	if _, err := r.send(id, "m", runner.Script{Reply: []task.Part{task.TextPart("hi")}}); !errors.As(err, &refusal) {
		t.Errorf("%v, want a refusal", err)
	}
	if _, err := r.send(id, "m", runner.Script{Steps: []runner.Step{done}}); err != nil {
		t.Errorf("then it waited no more: %v", err)
	}
}

func TestScriptBroken(t *testing.T) {
	r, _ := newStage(t)
	var refusal *runner.Refusal
	if _, err := r.send("", "m", runner.Script{Steps: []runner.Step{working}}); err == nil || errors.As(err, &refusal) {
		t.Errorf("a script without an end: %v", err)
	}
}

func TestScriptCancel(t *testing.T) {
	for name, c := range map[string]struct {
		steps []runner.Step
		at    func(task.Record) bool
		want  []string
	}{
		"before the first step": {
			[]runner.Step{after(time.Hour, done)}, func(rec task.Record) bool { return true }, []string{"SUBMITTED", "CANCELED"},
		},
		"within a wait": {
			[]runner.Step{working, after(time.Hour, done)},
			func(rec task.Record) bool { return rec.Status.State == task.Working }, []string{"SUBMITTED", "WORKING", "CANCELED"},
		},
		"within an artifact": {
			[]runner.Step{piece("half", false), after(time.Hour, piece("more", true)), done},
			func(rec task.Record) bool { return len(rec.Artifacts) == 1 }, []string{"SUBMITTED", "a+half", "a+.", "CANCELED"},
		},
		"input required": {
			[]runner.Step{asks},
			func(rec task.Record) bool { return rec.Status.State == task.InputRequired }, []string{"SUBMITTED", "INPUT_REQUIRED", "CANCELED"},
		},
		"auth required": {
			[]runner.Step{runner.Status(task.AuthRequired, "who?")},
			func(rec task.Record) bool { return rec.Status.State == task.AuthRequired }, []string{"SUBMITTED", "AUTH_REQUIRED", "CANCELED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, restart := range []bool{false, true} {
				r, _ := newStage(t)
				id := r.act(c.steps...)
				r.wait(id, c.at)
				if restart {
					r.Close()
					r.start()
				}
				rec, err := r.Cancel(t.Context(), task.System(), id)
				if err != nil || rec.Status.State != task.Canceled {
					t.Fatalf("cancel: %+v, %v", rec.Status, err)
				}
				checkLog(t, r.db, rec)
				if got := r.story(id); !slices.Equal(got, c.want) {
					t.Errorf("the log is %q, want %q", got, c.want)
				}
				if _, err := r.send(id, "late", runner.Script{Steps: []runner.Step{done}}); !errors.Is(err, engine.ErrNotWaiting) {
					t.Errorf("a message after the end: %v", err)
				}
			}
		})
	}
}

// TestScriptCancelWhileDown: a request that was stored, and no more, is carried
// out by the next engine.
func TestScriptCancelWhileDown(t *testing.T) {
	r, _ := newStage(t)
	id := r.act(asks)
	r.reaches(id, task.InputRequired)
	r.Close()
	if err := r.db.RequestCancel(t.Context(), task.System(), id); err != nil {
		t.Fatal(err)
	}
	r.start()
	if rec := r.end(id); rec.Status.State != task.Canceled {
		t.Errorf("ended as %s", rec.Status.State)
	}
}

// TestScriptResumes: each step is performed once, and a wait goes on where it was.
func TestScriptResumes(t *testing.T) {
	r, c := newStage(t)
	id := r.act(working, piece("one ", false), after(30*time.Minute, piece("two", true)), after(time.Hour, done))
	r.wait(id, func(rec task.Record) bool { return len(rec.Artifacts) == 1 })
	for range 3 {
		r.Close()
		r.start()
	}
	c.move(31 * time.Minute)
	r.Close()
	r.start()
	r.wait(id, func(rec task.Record) bool { return textOf(rec, "a") == "one two" })
	c.move(30 * time.Minute)
	r.Close()
	r.start()
	checkLog(t, r.db, r.end(id))
	if got, want := r.story(id), []string{"SUBMITTED", "WORKING", "a+one ", "a+two.", "COMPLETED"}; !slices.Equal(got, want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
}

func TestScriptContinues(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r, _ := newStage(t)
		id := r.act(working, asks)
		again := func() {
			if restart {
				r.Close()
				r.start()
			}
		}
		r.reaches(id, task.InputRequired)
		again()
		for i, steps := range [][]runner.Step{{runner.Status(task.AuthRequired, "who?")}, {piece("x", true), done}} {
			res, err := r.send(id, fmt.Sprint("more-", i), runner.Script{Steps: steps})
			if err != nil {
				t.Fatal(err)
			}
			if res.Task.ID != id || res.Task.Status.State != task.Working {
				t.Errorf("it went on as %+v", res.Task.Status)
			}
			if i == 0 {
				r.reaches(id, task.AuthRequired)
				again()
			}
		}
		rec := r.end(id)
		checkLog(t, r.db, rec)
		want := []string{"SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "AUTH_REQUIRED", "WORKING", "a+x.", "COMPLETED"}
		if got := r.story(id); !slices.Equal(got, want) {
			t.Errorf("the log is %q, want %q", got, want)
		}
		var turns []string
		for _, m := range rec.History {
			turns = append(turns, *m.Parts[0].Text)
			if m.TaskID != id || m.ContextID != rec.ContextID {
				t.Errorf("a turn of another task: %+v", m)
			}
		}
		if want := []string{"first", "what?", "more-0", "who?", "more-1"}; !slices.Equal(turns, want) {
			t.Errorf("the history is %q, want %q", turns, want)
		}
	}
}

// TestScriptRace: of many messages at once one goes on with the task, and no
// other leaves a trace.
func TestScriptRace(t *testing.T) {
	for range 20 {
		r, _ := newStage(t)
		id := r.act(asks)
		r.reaches(id, task.InputRequired)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = r.send(id, fmt.Sprint("n", i), runner.Script{Steps: []runner.Step{piece(fmt.Sprint("n", i), true), done}})
			})
		}
		wg.Wait()
		won := ""
		for i, err := range errs {
			switch {
			case err == nil && won == "":
				won = fmt.Sprint("n", i)
			case !errors.Is(err, engine.ErrNotWaiting):
				t.Errorf("message %d: %v", i, err)
			}
		}
		rec := r.end(id)
		if len(rec.History) != 3 || rec.History[2].MessageID != won || textOf(rec, "a") != won {
			t.Errorf("%q won, the history is %+v and the artifact %q", won, rec.History, textOf(rec, "a"))
		}
	}
}

// TestScriptRaceWithCancel: a message and a request to cancel at once end in
// one of the two ways, and who sent the message is told which.
func TestScriptRaceWithCancel(t *testing.T) {
	for range 20 {
		r, _ := newStage(t)
		id := r.act(asks)
		r.reaches(id, task.InputRequired)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.Cancel(t.Context(), task.System(), id); err != nil && !errors.Is(err, task.ErrTerminal) {
				t.Errorf("cancel: %v", err)
			}
		})
		_, err := r.send(id, "more", runner.Script{Steps: []runner.Step{done}})
		wg.Wait()
		rec := r.end(id)
		checkLog(t, r.db, rec)
		switch taken := len(rec.History) == 3; {
		case err != nil && (!errors.Is(err, engine.ErrNotWaiting) || taken || rec.Status.State != task.Canceled):
			t.Errorf("%v, but the task is %+v", err, rec)
		case err == nil && !taken:
			t.Errorf("taken, but the history is %+v", rec.History)
		}
	}
}

// TestScriptNotWaiting: a message to a task that does not wait changes nothing.
func TestScriptNotWaiting(t *testing.T) {
	r, _ := newStage(t)
	s := runner.Script{Steps: []runner.Step{done}}
	id := r.act(working, after(time.Hour, done))
	r.reaches(id, task.Working)
	for _, to := range []string{id, "no"} {
		if _, err := r.send(to, "m", s); !errors.Is(err, engine.ErrNotWaiting) {
			t.Errorf("%q: %v, want ErrNotWaiting", to, err)
		}
	}
	id = r.act(asks)
	r.reaches(id, task.InputRequired)
	_, err := r.Submit(t.Context(), engine.Submission{
		Machine: runner.Machine{ID: "01900000-0000-7000-8000-000000000002", Runners: []string{"actor"}}, Continues: id,
	})
	if !errors.Is(err, engine.ErrNotWaiting) {
		t.Errorf("for another machine: %v, want ErrNotWaiting", err)
	}
	// Nor has a command, which waits for nothing of this kind.
	c := newRig(t, nil)
	id = c.submit("sleep 600").ID
	c.reaches(id, task.Working)
	if _, err := c.send(id, "m", s); !errors.Is(err, engine.ErrNotWaiting) {
		t.Errorf("for a command: %v, want ErrNotWaiting", err)
	}
}

// TestScriptRunnerGone: a task whose runner is no longer offered still waits,
// and can be cancelled.
func TestScriptRunnerGone(t *testing.T) {
	r, _ := newStage(t)
	id := r.act(asks)
	r.reaches(id, task.InputRequired)
	r.Close()
	r.cfg.Runners = []runner.Runner{shell{}}
	r.start()
	var refusal *runner.Refusal
	if _, err := r.send(id, "m", runner.Script{Steps: []runner.Step{done}}); !errors.As(err, &refusal) {
		t.Errorf("%v, want a refusal", err)
	}
	if rec, err := r.Cancel(t.Context(), task.System(), id); err != nil || rec.Status.State != task.Canceled {
		t.Errorf("cancel: %+v, %v", rec.Status, err)
	}
}

// TestScriptPatience: nobody is waited for longer than a day.
func TestScriptPatience(t *testing.T) {
	r, c := newStage(t)
	id := r.act(asks)
	r.reaches(id, task.InputRequired)
	r.Close()
	c.move(25 * time.Hour)
	r.start()
	if rec := r.end(id); rec.Status.State != task.Failed || rec.Status.Message == nil {
		t.Errorf("ended as %+v", rec.Status)
	}
}

// TestScriptStoreFails: what was stored although the store said that it was
// not, is not stored twice.
func TestScriptStoreFails(t *testing.T) {
	r, _ := newStage(t)
	j := &lyingJournal{Journal: r.db}
	r.Close()
	r.cfg.Journal = j
	r.start()
	id := r.act(working, piece("one", false), piece("two", true), asks)
	r.reaches(id, task.InputRequired)
	if _, err := r.send(id, "more", runner.Script{Steps: []runner.Step{working, done}}); err != nil {
		t.Fatal(err)
	}
	rec := r.end(id)
	checkLog(t, r.db, rec)
	want := []string{"SUBMITTED", "WORKING", "a+one", "a+two.", "INPUT_REQUIRED", "WORKING", "WORKING", "COMPLETED"}
	if got := r.story(id); !slices.Equal(got, want) || len(rec.History) != 3 || j.lies < 7 {
		t.Errorf("after %d failures the log is %q, want %q; the history is %+v", j.lies, got, want, rec.History)
	}
}

// lyingJournal stores and then says that it failed, every time.
type lyingJournal struct {
	task.Journal
	lies int
}

var errLie = errors.New("the disk is gone")

func (j *lyingJournal) Move(ctx context.Context, id string, t task.Transition) (task.Record, error) {
	rec, err := j.Journal.Move(ctx, id, t)
	if err == nil {
		j.lies++
		return task.Record{}, errLie
	}
	return rec, err
}

func (j *lyingJournal) Output(ctx context.Context, id string, chunks []task.Chunk, p task.Progress) error {
	if err := j.Journal.Output(ctx, id, chunks, p); err != nil {
		return err
	}
	j.lies++
	return errLie
}
