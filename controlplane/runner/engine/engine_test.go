package engine_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/echo"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine/enginetest"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// shell runs the text of a message as a script, so that tests can make a
// process do anything.
type shell struct{ timeout time.Duration }

func (shell) Name() string               { return "shell" }
func (shell) Claims(runner.Request) bool { return true }
func (s shell) Prepare(req runner.Request) (*runner.Command, error) {
	timeout := s.timeout
	if timeout == 0 {
		timeout = 5 * time.Minute
	}
	return &runner.Command{
		Spec: &agentv1.RunSpec{
			Argv: []string{"sh", "-c", *req.Message.Parts[0].Text}, Root: "/", WorkingDir: "/",
			Timeout: durationpb.New(timeout),
		},
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}

type rig struct {
	*engine.Engine
	t     testing.TB
	db    *sqlite.DB
	guest *enginetest.Guest
	cfg   engine.Config
}

func newRig(t testing.TB, change func(*engine.Config)) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, db: db, guest: &enginetest.Guest{}}
	r.cfg = engine.Config{Journal: db, Runs: db, Reader: db, Prompts: db, Guests: r.guest, Runners: []runner.Runner{shell{}}}
	if change != nil {
		change(&r.cfg)
	}
	r.start()
	t.Cleanup(func() {
		r.Close()
		r.guest.Forget()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) start() {
	r.t.Helper()
	r.Engine = engine.New(r.t.Context(), r.cfg)
	if err := r.Resume(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func machine(runners ...string) runner.Machine {
	return runner.Machine{ID: "01900000-0000-7000-8000-000000000001", Workspace: "/workspace", Runners: runners}
}

func (r *rig) submit(text string) task.Record {
	r.t.Helper()
	res, err := r.Submit(r.t.Context(), engine.Submission{
		Scope: task.Scope{Owner: "alice"}, Machine: machine("shell", "echo", "adapter-command"),
		Message: task.Message{MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart(text)}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Task
}

// wait returns the task once it satisfies cond.
func (r *rig) wait(id string, cond func(task.Record) bool) task.Record {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		changed := r.Changed(id)
		rec, err := r.db.Task(ctx, task.System(), id, task.View{History: -1, Inline: 1 << 20})
		if err != nil {
			r.t.Fatal(err)
		}
		if cond(rec) {
			return rec
		}
		if changed == nil && rec.Status.State.Terminal() {
			r.t.Fatalf("task ended as %+v", rec.Status)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.t.Fatalf("task did not get there in time, it is %+v", rec.Status)
		}
	}
}

func (r *rig) end(id string) task.Record {
	r.t.Helper()
	return r.wait(id, func(rec task.Record) bool { return rec.Status.State.Terminal() })
}

func outcome(t *testing.T, rec task.Record) task.Outcome {
	t.Helper()
	var o task.Outcome
	if err := json.Unmarshal(rec.Metadata[adaptercommand.URI], &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func textOf(rec task.Record, artifact string) string {
	var b strings.Builder
	for _, a := range rec.Artifacts {
		if a.ArtifactID == artifact {
			for _, p := range a.Parts {
				if p.Text != nil {
					b.WriteString(*p.Text)
				} else {
					b.WriteString("<" + hex.EncodeToString(p.Raw) + ">")
				}
			}
		}
	}
	return b.String()
}

func TestEndings(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		state  task.State
		kind   task.FailKind
		reason task.Reason
		code   int32
		out    string
		err    string
	}{
		"success":  {"echo out; echo err >&2", task.Completed, "", task.ReasonExit, 0, "out\n", "err\n"},
		"exit 3":   {"echo out; exit 3", task.Failed, task.Application, task.ReasonExit, 3, "out\n", ""},
		"signal":   {"kill -9 $$", task.Failed, task.Application, task.ReasonSignal, 137, "", ""},
		"silent":   {"true", task.Completed, "", task.ReasonExit, 0, "", ""},
		"not text": {`printf 'a\377b'`, task.Completed, "", task.ReasonExit, 0, "<61ff62>", ""},
		"half":     {`printf 'ok\303'`, task.Completed, "", task.ReasonExit, 0, "ok<c3>", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			rec := r.end(r.submit(c.script).ID)
			o := outcome(t, rec)
			if rec.Status.State != c.state || o.FailKind != c.kind || o.Reason != c.reason || o.ExitCode == nil || *o.ExitCode != c.code {
				t.Errorf("ended as %s %+v", rec.Status.State, o)
			}
			if got := textOf(rec, "stdout"); got != c.out {
				t.Errorf("stdout is %q, want %q", got, c.out)
			}
			if got := textOf(rec, "stderr"); got != c.err {
				t.Errorf("stderr is %q, want %q", got, c.err)
			}
			if (rec.Status.State == task.Failed) != (rec.Status.Message != nil) {
				t.Errorf("message is %+v", rec.Status.Message)
			}
			for c := r.Changed(rec.ID); c != nil; c = r.Changed(rec.ID) {
				<-c // until the worker is done, the release included
			}
			if n := r.guest.Runs(); n != 0 {
				t.Errorf("%d runs were not released", n)
			}
			checkLog(t, r.db, rec)
		})
	}
}

// checkLog checks what every log of a finished task must have: no gaps, one
// terminal status and that last, chunks in order, and each artifact closed
// with its digest.
func checkLog(t *testing.T, db *sqlite.DB, rec task.Record) {
	t.Helper()
	var after uint64
	sums := map[string][]byte{}
	closed := map[string]bool{}
	terminal := 0
	for {
		events, err := db.Events(t.Context(), task.System(), rec.ID, after)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if e.Seq != after+1 || terminal > 0 {
				t.Fatalf("event %d follows %d, %d terminal ones before", e.Seq, after, terminal)
			}
			after = e.Seq
			switch {
			case e.Status != nil && e.Status.Status.State.Terminal():
				terminal++
			case e.Chunk != nil:
				id := e.Chunk.ArtifactID
				if e.Chunk.Offset != uint64(len(sums[id])) || closed[id] || (len(e.Chunk.Data) == 0) != (e.Chunk.Last && e.Chunk.Form == nil) {
					t.Fatalf("chunk of %q at %d does not follow", id, e.Chunk.Offset)
				}
				sums[id] = append(sums[id], e.Chunk.Data...)
				if !e.Chunk.Last {
					continue
				}
				sum := sha256.Sum256(sums[id])
				if e.Chunk.SHA256 != hex.EncodeToString(sum[:]) || e.Chunk.Size != uint64(len(sums[id])) {
					t.Errorf("artifact %q has a wrong digest or size", id)
				}
				closed[id] = true
			}
		}
	}
	if terminal != 1 || len(closed) != len(sums) || after != rec.LastSeq {
		t.Errorf("%d terminal events, %d of %d artifacts closed, last is %d of %d", terminal, len(closed), len(sums), after, rec.LastSeq)
	}
}

func TestTimeout(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.Runners = []runner.Runner{shell{timeout: 200 * time.Millisecond}} })
	rec := r.end(r.submit("echo begun; exec cat /dev/zero | sleep 600").ID)
	if o := outcome(t, rec); rec.Status.State != task.Failed || o.FailKind != task.Application || o.Reason != task.ReasonTimeout {
		t.Errorf("ended as %s %+v", rec.Status.State, o)
	}
}

func TestCancel(t *testing.T) {
	r := newRig(t, nil)
	id := r.submit("echo begun; sleep 600").ID
	r.wait(id, func(rec task.Record) bool { return textOf(rec, "stdout") == "begun\n" })
	for range 2 { // the second changes nothing
		rec, err := r.Cancel(t.Context(), task.System(), id)
		if err != nil || rec.Status.State != task.Canceled {
			t.Fatalf("cancel: %+v, %v", rec.Status, err)
		}
	}
	checkLog(t, r.db, r.end(id))
	done := r.end(r.submit("true").ID)
	if _, err := r.Cancel(t.Context(), task.System(), done.ID); !errors.Is(err, task.ErrTerminal) {
		t.Errorf("cancel of a completed task: %v, want ErrTerminal", err)
	}
	if _, err := r.Cancel(t.Context(), task.System(), "no"); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("cancel of nothing: %v, want ErrNotFound", err)
	}
}

func TestCancelWhileMachineBoots(t *testing.T) {
	boot := &bootingGuests{called: make(chan struct{}, 1)}
	r := newRig(t, func(c *engine.Config) { c.Guests = boot })
	id := r.submit("echo must not run").ID
	<-boot.called
	rec, err := r.Cancel(t.Context(), task.System(), id)
	if err != nil || rec.Status.State != task.Canceled {
		t.Errorf("cancel: %+v, %v", rec.Status, err)
	}
}

// bootingGuests never answer.
type bootingGuests struct{ called chan struct{} }

func (b *bootingGuests) Guest(ctx context.Context, _ instance.ID) (engine.Guest, error) {
	select {
	case b.called <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestInfrastructureFailures(t *testing.T) {
	t.Run("machine gone before", func(t *testing.T) {
		r := newRig(t, nil)
		r.guest.Break(fmt.Errorf("dial: %w", vm.ErrGone))
		checkInfra(t, r.end(r.submit("true").ID), task.ReasonMachineGone)
	})
	t.Run("machine gone during", func(t *testing.T) {
		r := newRig(t, nil)
		id := r.submit("echo begun; sleep 600").ID
		r.wait(id, func(rec task.Record) bool { return textOf(rec, "stdout") != "" })
		r.guest.Break(vm.ErrGone)
		r.Close()
		r.start()
		rec := r.end(id)
		checkInfra(t, rec, task.ReasonMachineGone)
		if textOf(rec, "stdout") != "begun\n" {
			t.Error("the output until then is lost")
		}
		r.guest.Break(nil)
	})
	t.Run("run lost", func(t *testing.T) {
		r := newRig(t, nil)
		id := r.submit("echo begun; sleep 600").ID
		r.wait(id, func(rec task.Record) bool { return textOf(rec, "stdout") != "" })
		r.guest.Forget()
		checkInfra(t, r.end(id), task.ReasonRunLost)
	})
	t.Run("unreachable for too long", func(t *testing.T) {
		r := newRig(t, func(c *engine.Config) {
			c.Slack = 100 * time.Millisecond
			c.Runners = []runner.Runner{shell{timeout: 300 * time.Millisecond}}
			c.Now = func() time.Time { return time.Now().Add(-time.Hour) }
		})
		r.cfg.Now = time.Now // the next engine finds the deadline long past
		id := r.submit("echo begun; sleep 600").ID
		r.wait(id, func(rec task.Record) bool { return rec.Status.State == task.Working })
		r.Close()
		r.guest.Break(errors.New("no answer"))
		r.start()
		checkInfra(t, r.end(id), task.ReasonUnreachable)
		r.guest.Break(nil)
	})
	t.Run("no such program", func(t *testing.T) {
		r := newRig(t, func(c *engine.Config) { c.Runners = []runner.Runner{echo.Runner{}} })
		t.Setenv("PATH", "/nowhere")
		checkInfra(t, r.end(r.submit("hi").ID), task.ReasonDispatch)
	})
}

func checkInfra(t *testing.T, rec task.Record, reason task.Reason) {
	t.Helper()
	o := outcome(t, rec)
	if rec.Status.State != task.Failed || o.FailKind != task.Infrastructure || o.Reason != reason || o.ExitCode != nil {
		t.Errorf("ended as %s %+v, want infrastructure %s", rec.Status.State, o, reason)
	}
	if rec.Status.Message == nil {
		t.Error("nothing is said to a human")
	}
}

func TestResume(t *testing.T) {
	r := newRig(t, nil)
	dir := t.TempDir()
	id := r.submit(`i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; touch ` + dir + `/half
		while [ ! -e ` + dir + `/go ]; do sleep 0.01; done; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done; exit 7`).ID
	for range 5 { // an engine that dies again and again
		r.wait(id, func(rec task.Record) bool { return rec.LastSeq > 2 })
		r.Close()
		r.start()
	}
	if _, err := r.Submit(t.Context(), engine.Submission{}); err == nil {
		t.Error("an empty submission was taken")
	}
	r.wait(id, func(rec task.Record) bool { return strings.HasSuffix(textOf(rec, "stdout"), "line 199\n") })
	r.Close()
	if err := touch(filepath.Join(dir, "go")); err != nil {
		t.Fatal(err)
	}
	r.start()
	rec := r.end(id)
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := textOf(rec, "stdout"); got != want.String() {
		t.Errorf("stdout has %d bytes, want %d", len(got), want.Len())
	}
	if o := outcome(t, rec); *o.ExitCode != 7 {
		t.Errorf("outcome: %+v", o)
	}
	if n := r.guest.Starts(); n != 1 {
		t.Errorf("the command was started %d times", n)
	}
	checkLog(t, r.db, rec)
}

func TestOutputLimit(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.OutputLimit = 100_000 })
	rec := r.end(r.submit("yes é").ID)
	o := outcome(t, rec)
	if rec.Status.State != task.Failed || o.FailKind != task.Application || o.Reason != task.ReasonOutputLimit {
		t.Errorf("ended as %s %+v", rec.Status.State, o)
	}
	if size, complete, err := r.db.ArtifactSize(t.Context(), task.System(), rec.ID, "stdout"); size != 100_000 || !complete || err != nil {
		t.Errorf("artifact has %d bytes, complete %v, %v", size, complete, err)
	}
	if o.StdoutBytes <= 100_000 {
		t.Errorf("it says only %d bytes were written", o.StdoutBytes)
	}
	checkLog(t, r.db, rec)
}

func TestBusy(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.MaxUnfinished = 2 })
	id := r.submit("sleep 600").ID
	r.submit("sleep 600")
	_, err := r.Submit(t.Context(), engine.Submission{
		Machine: machine("shell"), Message: task.Message{Parts: []task.Part{task.TextPart("true")}},
	})
	if !errors.Is(err, engine.ErrBusy) {
		t.Errorf("third task: %v, want ErrBusy", err)
	}
	if _, err := r.Cancel(t.Context(), task.System(), id); err != nil {
		t.Fatal(err)
	}
	r.submit("true")
}

func TestRefusalMakesNoTask(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.Runners = []runner.Runner{adaptercommand.Runner{}, echo.Runner{}} })
	s := engine.Submission{
		Machine: machine("echo", "adapter-command"),
		Message: task.Message{
			Parts: []task.Part{task.TextPart("x")}, Metadata: task.Metadata{adaptercommand.URI: json.RawMessage(`{}`)},
		},
	}
	var refusal *runner.Refusal
	if _, err := r.Submit(t.Context(), s); !errors.As(err, &refusal) || len(refusal.Violations) != 3 {
		t.Errorf("empty envelope: %v", err)
	}
	s.Machine.Runners = []string{"echo"}
	if _, err := r.Submit(t.Context(), s); !errors.As(err, &refusal) || refusal.Kind != runner.Unsupported {
		t.Errorf("runner that is not allowed: %v", err)
	}
	page, err := r.db.List(t.Context(), task.System(), task.Filter{InstanceID: s.Machine.ID, Limit: 1}, task.View{Inline: -1})
	if err != nil || page.Total != 0 {
		t.Errorf("%d tasks were made, %v", page.Total, err)
	}
}

func TestEchoIsNotACommand(t *testing.T) {
	for _, text := range []string{"-n", "$(id)", "--help", "a\x00b", "\n", strings.Repeat("é", runner.MaxText/2), "'; rm -rf /"} {
		r := newRig(t, func(c *engine.Config) { c.Runners = []runner.Runner{echo.Runner{}} })
		rec := r.end(r.submit(text).ID)
		if got := textOf(rec, "stdout"); got != text || rec.Status.State != task.Completed {
			t.Errorf("echo of %.20q is %.20q, %s", text, got, rec.Status.State)
		}
	}
}

// TestCharactersAcrossChunks: text stays text however it is cut.
func TestCharactersAcrossChunks(t *testing.T) {
	r := newRig(t, nil)
	id := r.submit("sleep 600").ID
	r.wait(id, func(task.Record) bool { return r.guest.Runs() == 1 })
	want := "aé€😀z"
	for _, b := range []byte(want) {
		r.guest.Inject(agentv1.Stream_STREAM_STDOUT, []byte{b})
		r.guest.Inject(agentv1.Stream_STREAM_STDERR, bytes.Repeat([]byte{b}, 2))
	}
	rec := r.wait(id, func(rec task.Record) bool { return strings.HasSuffix(textOf(rec, "stdout"), "z") })
	if got := textOf(rec, "stdout"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := r.Cancel(t.Context(), task.System(), id); err != nil {
		t.Fatal(err)
	}
	checkLog(t, r.db, r.end(id))
}
