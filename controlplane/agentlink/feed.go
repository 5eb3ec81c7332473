package agentlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// attachSender is the sending half of AttachRun.
type attachSender interface {
	Send(*agentv1.AttachRequest) error
}

// sender is the one goroutine that writes to an attachment: acknowledgements,
// coalesced, and input.
type sender struct {
	stream attachSender
	in     *input
	cancel context.CancelFunc // ends the attachment when the input fails
	acked  atomic.Uint64
	told   uint64       // newest acknowledgement the agent knows; run's own
	fresh  atomic.Int64 // bytes delivered since the last acknowledgement
	dirty  chan struct{}
	urgent chan struct{}
	done   chan struct{}
}

// newSender makes the sender of an attachment after output seq, which told the
// agent that all up to it is stored. The first of more may be acknowledged
// before run is under way.
func newSender(stream attachSender, in *input, cancel context.CancelFunc, seq uint64) *sender {
	return &sender{stream: stream, in: in, cancel: cancel, told: seq,
		dirty: make(chan struct{}, 1), urgent: make(chan struct{}, 1), done: make(chan struct{})}
}

// ack says that everything up to seq is stored. Never blocks.
func (s *sender) ack(seq uint64, n int) {
	s.acked.Store(seq)
	c := s.dirty
	if s.fresh.Add(int64(n)) >= ackBytes {
		c = s.urgent
	}
	select {
	case c <- struct{}{}:
	default:
	}
}

// run sends until the attachment ends. A failed send needs no report: the
// receiving side learns the reason.
func (s *sender) run(ctx context.Context) {
	defer close(s.done)
	var delay <-chan time.Time
	timer := time.NewTimer(ackDelay)
	timer.Stop()
	defer timer.Stop()
	for {
		var more <-chan struct{}
		if s.in != nil {
			if s.in.err() != nil {
				s.cancel()
				return
			}
			chunk, wake := s.in.next()
			if chunk != nil {
				if s.stream.Send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Stdin{Stdin: chunk}}) != nil {
					return
				}
			}
			more = wake
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
			continue
		case <-s.dirty:
			if delay == nil {
				timer.Reset(ackDelay)
				delay = timer.C
			}
			continue
		case <-s.urgent:
			timer.Stop()
		case <-delay:
		}
		delay = nil
		s.fresh.Store(0)
		seq := s.acked.Load()
		if seq <= s.told {
			continue
		}
		s.told = seq
		ack := &agentv1.Ack{Seq: seq}
		if s.stream.Send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Ack{Ack: ack}}) != nil {
			return
		}
	}
}

// input holds what was read from the caller and not yet taken by the guest,
// so that it can be sent again over the next connection.
type input struct {
	src  io.Reader
	stop chan struct{}
	done chan struct{}

	mu       sync.Mutex
	base     uint64 // position of buf[0]; everything below is in the guest's pipe
	buf      []byte
	skip     uint64 // bytes yet to be read and dropped
	sent     uint64 // position up to which this attachment has sent
	eof      bool   // src has ended after buf
	eofSent  bool
	attached bool // some attachment has begun
	started  bool
	failure  error
	wake     chan struct{} // closed and replaced when there is something to send
	room     chan struct{} // closed and replaced when there is room to read
}

func newInput(src io.Reader, offset uint64) *input {
	return &input{src: src, base: offset, sent: offset, stop: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}), room: make(chan struct{})}
}

// attach begins a new attachment to an agent that has taken input up to
// accepted.
func (in *input) attach(accepted uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	end := in.base + uint64(len(in.buf))
	switch {
	case accepted < in.base && in.attached:
		return lie("it has taken input up to %d, but said %d before", accepted, in.base)
	case accepted < in.base:
		return fault(instance.Caller, CodeInput, "",
			fmt.Errorf("cannot feed input from %d on: the agent has taken it only up to %d", in.base, accepted))
	case accepted > end && in.attached:
		return lie("it has taken input up to %d, but only %d was sent", accepted, end)
	case accepted > end:
		in.skip = accepted - end
		in.base, in.buf = accepted, nil
	default:
		in.drop(accepted)
	}
	in.sent, in.eofSent, in.attached = in.base, false, true
	if !in.started {
		in.started = true
		go in.read()
	}
	return nil
}

// accept notes that the guest has taken all input below offset.
func (in *input) accept(offset uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset > in.sent {
		return lie("it has taken input up to %d, but only %d was sent", offset, in.sent)
	}
	in.drop(offset)
	return nil
}

// drop forgets input below offset. Called with mu held.
func (in *input) drop(offset uint64) {
	if offset <= in.base {
		return
	}
	in.buf = in.buf[offset-in.base:]
	in.base = offset
	close(in.room)
	in.room = make(chan struct{})
}

// taken is how much input the guest has taken.
func (in *input) taken() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.base
}

func (in *input) err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.failure
}

// next returns what to send now, or nil, and a channel that is closed when
// there may be more.
func (in *input) next() (*agentv1.Stdin, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	end := in.base + uint64(len(in.buf))
	n := min(end-in.sent, agentv1.MaxChunk)
	if n == 0 && (!in.eof || in.eofSent) {
		return nil, in.wake
	}
	from := in.sent - in.base
	c := &agentv1.Stdin{Offset: in.sent, Data: append([]byte(nil), in.buf[from:from+n]...)}
	in.sent += n
	if in.eof && in.sent == end {
		c.Eof, in.eofSent = true, true
		return c, in.wake
	}
	more := make(chan struct{})
	close(more) // there may be more right now
	return c, more
}

// read fills the window from the caller's reader.
func (in *input) read() {
	defer close(in.done)
	chunk := make([]byte, agentv1.MaxChunk)
	for {
		in.mu.Lock()
		space, room := agentv1.StdinWindow-len(in.buf), in.room
		in.mu.Unlock()
		if space <= 0 {
			select {
			case <-room:
				continue
			case <-in.stop:
				return
			}
		}
		n, err := in.src.Read(chunk[:min(space, len(chunk))])
		if !in.took(chunk[:n], err) {
			return
		}
	}
}

// took adds what one Read brought and reports whether to go on.
func (in *input) took(data []byte, err error) bool {
	select {
	case <-in.stop:
		return false
	default:
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	n := min(in.skip, uint64(len(data)))
	in.skip -= n
	in.buf = append(in.buf, data[n:]...)
	switch {
	case errors.Is(err, io.EOF):
		in.eof = true
	case err != nil:
		in.failure = err
	}
	close(in.wake)
	in.wake = make(chan struct{})
	return err == nil
}

// close ends reading.
func (in *input) close() {
	close(in.stop)
	c, ok := in.src.(io.Closer)
	if ok {
		_ = c.Close()
	}
	in.mu.Lock()
	started := in.started
	in.mu.Unlock()
	if ok && started {
		<-in.done
	}
}
