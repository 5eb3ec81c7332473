package supervise

import (
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Use says that the machine is in use until the returned function is called.
// It wakes one that rests, if that is its policy.
func (s *Supervisor) Use() func() {
	s.used(1)
	var once sync.Once
	return func() { once.Do(func() { s.used(-1) }) }
}

func (s *Supervisor) used(by int) {
	s.mu.Lock()
	s.users += by
	s.lastUsed = s.cfg.Now()
	concerned := s.record.Plan.Idle != nil
	s.mu.Unlock()
	if concerned {
		s.stir()
	}
}

// part says that the machine is about to be stopped because nobody uses it, and
// reports whether that is so: who comes from then on does not get the link to it,
// but waits for what becomes of it.
func (s *Supervisor) part() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parting = s.users == 0
	return s.parting
}

// parted says that the phase now tells what becomes of the machine.
func (s *Supervisor) parted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parting {
		s.parting = false
		s.notify()
	}
}

// wakes reports whether a machine that rests is on its way back; s.mu is held.
func (s *Supervisor) wakes() bool {
	idle := s.record.Plan.Idle
	return s.record.Resting && idle != nil && idle.Wake && s.users > 0
}

// Health is what is wrong with a machine although its phase does not say so;
// nil when all is well. lastUsed is now while it is in use.
func (s *Supervisor) Health() (fault *instance.Fault, lastUsed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lastUsed = s.lastUsed
	if s.users > 0 {
		lastUsed = s.cfg.Now()
	}
	return s.health, lastUsed
}
