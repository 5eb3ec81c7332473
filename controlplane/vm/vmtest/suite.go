// Package vmtest is the definition of done for a driver: Suite runs the same
// checks, with real machines, against every implementation of vm.Driver.
//
// It knows the contract, the agent link and nothing of any driver; what
// differs between drivers comes in a Factory.
package vmtest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Factory is what the suite must be told of a driver.
type Factory struct {
	// New makes a driver on a fresh state directory, released by t.Cleanup.
	// Required.
	New func(t *testing.T) vm.Driver
	// Reopen closes old and makes a driver on the same state directory, as
	// a restarted daemon would. Its t is that of the whole suite, so that a
	// t.Cleanup closes the new driver only after the last check. Required.
	Reopen func(t *testing.T, old vm.Driver) vm.Driver
	// Spec makes a complete specification of a small machine whose agent
	// answers with that id. Required.
	Spec func(t *testing.T, id instance.ID, name string) vm.Spec
	// Directory is an absolute directory inside the machine that can be
	// written and outlives a restart. Required.
	Directory func(t *testing.T, d vm.Driver, id instance.ID) string
	// Shell wraps a POSIX shell script as an argv for the guest. Default
	// {"/bin/sh", "-c", script}.
	Shell func(script string) []string
	// Leftovers lists what is left of a machine on the host: processes,
	// files, sockets, domains. Required.
	Leftovers func(t *testing.T, d vm.Driver, id instance.ID) []string
	// Deadline bounds each step that waits on a machine. Default 120 s: it
	// may be emulated and the host busy.
	Deadline time.Duration
	// Bulk is how much the check of that name prints, in bytes, whole MiB.
	// Default 64 MiB.
	Bulk int64
	// Parallel is how many machines run at once in the check of that name.
	// Default 3.
	Parallel int
}

// Suite runs every check of the contract against the driver of f.
func Suite(t *testing.T, f Factory) {
	t.Helper()
	if f.Shell == nil {
		f.Shell = func(script string) []string { return []string{"/bin/sh", "-c", script} }
	}
	if f.Deadline == 0 {
		f.Deadline = 120 * time.Second
	}
	if f.Bulk == 0 {
		f.Bulk = 64 << 20
	}
	if f.Parallel == 0 {
		f.Parallel = 3
	}
	s := &suite{Factory: f, t: t, driver: f.New(t)}
	checks := []struct {
		name string
		run  func(*testing.T)
	}{
		{"capabilities", s.capabilities},
		{"create", s.create},
		{"create cancelled", s.createCancelled},
		{"wait and dial before start", s.beforeStart},
		{"life", s.life},
		{"stop and restart", s.stopRestart},
		{"power off", s.powerOff},
		{"start cancelled", s.startCancelled},
		{"close while running", s.closeRunning},
		{"pause", s.pause},
		{"parallel", s.parallel},
		{"reopen with a running command", s.reopenRunning},
		{"reopen after the end", s.reopenEnded},
		{"recover unknown", s.recoverUnknown},
		{"list", s.list},
	}
	for _, c := range checks {
		t.Run(c.name, c.run)
	}
}

// suite is one run of the checks. Checks run one after the other and share
// the driver; only reopening replaces it.
type suite struct {
	Factory
	t      *testing.T // of the whole suite
	driver vm.Driver
}

// reopen replaces the driver.
func (s *suite) reopen() { s.driver = s.Reopen(s.t, s.driver) }

func (s *suite) ctx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Deadline)
	t.Cleanup(cancel)
	return ctx
}

// machine is one machine under test.
type machine struct {
	vm.Instance
	id     instance.ID
	name   string
	spec   vm.Spec
	handle vm.Handle
}

// make creates a machine that is closed, with nothing of it left, at the
// end of the test.
func (s *suite) make(t *testing.T, name string) *machine {
	t.Helper()
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{id: id, name: name, spec: s.Spec(t, id, name)}
	if m.Instance, m.handle, err = s.driver.Create(s.ctx(t), m.spec); err != nil {
		t.Fatalf("cannot create: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Deadline)
		defer cancel()
		if t.Failed() {
			t.Logf("machine %q: %s", name, describe(m.Diagnose(ctx)))
		}
		if err := m.Close(ctx); err != nil {
			t.Errorf("cannot close %q: %v", name, err)
		}
		if left := s.Leftovers(t, s.driver, id); len(left) > 0 {
			t.Errorf("closing %q left %q", name, left)
		}
	})
	return m
}

func describe(d vm.Diagnosis) string {
	return fmt.Sprintf("state %s, facts %v\n--- hypervisor\n%s\n--- console\n%s", d.State, d.Facts, d.Hypervisor, d.Console)
}

func (s *suite) start(t *testing.T, m *machine) {
	t.Helper()
	if err := m.Start(s.ctx(t)); err != nil {
		t.Fatalf("cannot start %q: %v", m.name, err)
	}
}

// connect waits for the agent of a machine.
func (s *suite) connect(t *testing.T, m *machine) *agentlink.Link {
	t.Helper()
	i := m.Instance // a reopened driver gives the machine another one
	dial := func(ctx context.Context) (net.Conn, error) { return i.Dial(ctx, agentv1.Port) }
	l, err := agentlink.Connect(s.ctx(t), dial, agentlink.Options{InstanceID: m.id, HostVersion: "vmtest"})
	if err != nil {
		t.Fatalf("cannot connect to %q: %v", m.name, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("cannot close link: %v", err)
		}
	})
	return l
}

// startScript starts a shell script and returns its run id.
func (s *suite) startScript(t *testing.T, l *agentlink.Link, script string, stdin bool) string {
	t.Helper()
	id := uuid.NewString()
	_, err := l.StartRun(s.ctx(t), id, &agentv1.RunSpec{
		Argv:       s.Shell(script),
		Env:        map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
		Root:       "/",
		WorkingDir: "/",
		Timeout:    durationpb.New(10 * time.Minute),
		Stdin:      stdin,
	})
	if err != nil {
		t.Fatalf("cannot start run: %v", err)
	}
	return id
}

// shell runs a script to its end, demands exit code 0, and returns its output.
func (s *suite) shell(t *testing.T, l *agentlink.Link, script string) string {
	t.Helper()
	out, exited := s.follow(t, l, s.startScript(t, l, script, false), agentlink.FollowOptions{})
	if exited.GetCause() != agentv1.Exited_CAUSE_EXITED || exited.GetCode() != 0 {
		t.Fatalf("script %q ended by %s with code %d: %s", script, exited.GetCause(), exited.GetCode(), out)
	}
	return out
}

// follow follows a run to its end and releases it.
func (s *suite) follow(t *testing.T, l *agentlink.Link, run string, o agentlink.FollowOptions) (string, *agentv1.Exited) {
	t.Helper()
	var out strings.Builder
	o.Sink = agentlink.Each(func(_ context.Context, c *agentv1.Output) error {
		out.Write(c.GetData())
		return nil
	})
	exited, err := l.FollowRun(s.ctx(t), run, o)
	if err != nil {
		t.Fatalf("cannot follow run: %v (so far %q)", err, out.String())
	}
	if err := l.ReleaseRun(s.ctx(t), run); err != nil {
		t.Fatalf("cannot release run: %v", err)
	}
	return out.String(), exited
}

// wait waits for the end of a machine.
func (s *suite) wait(t *testing.T, m *machine) vm.Exit {
	t.Helper()
	e, err := m.Wait(s.ctx(t))
	if err != nil {
		t.Fatalf("cannot wait for %q: %v", m.name, err)
	}
	return e
}

// find looks a machine up in the driver's list.
func (s *suite) find(t *testing.T, id instance.ID) (vm.Found, bool) {
	t.Helper()
	all, err := s.driver.List(s.ctx(t))
	if err != nil {
		t.Fatalf("cannot list: %v", err)
	}
	var hit vm.Found
	found := false
	for i, f := range all {
		if i > 0 && all[i-1].ID >= f.ID {
			t.Errorf("list is not ordered: %q before %q", all[i-1].ID, f.ID)
		}
		if f.ID == id {
			hit, found = f, true
		}
	}
	return hit, found
}
