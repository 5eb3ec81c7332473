package supervise

import (
	"context"
	"errors"
	"net"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// rewatch follows the machine as it is now: its end, and its agent.
func (s *Supervisor) rewatch(ctx context.Context) {
	s.unwatch()
	s.mu.Lock()
	m, phase, link := s.machine, s.record.Phase, s.link
	s.mu.Unlock()
	if phase != instance.Running {
		s.setHealth(ctx, nil)
	}
	if s.queue.busy != nil || m == nil || (phase != instance.Running && phase != instance.Paused) {
		return
	}
	watchCtx, cancel := context.WithCancel(ctx)
	s.watching = cancel
	n := s.watch
	tell := func(r report) bool {
		r.watch = n
		select {
		case s.reports <- r:
			return true
		case <-watchCtx.Done():
			return false
		}
	}
	s.wg.Go(func() {
		if exit, err := m.Wait(watchCtx); err == nil {
			tell(report{kind: machineExit, exit: exit})
		}
	})
	if phase == instance.Running {
		s.wg.Go(func() { s.follow(watchCtx, m, link, tell) })
	}
}

// unwatch ends the watch; what it has said and nobody has heard is stale.
func (s *Supervisor) unwatch() {
	s.watch++
	if s.watching != nil {
		s.watching()
		s.watching = nil
	}
}

// follow keeps an eye on the agent of a running machine, and reaches it first
// where there is no link. It ends with ctx or when the link has ended for good.
func (s *Supervisor) follow(ctx context.Context, m vm.Instance, link *agentlink.Link, tell func(report) bool) {
	if link == nil {
		if link = s.reach(ctx, m, tell); link == nil {
			return
		}
		if !tell(report{kind: linkUp, link: link}) {
			closeLink(link)
			return
		}
	}
	silence := time.NewTimer(s.cfg.Limits.Silence)
	defer silence.Stop()
	was, silent := true, false
	for {
		connected, changed := link.State()
		switch {
		case connected && silent:
			silent = false
			tell(report{kind: linkBack})
		case !connected && was:
			silence.Reset(s.cfg.Limits.Silence)
		}
		was = connected
		select {
		case <-changed:
		case <-silence.C:
			if connected || silent {
				continue
			}
			silent = true
			tell(s.silence(ctx, m, nil))
		case <-link.Done():
			tell(report{kind: linkGaveUp, err: link.Err()})
			return
		case <-ctx.Done():
			return
		}
	}
}

// reach waits for the agent of a machine that an earlier process started. nil
// when that is of no use any more.
func (s *Supervisor) reach(ctx context.Context, m vm.Instance, tell func(report) bool) *agentlink.Link {
	for silent := false; ; silent = true {
		try, cancel := context.WithTimeout(ctx, s.cfg.Limits.Silence)
		link, err := s.dial(try, m)
		late := try.Err() != nil
		cancel()
		switch {
		case err == nil:
			return link
		case ctx.Err() != nil || errors.Is(err, vm.ErrGone): // its end is told by another
			return nil
		case !late:
			tell(report{kind: linkGaveUp, err: err})
			return nil
		case !silent:
			tell(s.silence(ctx, m, err))
		}
	}
}

// dial makes the link to the agent; it tries until ctx ends.
func (s *Supervisor) dial(ctx context.Context, m vm.Instance) (*agentlink.Link, error) {
	return agentlink.Connect(ctx,
		func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, agentv1.Port) },
		agentlink.Options{InstanceID: s.Record().ID, HostVersion: s.cfg.Version, Log: s.cfg.Log, MaxBackoff: redial})
}

// redial bounds the pause between two attempts to reach an agent that is about
// to come up: an attempt costs nothing, and a booting machine is waited for.
const redial = 50 * time.Millisecond

// silence describes a running machine whose agent does not answer.
func (s *Supervisor) silence(ctx context.Context, m vm.Instance, last error) report {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	d := m.Diagnose(ctx)
	return report{kind: linkSilent, state: d.State, err: silentFault(s.Record(), s.cfg.Limits.Silence, d.Console, last)}
}

// reported acts on what a watch says.
func (s *Supervisor) reported(ctx context.Context, r report) {
	if r.watch != s.watch {
		closeLink(r.link)
		return
	}
	switch r.kind {
	case linkUp:
		s.setLink(r.link)
		s.setHealth(ctx, nil)
	case linkBack:
		s.setHealth(ctx, nil)
	case linkSilent:
		s.silenced(ctx, r)
	case machineExit, linkGaveUp:
		if s.queue.report(r) {
			s.ended(ctx, r)
		}
	}
}

// silenced records that an agent does not answer, and why if that is known.
func (s *Supervisor) silenced(ctx context.Context, r report) {
	if s.queue.busy == nil && r.state == statePaused && s.Record().Phase == instance.Running {
		// A pause that was given up took place after all.
		s.apply(ctx, &Request{Event: recovering, Why: "found-paused"}, instance.PauseRequested, nil)
		s.rewatch(ctx)
		return
	}
	s.log.WarnContext(ctx, "agent does not answer", "error", r.err)
	s.setHealth(ctx, instance.AsFault(r.err))
}

// ended handles what nobody asked for: the end of the machine, or of the link
// to it although it runs, because another machine answered or the guest broke
// the protocol beyond repair.
func (s *Supervisor) ended(ctx context.Context, r report) {
	m := s.currentMachine()
	if m == nil || (r.kind == linkGaveUp && errors.Is(r.err, vm.ErrGone)) {
		return // the machine's own end is on its way
	}
	s.unwatch()
	s.dropLink()
	s.setHealth(ctx, nil)
	none := &Request{}
	if r.kind == linkGaveUp {
		s.log.WarnContext(ctx, "agent link gave up", "error", r.err)
		s.apply(ctx, none, instance.GaveUp, r.err)
		return
	}
	s.log.InfoContext(ctx, "machine ended", "reason", r.exit.Reason, "detail", r.exit.Detail)
	event := instance.Crashed
	if r.exit.Reason == vm.ExitPowerOff || r.exit.Reason == vm.ExitDestroyed {
		event = instance.PoweredOff
	}
	s.apply(ctx, none, event, machineEnded(ctx, m, s.Record(), r.exit))
}

// setHealth says what is wrong with a machine whose phase does not show it.
func (s *Supervisor) setHealth(ctx context.Context, f *instance.Fault) {
	s.mu.Lock()
	old := s.health
	s.health = f
	s.mu.Unlock()
	same := (old == nil && f == nil) || (old != nil && f != nil && old.Code == f.Code)
	if !same && s.cfg.Health != nil {
		s.cfg.Health(ctx, s.Record(), f)
	}
}
