package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// parallel boots several machines at once and lets them end at once.
func (s *suite) parallel(t *testing.T) {
	machines := make([]*machine, s.Parallel)
	for i := range machines {
		machines[i] = s.make(t, fmt.Sprintf("parallel-%d", i))
	}
	var wg sync.WaitGroup
	errs := make([]error, len(machines))
	for i, m := range machines {
		wg.Go(func() { errs[i] = m.Start(s.ctx(t)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("cannot start all: %v", err)
	}
	for i, m := range machines {
		l := s.connect(t, m)
		want := fmt.Sprintf("machine %d\n", i)
		if out := s.shell(t, l, "echo machine "+strconv.Itoa(i)); out != want {
			t.Errorf("output is %q, want %q", out, want)
		}
	}
	for i, m := range machines {
		wg.Go(func() { errs[i] = m.Close(s.ctx(t)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("cannot close all: %v", err)
	}
}

// reopenRunning replaces the driver while a command streams: the machine is
// found again, the link reconnects, and the run goes on where it was.
func (s *suite) reopenRunning(t *testing.T) {
	m := s.make(t, "reopen")
	s.start(t, m)
	l := s.connect(t, m)
	nonce := string(l.Hello().GetBootNonce())
	run := s.startScript(t, l, "i=1; while read line; do echo \"$i $line\"; i=$((i + 1)); done", true)

	// The first half, until its answer has been seen.
	var seq uint64
	var out strings.Builder
	enough := errors.New("enough")
	_, err := l.FollowRun(s.ctx(t), run, agentlink.FollowOptions{
		Stdin: openEnd{strings.NewReader("before\n"), t.Context().Done()},
		Sink: agentlink.Each(func(_ context.Context, c *agentv1.Output) error {
			out.Write(c.GetData())
			seq = c.GetSeq()
			if out.String() == "1 before\n" {
				return enough
			}
			return nil
		}),
	})
	if !errors.Is(err, enough) {
		t.Fatalf("cannot follow the first half: %v (%q)", err, out.String())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	s.reopen()
	found, ok := s.find(t, m.id)
	if !ok || !found.Running {
		t.Fatalf("after the reopening the machine is listed as %+v, %v", found, ok)
	}
	if m.Instance, err = s.driver.Recover(s.ctx(t), m.handle); err != nil {
		t.Fatalf("cannot recover: %v", err)
	}
	s.start(t, m) // of a running machine: no error, and no second one
	l = s.connect(t, m)
	if string(l.Hello().GetBootNonce()) != nonce {
		t.Fatal("the machine was booted anew")
	}
	_, err = l.FollowRun(s.ctx(t), run, agentlink.FollowOptions{
		AfterSeq: seq,
		Stdin:    strings.NewReader("before\nafter\n"),
		Sink: agentlink.Each(func(_ context.Context, c *agentv1.Output) error {
			out.Write(c.GetData())
			return nil
		}),
	})
	if err != nil {
		t.Fatalf("cannot follow the second half: %v", err)
	}
	if got := out.String(); got != "1 before\n2 after\n" {
		t.Errorf("output over both drivers is %q", got)
	}
	// A handle from the list finds the same machine, and a recovered machine
	// can be ended and waited for.
	if _, err := s.driver.Recover(s.ctx(t), found.Handle); err != nil {
		t.Errorf("cannot recover by the handle of the list: %v", err)
	}
	if err := l.PowerOff(s.ctx(t)); err != nil {
		t.Fatalf("cannot power off: %v", err)
	}
	if e := s.wait(t, m); e.Reason != vm.ExitPowerOff {
		t.Errorf("recovered machine ended as %+v", e)
	}
}

// openEnd is input whose end does not come before done is closed.
type openEnd struct {
	*strings.Reader
	done <-chan struct{}
}

func (o openEnd) Read(p []byte) (int, error) {
	if o.Len() > 0 {
		return o.Reader.Read(p)
	}
	<-o.done
	return 0, io.ErrUnexpectedEOF
}

// reopenEnded replaces the driver after a machine has ended.
func (s *suite) reopenEnded(t *testing.T) {
	m := s.make(t, "ended")
	s.start(t, m)
	l := s.connect(t, m)
	if err := l.PowerOff(s.ctx(t)); err != nil {
		t.Fatal(err)
	}
	first := s.wait(t, m)
	s.reopen()
	var err error
	if m.Instance, err = s.driver.Recover(s.ctx(t), m.handle); err != nil {
		t.Fatalf("cannot recover an ended machine: %v", err)
	}
	if e := s.wait(t, m); e.Reason != first.Reason && e.Reason != vm.ExitUnknown {
		t.Errorf("machine ended as %+v, after the reopening as %+v", first, e)
	}
	if c, err := m.Dial(s.ctx(t), agentv1.Port); !errors.Is(err, vm.ErrGone) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("dialing answers %v", err)
	}
	s.start(t, m)
	s.shell(t, s.connect(t, m), "true")
}

func (s *suite) recoverUnknown(t *testing.T) {
	m := s.make(t, "unknown")
	if err := m.Close(s.ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.driver.Recover(s.ctx(t), m.handle); !errors.Is(err, vm.ErrGone) {
		t.Errorf("recovering a closed machine answers %v", err)
	}
	for _, h := range []vm.Handle{
		{},
		{Driver: "no such driver", Version: m.handle.Version, Data: m.handle.Data},
		{Driver: m.handle.Driver, Version: m.handle.Version + 1000, Data: m.handle.Data},
		{Driver: m.handle.Driver, Version: m.handle.Version, Data: json.RawMessage(`{"id":"../../../etc"}`)},
		{Driver: m.handle.Driver, Version: m.handle.Version, Data: json.RawMessage(`[`)},
	} {
		if i, err := s.driver.Recover(s.ctx(t), h); err == nil {
			t.Errorf("recovering %s %d %s answers %v", h.Driver, h.Version, h.Data, i)
		}
	}
}

// list checks that machines nobody asked for are listed: the orphans of a
// daemon that forgot them.
func (s *suite) list(t *testing.T) {
	idle, running := s.make(t, "idle"), s.make(t, "running")
	s.start(t, running)
	s.reopen()
	for _, m := range []*machine{idle, running} {
		f, ok := s.find(t, m.id)
		if !ok {
			t.Fatalf("machine %q is not listed by a new driver", m.name)
		}
		if f.Running != (m == running) {
			t.Errorf("machine %q is listed as %+v", m.name, f)
		}
		i, err := s.driver.Recover(s.ctx(t), f.Handle)
		if err != nil {
			t.Fatalf("cannot recover %q: %v", m.name, err)
		}
		m.Instance = i
	}
	if f, ok := s.find(t, instance.ID(uuid.NewString())); ok {
		t.Errorf("a machine that never was is listed as %+v", f)
	}
}
