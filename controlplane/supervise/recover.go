package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// ErrNotOffered is what a driver says that stands in for one there is none of:
// nothing can be done to its machines, but an instance can be forgotten.
var ErrNotOffered = errors.New("not offered by this sandboxd")

// recoverTries is how often a machine is looked for before other requests get
// their turn; after a pause it is looked for again.
const recoverTries = 4

// The words of drivers for a machine's state that are acted on.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// recoverMachine takes over a machine from an earlier process. A driver that
// fails says nothing about the machine, so the phase stays.
func (s *Supervisor) recoverMachine(ctx context.Context, _ *Request) (instance.Event, error) {
	rec := s.Record()
	for try := 1; ; try++ {
		m, err := s.ensureMachine(ctx)
		if err == nil && m == nil {
			return instance.Lost, Lost(rec)
		}
		if err == nil {
			s.log.InfoContext(ctx, "took the machine over")
			return s.asFound(ctx, m, rec), nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		s.setHealth(ctx, &instance.Fault{
			Blame: instance.Host, Code: "machine.unreachable", Hint: "`sandboxctl doctor` says what the provider lacks",
			Err: err,
		})
		if try == recoverTries {
			return "", err
		}
		again := time.NewTimer(time.Duration(try) * 250 * time.Millisecond)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return "", ctx.Err()
		}
	}
}

// asFound corrects a phase that was stored just before or after the machine
// was paused or resumed.
func (s *Supervisor) asFound(ctx context.Context, m vm.Instance, rec Record) instance.Event {
	s.setHealth(ctx, nil)
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	switch state := m.Diagnose(ctx).State; {
	case rec.Phase == instance.Running && state == statePaused:
		return instance.PauseRequested
	case rec.Phase == instance.Paused && state == stateRunning:
		return instance.ResumeRequested
	}
	return ""
}

// ensureMachine returns the machine, found again by its handle if need be, or
// by its id if the process that made it died before it could store that; nil
// when there is none.
func (s *Supervisor) ensureMachine(ctx context.Context) (vm.Instance, error) {
	if m := s.currentMachine(); m != nil {
		return m, nil
	}
	rec := s.Record()
	handle := rec.Handle
	if handle == nil {
		found, err := s.cfg.Driver.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot look for the machine of %q: %w", rec.Name, err)
		}
		for _, f := range found {
			if f.ID == rec.ID {
				handle = &f.Handle
			}
		}
	}
	if handle == nil {
		return nil, nil //nolint:nilnil // no machine is an answer, not a fault
	}
	m, err := s.cfg.Driver.Recover(ctx, *handle)
	if errors.Is(err, vm.ErrGone) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the machine of %q again: %w", rec.Name, err)
	}
	s.setMachine(m)
	return m, nil
}

func (s *Supervisor) currentMachine() vm.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine
}

func (s *Supervisor) setMachine(m vm.Instance) {
	s.mu.Lock()
	s.machine = m
	s.mu.Unlock()
}

func (s *Supervisor) currentLink() *agentlink.Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

func (s *Supervisor) setLink(link *agentlink.Link) {
	s.mu.Lock()
	s.link = link
	s.notify()
	s.mu.Unlock()
}

func (s *Supervisor) dropLink() {
	s.mu.Lock()
	link := s.link
	s.link = nil
	if link != nil {
		s.notify()
	}
	s.mu.Unlock()
	closeLink(link)
}

func closeLink(link *agentlink.Link) {
	if link != nil {
		_ = link.Close() // it always says nil
	}
}
