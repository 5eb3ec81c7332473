package vhostuser

import (
	"fmt"
	"os"
	"sync"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

// The device's two rings. The third, for events, stays in QEMU.
const (
	ringRx   = 0 // to the guest
	ringTx   = 1 // from the guest
	numRings = 2
)

// vring is what the front-end has told us of one ring.
type vring struct {
	layout  virtq.Layout
	placed  bool // addresses are known
	kicked  bool // started by SET_VRING_KICK
	enabled bool

	kick, call *os.File

	ring *virtq.Ring // while the device runs
	left int         // base at which the ring was left, or -1
}

// ready says whether the ring may run.
func (v *vring) ready() bool {
	return v.placed && v.kicked && v.enabled && v.layout.Size != 0
}

// setCall replaces the interrupt. The new one fires once, for what was
// signalled to the old one while the two were exchanged.
func (v *vring) setCall(f *os.File) {
	if v.call != nil {
		_ = v.call.Close()
	}
	v.call = f
	signal(f)
}

// setKick replaces the doorbell and waits on the new one until it is closed.
func (v *vring) setKick(f *os.File, waiters *sync.WaitGroup, ring func()) {
	v.closeKick()
	v.kick = f
	v.kicked = true
	waiters.Go(func() {
		var b [8]byte
		for {
			if n, err := f.Read(b[:]); err != nil || n == 0 {
				return
			}
			ring()
		}
	})
}

func (v *vring) closeKick() {
	if v.kick != nil {
		_ = v.kick.Close()
		v.kick = nil
	}
	v.kicked = false
}

func (v *vring) close() {
	v.closeKick()
	if v.call != nil {
		_ = v.call.Close()
		v.call = nil
	}
}

// stopped guards requests that may not hit a running ring.
func (v *vring) stopped(req request) error {
	if v.ring != nil {
		return fmt.Errorf("request %d on a running ring", req)
	}
	return nil
}
