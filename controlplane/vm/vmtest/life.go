package vmtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// unusedPort is a port nobody in a guest listens on.
const unusedPort = 513

func (s *suite) capabilities(t *testing.T) {
	c, err := s.driver.Capabilities(s.ctx(t))
	if err != nil {
		t.Fatalf("cannot get capabilities: %v", err)
	}
	if !c.Available {
		t.Fatalf("driver is not available: %s (%s)", c.Reason, c.Remedy)
	}
	if c.Driver == "" || c.Vsock == "" {
		t.Errorf("driver or vsock is not named: %+v", c)
	}
	switch c.RuntimeKind {
	case "vm", "container", "host":
	default:
		t.Errorf("runtime kind is %q", c.RuntimeKind)
	}
	if c.RuntimeKind == "vm" && c.Accelerator != "kvm" && c.AcceleratorReason == "" {
		t.Errorf("nothing says why machines are run by %q", c.Accelerator)
	}
	again, err := s.driver.Capabilities(s.ctx(t))
	if err != nil || fmt.Sprint(again) != fmt.Sprint(c) {
		t.Errorf("capabilities changed from %+v to %+v (%v)", c, again, err)
	}
}

// create checks that Create is idempotent by id, also at once.
func (s *suite) create(t *testing.T) {
	m := s.make(t, "create")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			again, h, err := s.driver.Create(s.ctx(t), m.spec)
			if err != nil {
				t.Errorf("cannot create again: %v", err)
				return
			}
			if again == nil || string(h.Data) != string(m.handle.Data) || h.Driver != m.handle.Driver {
				t.Errorf("handle changed from %s to %s", m.handle.Data, h.Data)
			}
		})
	}
	wg.Wait()
	if f, ok := s.find(t, m.id); !ok || f.Running {
		t.Errorf("created machine is listed as %+v, %v", f, ok)
	}
	if d := m.Diagnose(s.ctx(t)); d.State == "" {
		t.Error("diagnosis has no state")
	}
}

func (s *suite) createCancelled(t *testing.T) {
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.driver.Create(ctx, s.Spec(t, id, "cancelled")); !errors.Is(err, context.Canceled) {
		t.Errorf("create with an ended context answers %v", err)
	}
	if left := s.Leftovers(t, s.driver, id); len(left) > 0 {
		t.Errorf("cancelled create left %q", left)
	}
	if f, ok := s.find(t, id); ok {
		t.Errorf("cancelled create is listed as %+v", f)
	}
}

func (s *suite) beforeStart(t *testing.T) {
	m := s.make(t, "unstarted")
	if e, err := m.Wait(s.ctx(t)); err == nil {
		t.Errorf("waiting for a machine that was never started answers %+v", e)
	}
	if c, err := m.Dial(s.ctx(t), agentv1.Port); err == nil {
		_ = c.Close()
		t.Error("dialing a machine that was never started succeeds")
	}
}

// life is the ordinary life of one machine, with all that can be asked of
// one that runs.
func (s *suite) life(t *testing.T) {
	m := s.make(t, "life")
	s.start(t, m)
	t.Run("start again", func(t *testing.T) { s.start(t, m) })
	l := s.connect(t, m)
	if got := l.Hello().GetInstanceId(); got != m.id.String() {
		t.Errorf("instance %q answered", got)
	}
	t.Run("command", func(t *testing.T) {
		if out := s.shell(t, l, "echo hello, $((40 + 2))"); out != "hello, 42\n" {
			t.Errorf("output is %q", out)
		}
	})
	t.Run("input and exit code", func(t *testing.T) {
		run := s.startScript(t, l, "read a; read b; echo \"$b $a\"; exit 7", true)
		out, e := s.follow(t, l, run, agentlink.FollowOptions{Stdin: strings.NewReader("one\ntwo\n")})
		if out != "two one\n" || e.GetCode() != 7 {
			t.Errorf("output is %q, code %d", out, e.GetCode())
		}
	})
	t.Run("bulk", func(t *testing.T) { s.bulk(t, l, s.Directory(t, s.driver, m.id)) })
	t.Run("stubborn tree", func(t *testing.T) { s.stubborn(t, l) })
	t.Run("several connections", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 4 {
			l := s.connect(t, m)
			wg.Go(func() {
				want := fmt.Sprintf("stream %d\n", i)
				if out := s.shell(t, l, "echo stream "+strconv.Itoa(i)); out != want {
					t.Errorf("output is %q, want %q", out, want)
				}
			})
		}
		wg.Wait()
	})
	t.Run("refused port", func(t *testing.T) {
		// A refusal must be told from a time-out, so the deadline is far off.
		c, err := m.Dial(s.ctx(t), unusedPort)
		if err == nil {
			_ = c.Close()
			t.Fatal("dialing a port nobody listens on succeeds")
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, vm.ErrGone) {
			t.Errorf("dialing a port nobody listens on answers %v", err)
		}
	})
	t.Run("diagnose", func(t *testing.T) { s.diagnose(t, m) })
	t.Run("list", func(t *testing.T) {
		if f, ok := s.find(t, m.id); !ok || !f.Running {
			t.Errorf("running machine is listed as %+v, %v", f, ok)
		}
	})
	t.Run("wait ends with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if e, err := m.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting answers %+v, %v", e, err)
		}
	})
}

func (s *suite) diagnose(t *testing.T, m *machine) {
	d := m.Diagnose(s.ctx(t))
	if d.State == "" {
		t.Error("diagnosis has no state")
	}
	if len(d.Console) > 64<<10 {
		t.Errorf("console has %d bytes", len(d.Console))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	go func() { defer close(done); m.Diagnose(ctx) }()
	select {
	case <-done:
	case <-time.After(s.Deadline):
		t.Error("diagnosis outlives its context")
	}
}

// stopRestart checks that power can be cut and that the disk survives.
func (s *suite) stopRestart(t *testing.T) {
	m := s.make(t, "restart")
	stopper, ok := m.Instance.(vm.Stopper)
	if !ok {
		t.Skip("this driver has no Stopper: implement vm.Stopper to enable this check")
	}
	file := s.Directory(t, s.driver, m.id) + "/kept"
	s.start(t, m)
	l := s.connect(t, m)
	nonce := string(l.Hello().GetBootNonce())
	s.shell(t, l, "mkdir -p '"+s.Directory(t, s.driver, m.id)+"'; echo from the first boot >'"+file+"'; sync")
	waiting := make(chan vm.Exit, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		e, err := m.Wait(s.ctx(t))
		if err != nil {
			t.Errorf("cannot wait: %v", err)
		}
		waiting <- e
	})
	if err := stopper.Stop(s.ctx(t)); err != nil {
		t.Fatalf("cannot stop: %v", err)
	}
	wg.Wait()
	if e := <-waiting; e.Reason != vm.ExitDestroyed {
		t.Errorf("stopped machine ended as %+v", e)
	}
	if e := s.wait(t, m); e.Reason != vm.ExitDestroyed {
		t.Errorf("stopped machine ended as %+v on the second asking", e)
	}
	if err := stopper.Stop(s.ctx(t)); err != nil {
		t.Errorf("stopping a stopped machine answers %v", err)
	}
	if c, err := m.Dial(s.ctx(t), agentv1.Port); !errors.Is(err, vm.ErrGone) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("dialing a stopped machine answers %v", err)
	}
	s.ended(t, l)
	if f, ok := s.find(t, m.id); !ok || f.Running {
		t.Errorf("stopped machine is listed as %+v, %v", f, ok)
	}

	s.start(t, m)
	l = s.connect(t, m)
	if string(l.Hello().GetBootNonce()) == nonce {
		t.Error("the boot nonce is the same after a restart")
	}
	if out := s.shell(t, l, "cat '"+file+"'"); out != "from the first boot\n" {
		t.Errorf("file holds %q after the restart", out)
	}
}

// ended waits until a link has noticed that its machine is gone.
func (s *suite) ended(t *testing.T, l *agentlink.Link) {
	t.Helper()
	select {
	case <-l.Done():
		if !errors.Is(l.Err(), vm.ErrGone) {
			t.Errorf("link ended by %v", l.Err())
		}
	case <-s.ctx(t).Done():
		t.Error("link does not notice that the machine is gone")
	}
}

func (s *suite) powerOff(t *testing.T) {
	m := s.make(t, "poweroff")
	s.start(t, m)
	l := s.connect(t, m)
	if err := l.PowerOff(s.ctx(t)); err != nil {
		t.Fatalf("cannot power off: %v", err)
	}
	if e := s.wait(t, m); e.Reason != vm.ExitPowerOff {
		t.Errorf("machine ended as %+v", e)
	}
	if c, err := m.Dial(s.ctx(t), agentv1.Port); !errors.Is(err, vm.ErrGone) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("dialing an ended machine answers %v", err)
	}
	s.ended(t, l)
}

// startCancelled checks that a Start that was given up leaves nothing half
// made: the machine can be started anew or closed.
func (s *suite) startCancelled(t *testing.T) {
	m := s.make(t, "cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("start with an ended context answers %v", err)
	}
	if f, ok := s.find(t, m.id); !ok || f.Running {
		t.Errorf("machine is listed as %+v, %v", f, ok)
	}
	// The second attempt is given up somewhere in the middle.
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	err := m.Start(ctx)
	cancel()
	f, ok := s.find(t, m.id)
	if !ok || (err != nil && f.Running) {
		t.Errorf("start answers %v, machine is listed as %+v, %v", err, f, ok)
	}
	s.start(t, m)
	s.shell(t, s.connect(t, m), "true")
}

// closeRunning closes a machine that runs, from several places at once.
func (s *suite) closeRunning(t *testing.T) {
	m := s.make(t, "close")
	s.start(t, m)
	l := s.connect(t, m)
	s.startScript(t, l, "while :; do sleep 1000; done", false)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := m.Close(s.ctx(t)); err != nil {
				t.Errorf("cannot close: %v", err)
			}
		})
	}
	wg.Wait()
	if e, err := m.Wait(s.ctx(t)); err != nil || e.Reason != vm.ExitDestroyed {
		t.Errorf("closed machine ended as %+v, %v", e, err)
	}
	if err := m.Start(s.ctx(t)); !errors.Is(err, vm.ErrGone) {
		t.Errorf("starting a closed machine answers %v", err)
	}
	if f, ok := s.find(t, m.id); ok {
		t.Errorf("closed machine is listed as %+v", f)
	}
	s.ended(t, l)
}

func (s *suite) pause(t *testing.T) {
	m := s.make(t, "pause")
	p, ok := m.Instance.(vm.Pauser)
	if !ok {
		t.Skip("this driver has no Pauser: implement vm.Pauser to enable this check")
	}
	s.start(t, m)
	l := s.connect(t, m)
	if err := p.Pause(s.ctx(t)); err != nil {
		t.Fatalf("cannot pause: %v", err)
	}
	if f, ok := s.find(t, m.id); !ok || !f.Running {
		t.Errorf("paused machine is listed as %+v, %v", f, ok)
	}
	// A paused machine answers nobody, so any short wait will do.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if _, err := l.Stats(ctx); err == nil {
		t.Error("a paused machine answers")
	}
	cancel()
	if err := p.Resume(s.ctx(t)); err != nil {
		t.Fatalf("cannot resume: %v", err)
	}
	if _, err := l.Stats(s.ctx(t)); err != nil {
		t.Errorf("machine does not answer after the pause: %v", err)
	}
}
