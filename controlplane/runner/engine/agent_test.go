package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/echo"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
	"agentic-sandbox.aiwg.io/sandbox/test/rig/agentbin"
)

// agent is the real one.
var agent agentbin.Agent

func TestMain(m *testing.M) { os.Exit(agent.Main(m)) }

// agentRig is a machine of the host driver with the real agent, and an engine
// on it.
type agentRig struct {
	*rig
	machine runner.Machine
	inst    vm.Instance

	mu   sync.Mutex
	link *agentlink.Link
}

// Guest implements engine.Guests.
func (a *agentRig) Guest(ctx context.Context, id instance.ID) (engine.Guest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link != nil {
		select {
		case <-a.link.Done():
		default:
			return a.link, nil
		}
	}
	dial := func(ctx context.Context) (net.Conn, error) { return a.inst.Dial(ctx, agentv1.Port) }
	l, err := agentlink.Connect(ctx, dial, agentlink.Options{InstanceID: id})
	if err != nil {
		return nil, err
	}
	a.link = l
	return l, nil
}

// cut ends the link, as the death of the daemon does.
func (a *agentRig) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link != nil {
		_ = a.link.Close() // its end is what was wanted
	}
}

func newAgentRig(t *testing.T) *agentRig {
	t.Helper()
	dir := t.TempDir()
	d, err := host.New(host.Config{StateDir: filepath.Join(dir, "state"), AgentBinary: agent.Path(t)})
	if err != nil {
		t.Fatal(err)
	}
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := json.Marshal(agentv1.BootConfig{Version: agentv1.BootConfigVersion, InstanceID: id.String(), Hostname: "t"})
	if err != nil {
		t.Fatal(err)
	}
	inst, _, err := d.Create(t.Context(), vm.Spec{ID: id, Name: "test", CPUs: 1, Memory: 64 << 20, BootConfig: boot})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := inst.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := inst.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := &agentRig{inst: inst, machine: runner.Machine{
		ID: id, Workspace: d.DiskDir(id), Runners: []string{"shell", "echo", "adapter-command"},
		Env: map[string]string{"PATH": dir + ":" + os.Getenv("PATH")},
	}}
	t.Cleanup(a.cut)
	a.rig = newRig(t, func(c *engine.Config) {
		c.Guests = a
		c.Runners = []runner.Runner{adaptercommand.Runner{}, shell{timeout: time.Minute}}
	})
	return a
}

func (a *agentRig) run(text string, meta task.Metadata) string {
	a.t.Helper()
	res, err := a.Submit(a.t.Context(), engine.Submission{Machine: a.machine, Message: task.Message{
		MessageID: "m", Role: task.User, Parts: []task.Part{task.TextPart(text)}, Metadata: meta,
	}})
	if err != nil {
		a.t.Fatal(err)
	}
	return res.Task.ID
}

// TestAgent carries tasks out with the real agent at the other end of a real
// link.
func TestAgent(t *testing.T) {
	a := newAgentRig(t)
	t.Run("echo", func(t *testing.T) {
		e := engine.New(t.Context(), engine.Config{
			Journal: a.db, Runs: a.db, Reader: a.db, Guests: a, Runners: []runner.Runner{echo.Runner{}},
		})
		defer e.Close()
		want := "'; $(id) é\x00\n" + strings.Repeat("x", 60_000)
		res, err := e.Submit(t.Context(), engine.Submission{Machine: a.machine, Message: task.Message{Parts: []task.Part{task.TextPart(want)}}})
		if err != nil {
			t.Fatal(err)
		}
		rec := res.Task
		for c := e.Changed(rec.ID); c != nil; c = e.Changed(rec.ID) {
			<-c
		}
		if got := textOf(a.end(rec.ID), "stdout"); got != want {
			t.Errorf("%d bytes came back, %d were sent", len(got), len(want))
		}
	})
	t.Run("adapter", func(t *testing.T) { a.adapter(t) })
	t.Run("failures", func(t *testing.T) {
		for script, code := range map[string]int32{"exit 3": 3, "kill -TERM $$": 143} {
			if o := outcome(t, a.end(a.run(script, nil))); o.FailKind != task.Application || *o.ExitCode != code {
				t.Errorf("%s: %+v", script, o)
			}
		}
	})
	t.Run("cancel", func(t *testing.T) {
		id := a.run("trap : TERM; echo ready; while :; do sleep 1; done", nil)
		a.wait(id, func(rec task.Record) bool { return textOf(rec, "stdout") != "" })
		if rec, err := a.Cancel(t.Context(), task.System(), id); err != nil || rec.Status.State != task.Canceled {
			t.Errorf("cancel: %+v, %v", rec.Status, err)
		}
	})
	t.Run("restarts", func(t *testing.T) { a.restarts(t) })
	t.Run("never started", func(t *testing.T) { a.neverStarted(t) })
	t.Run("lines", func(t *testing.T) { a.lines(t) })
	t.Run("lost", func(t *testing.T) {
		id := a.run("echo ready; sleep 600", nil)
		a.wait(id, func(rec task.Record) bool { return textOf(rec, "stdout") != "" })
		if g, err := a.Guest(t.Context(), a.machine.ID); err != nil || g.(*agentlink.Link).PowerOff(t.Context()) != nil {
			t.Fatal(err)
		}
		rec := a.end(id)
		if o := outcome(t, rec); rec.Status.State != task.Failed || o.FailKind != task.Infrastructure {
			t.Errorf("ended as %s %+v", rec.Status.State, o)
		}
	})
}

func (a *agentRig) adapter(t *testing.T) {
	node := filepath.Join(strings.SplitN(a.machine.Env["PATH"], ":", 2)[0], "node")
	script := "#!/bin/sh\necho \"$AIWG_A2A_ADAPTER_MODE $AIWG_A2A_MESSAGE $2 $(cat \"$3\")\"; pwd >&2; echo '" +
		"ö'; exit \"$(cat \"$3\")\"\n"
	if err := os.WriteFile(node, []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	const request = ".aiwg/ops/runs/7.json"
	if err := os.MkdirAll(filepath.Join(a.machine.Workspace, ".aiwg/ops/runs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, code := range []int32{0, 7} {
		if err := os.WriteFile(filepath.Join(a.machine.Workspace, request), fmt.Appendf(nil, "%d", code), 0o600); err != nil {
			t.Fatal(err)
		}
		envelope := fmt.Sprintf(`{"adapter":"sandbox-agent-runner","mode":"assess","command":["node",`+
			`".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs","--request",%q]}`, request)
		rec := a.end(a.run("hello", task.Metadata{adaptercommand.URI: json.RawMessage(envelope)}))
		o := outcome(t, rec)
		if got, want := textOf(rec, "stdout"), fmt.Sprintf("assess hello --request %d\nö\n", code); got != want {
			t.Errorf("stdout is %q, want %q", got, want)
		}
		if got := textOf(rec, "stderr"); got != a.machine.Workspace+"\n" {
			t.Errorf("stderr is %q", got)
		}
		if o.ExitCode == nil || *o.ExitCode != code || (rec.Status.State == task.Completed) != (code == 0) {
			t.Errorf("ended as %s %+v", rec.Status.State, o)
		}
	}
}

// deafOnce swallows the first StartRun, as a daemon does that dies just
// before it.
type deafOnce struct {
	*agentRig
	calls int
}

type deafGuest struct {
	*agentlink.Link
	d *deafOnce
}

func (d *deafOnce) Guest(ctx context.Context, id instance.ID) (engine.Guest, error) {
	g, err := d.agentRig.Guest(ctx, id)
	if err != nil {
		return nil, err
	}
	return deafGuest{g.(*agentlink.Link), d}, nil
}

func (g deafGuest) StartRun(ctx context.Context, id string, spec *agentv1.RunSpec) (*agentv1.RunState, error) {
	if g.d.calls++; g.d.calls == 1 {
		return nil, context.Canceled
	}
	return g.Link.StartRun(ctx, id, spec)
}

// neverStarted: a command that was noted as dispatched, but of which the guest
// of the same boot never heard, is started after all.
func (a *agentRig) neverStarted(t *testing.T) {
	a.Close()
	deaf := &deafOnce{agentRig: a}
	a.cfg.Guests = deaf
	a.start()
	if rec := a.end(a.run("echo here", nil)); textOf(rec, "stdout") != "here\n" || deaf.calls != 2 {
		t.Errorf("ended as %+v after %d calls", rec.Status, deaf.calls)
	}
	a.Close()
	a.cfg.Guests = a
	a.start()
}

// restarts: engines and links die while a command writes; nothing is lost,
// doubled or started again.
func (a *agentRig) restarts(t *testing.T) {
	const stages, lines = 5, 600
	dir := t.TempDir()
	id := a.run(fmt.Sprintf("s=0; while [ $s -lt %d ]; do i=0; while [ $i -lt %d ]; do echo line $s $i; i=$((i+1)); done; "+
		"s=$((s+1)); while [ ! -e %s/$s ]; do sleep 0.01; done; done; echo end >&2; exit 9", stages, lines, dir), nil)
	was := uint64(2) // submitted, working
	for s := range stages {
		a.wait(id, func(rec task.Record) bool { return rec.LastSeq > was })
		a.Close() // in the middle of a stage, or at its end
		a.cut()
		rec, err := a.db.Task(t.Context(), task.System(), id, task.View{Inline: -1})
		if err != nil {
			t.Fatal(err)
		}
		was = rec.LastSeq
		if err := touch(filepath.Join(dir, strconv.Itoa(s+1))); err != nil {
			t.Fatal(err)
		}
		a.start()
	}
	rec := a.end(id)
	var want strings.Builder
	for s := range stages {
		for n := range lines {
			fmt.Fprintf(&want, "line %d %d\n", s, n)
		}
	}
	if got := textOf(rec, "stdout"); got != want.String() || textOf(rec, "stderr") != "end\n" {
		t.Errorf("stdout has %d bytes, want %d", len(got), want.Len())
	}
	if o := outcome(t, rec); o.ExitCode == nil || *o.ExitCode != 9 {
		t.Errorf("ended as %s %+v", rec.Status.State, o)
	}
	checkLog(t, a.db, rec)
}

// stalledJournal does not store the first output before it is opened, and
// counts transactions.
type stalledJournal struct {
	task.Journal
	open  chan struct{}
	calls int
}

func (j *stalledJournal) Output(ctx context.Context, id string, chunks []task.Chunk, p task.Progress) error {
	j.calls++
	<-j.open
	return j.Journal.Output(ctx, id, chunks, p)
}

// lines: a command that prints a line at a time, faster than lines are stored,
// makes neither a transaction nor an event of each.
func (a *agentRig) lines(t *testing.T) {
	a.Close()
	j := &stalledJournal{Journal: a.db, open: make(chan struct{})}
	a.cfg.Journal = j
	a.start()
	fifo := filepath.Join(t.TempDir(), "written")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	id := a.run("i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); done; echo >"+fifo, nil)
	if _, err := os.ReadFile(fifo); err != nil { // until all is written
		t.Fatal(err)
	}
	close(j.open)
	rec := a.end(id)
	var want strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := textOf(rec, "stdout"); got != want.String() {
		t.Errorf("stdout has %d bytes, want %d", len(got), want.Len())
	}
	checkLog(t, a.db, rec)
	a.Close()
	t.Logf("%d transactions, %d events", j.calls, rec.LastSeq)
	if j.calls > 200 || rec.LastSeq > 200 {
		t.Errorf("4000 lines made %d transactions and %d events", j.calls, rec.LastSeq)
	}
	a.cfg.Journal = a.db
	a.start()
}
