package supervise

import (
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Use says that the machine is in use until the returned function is called.
func (s *Supervisor) Use() func() {
	s.mu.Lock()
	s.users++
	s.lastUsed = s.cfg.Now()
	s.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			s.users--
			s.lastUsed = s.cfg.Now()
			s.mu.Unlock()
		})
	}
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
