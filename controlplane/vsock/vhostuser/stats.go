package vhostuser

import "agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"

// Stats is what a Device has done since Listen.
type Stats struct {
	stream.Stats
	// Sessions is how often QEMU has connected; Attached says whether it is
	// now, and Running whether the guest's driver is.
	Sessions          uint64
	Attached, Running bool
	// Halts is how often the guest's rings made no sense and were stopped.
	Halts uint64
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{Stats: d.ep.Stats(), Sessions: d.sessions, Halts: d.halts, Attached: d.sess != nil}
	s.Running = s.Attached && d.sess.running
	return s
}
