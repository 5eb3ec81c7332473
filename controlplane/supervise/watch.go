package supervise

import (
	"context"
	"errors"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// watch follows the end of the machine and of the link to it.
func (s *Supervisor) watch(ctx context.Context) {
	s.mu.Lock()
	m, phase, link := s.machine, s.record.Phase, s.link
	s.mu.Unlock()
	if s.watching != nil {
		s.watching()
		s.watching = nil
	}
	if m == nil || (phase != instance.Running && phase != instance.Paused) {
		return
	}
	watchCtx, cancel := context.WithCancel(ctx)
	s.watching = cancel
	s.wg.Go(func() {
		exit, err := m.Wait(watchCtx)
		if err != nil {
			return
		}
		select {
		case s.exits <- exited{machine: m, exit: exit}:
		case <-watchCtx.Done():
		}
	})
	if link == nil {
		return
	}
	s.wg.Go(func() {
		select {
		case <-link.Done():
		case <-watchCtx.Done():
			return
		}
		select {
		case s.broken <- link:
		case <-watchCtx.Done():
		}
	})
}

// ended handles the end of a machine nobody asked to end.
func (s *Supervisor) ended(ctx context.Context, e exited) {
	s.mu.Lock()
	current := s.machine == e.machine
	s.mu.Unlock()
	if !current || s.queue.busy != "" {
		return // an activity is at work on it and sees the end itself
	}
	s.log.InfoContext(ctx, "machine ended", "reason", e.exit.Reason, "detail", e.exit.Detail)
	s.dropLink()
	event := instance.Crashed
	if e.exit.Reason == vm.ExitPowerOff || e.exit.Reason == vm.ExitDestroyed {
		event = instance.PoweredOff
	}
	s.apply(ctx, event, machineEnded(ctx, e.machine, e.exit))
}

// linkEnded handles a link that gave up although its machine runs: another
// machine answered, or the guest broke the protocol beyond repair.
func (s *Supervisor) linkEnded(ctx context.Context, link *agentlink.Link) {
	s.mu.Lock()
	current := s.link == link
	s.mu.Unlock()
	if !current || s.queue.busy != "" || errors.Is(link.Err(), vm.ErrGone) {
		return // or the machine's own end is on its way
	}
	s.log.WarnContext(ctx, "agent link gave up", "error", link.Err())
	s.dropLink()
	s.apply(ctx, instance.GaveUp, link.Err())
}
