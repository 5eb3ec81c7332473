package vhostuser

import (
	"errors"
	"fmt"
	"runtime/debug"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/stream"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser/virtq"
)

// batch bounds the packets moved each way before the mutex is given up.
const batch = 64

var errFault = errors.New("guest memory cannot be used")

// guarded runs f, which touches guest memory, and turns a panic into an error.
// The file behind guest memory may shrink at any time; that raises a fault,
// which must cost this guest its device and nobody else anything.
func guarded(f func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", errFault, v, debug.Stack())
		}
	}()
	f()
	return nil
}

// update starts or pauses the device to match what the front-end has said.
// Both rings run or none: a connection that slipped in between the two would
// be taken for one of an earlier driver.
func (s *session) update() {
	ready := s.mem != nil && !s.broken
	for i := range s.rings {
		ready = ready && s.rings[i].ready()
	}
	switch {
	case ready && !s.running:
		s.start()
	case !ready && s.running:
		s.pause()
	}
}

// start takes both rings up. When they are where they were left, the same
// driver goes on after a pause; otherwise it is a new one that knows none of
// our connections. That is decided here, once, before either ring runs.
func (s *session) start() {
	resumed := true
	for i := range s.rings {
		v := &s.rings[i]
		v.layout.EventIdx = s.features&featEventIdx != 0
		v.layout.Indirect = s.features&featIndirect != 0
		ring, err := virtq.New(s.mem.Memory, v.layout)
		if err != nil {
			s.halt(fmt.Errorf("cannot start ring %d: %w", i, err))
			return
		}
		v.ring = ring
		resumed = resumed && v.left == int(v.layout.Base)
	}
	if !resumed {
		s.dev.ep.Fresh(errReset)
	}
	s.dev.ep.Up()
	s.running = true
	s.dev.log.Debug("vsock driver started", "resumed", resumed, "features", fmt.Sprintf("%#x", s.features))
	s.dev.announce()
	s.dev.poke()
}

// pause stops serving the rings and keeps the connections: a paused machine
// and one that resets look the same from here.
func (s *session) pause() {
	for i := range s.rings {
		v := &s.rings[i]
		if v.ring != nil {
			v.layout.Base = v.ring.Base()
			v.left = int(v.layout.Base)
			v.ring = nil
		}
	}
	s.running = false
	s.dev.announce()
}

// stop is a pause from which nobody comes back.
func (s *session) stop() {
	s.pause()
	for i := range s.rings {
		s.rings[i].left = -1
		s.rings[i].closeKick()
	}
	s.dev.ep.Down(errGone, vsock.ErrNotReady)
}

// halt is for a guest that makes no sense: its connections end, and its rings
// rest until it has reset the device.
func (s *session) halt(why error) {
	s.dev.halts++
	if n := s.dev.halts; n&(n-1) == 0 { // a guest can do this as often as it likes
		s.dev.log.Warn("vsock device halted", "error", why, "times", n)
	}
	s.broken = true
	s.stop()
}

// pump moves a batch of packets each way. It says whether there is more.
func (s *session) pump() (more bool, err error) {
	rx, tx := s.rings[ringRx].ring, s.rings[ringTx].ring
	more, stalled, err := s.receive(tx)
	if err != nil {
		return false, fmt.Errorf("cannot take packets from the guest: %w", err)
	}
	again, err := s.send(rx)
	if err != nil {
		return false, fmt.Errorf("cannot give packets to the guest: %w", err)
	}
	if tx.Publish() {
		signal(s.rings[ringTx].call)
	}
	if rx.Publish() {
		signal(s.rings[ringRx].call)
	}
	return more || again || stalled && s.dev.ep.Listening(), nil
}

// receive takes packets from the guest. It stalls while the guest does not
// take our answers.
func (s *session) receive(tx *virtq.Ring) (more, stalled bool, err error) {
	tx.Quiet()
	for range batch {
		if !s.dev.ep.Listening() {
			return false, true, nil
		}
		ok, err := tx.Pop(&s.chain)
		if err != nil {
			return false, false, err
		}
		if !ok {
			return tx.Await(), false, nil
		}
		s.deliver()
		tx.Push(&s.chain, 0)
	}
	return true, false, nil
}

// deliver passes the packet in s.chain on.
func (s *session) deliver() {
	if s.chain.Readable() < stream.HeaderSize {
		return
	}
	var b [stream.HeaderSize]byte
	s.chain.Peek(b[:])
	h := stream.ParseHeader(&b)
	if int64(h.Len) > int64(s.chain.Readable()-stream.HeaderSize) {
		h.Len, h.Op = 0, stream.OpInvalid // costs the guest that connection
	}
	s.payload = s.chain.After(s.payload[:0], stream.HeaderSize)
	s.dev.ep.Deliver(h, s.payload)
}

// send gives packets to the guest, as long as it has room for them.
func (s *session) send(rx *virtq.Ring) (more bool, err error) {
	rx.Quiet()
	for range batch {
		if !s.dev.ep.Ready() {
			return false, nil
		}
		ok, err := rx.Pop(&s.chain)
		if err != nil {
			return false, err
		}
		if !ok {
			return rx.Await(), nil
		}
		room := s.chain.Writable() - stream.HeaderSize
		if room < 1 {
			return false, fmt.Errorf("%w: buffer of %d bytes", virtq.ErrBroken, s.chain.Writable())
		}
		if !s.dev.ep.Send(room, s.put) {
			rx.Unpop()
			return false, nil
		}
		rx.Push(&s.chain, s.chain.Written())
	}
	return true, nil
}

// write puts a packet into s.chain.
func (s *session) write(h stream.Header, payload [][]byte) {
	var b [stream.HeaderSize]byte
	h.Put(&b)
	s.chain.Write(b[:])
	for _, p := range payload {
		s.chain.Write(p)
	}
}
