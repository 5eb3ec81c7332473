package command

import (
	"context"
	"errors"
	"io"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Attachment follows one run from a place in its output. Next is for one
// goroutine, the other methods for any.
type Attachment struct {
	run        *Run
	superseded chan struct{}
	cursor     uint64 // newest seq handed out here
	accepted   uint64 // newest input position told here
	finished   bool
}

// Attach follows the run from after a sequence number, which acknowledges all
// up to it. An earlier attachment ends with Superseded.
func (r *Run) Attach(after uint64) (*Attachment, *agentv1.RunState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spec == nil {
		after = 0 // what an earlier agent has delivered is not known
	}
	if after < r.log.acked {
		return nil, nil, refuse(OutOfRange, "OUTPUT_FREED", r.id,
			"cannot attach after %d: output up to %d has been acknowledged and freed", after, r.log.acked)
	}
	freed, err := r.log.ack(after)
	if err != nil {
		return nil, nil, refuse(Invalid, "ACK", r.id, "cannot attach: %w", err)
	}
	if freed {
		r.room.ring()
	}
	if r.attached != nil {
		close(r.attached.superseded)
	}
	a := &Attachment{run: r, superseded: make(chan struct{}), cursor: after, accepted: r.input.accepted}
	r.attached = a
	return a, r.state(), nil
}

// Next waits for what comes next: output, accepted input, or the end, after
// which it returns io.EOF.
func (a *Attachment) Next(ctx context.Context) (*agentv1.AttachResponse, error) {
	for {
		next, news := a.take()
		if next != nil {
			return next, nil
		}
		if a.finished {
			return nil, io.EOF
		}
		select {
		case <-news:
		case <-a.superseded:
			return nil, refuse(Superseded, "SUPERSEDED", a.run.id, "a newer attachment has taken over run %s", a.run.id)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns what is there now, or how to wait for more.
func (a *Attachment) take() (*agentv1.AttachResponse, <-chan struct{}) {
	r := a.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attached != a || a.finished {
		return nil, nil // Next says why
	}
	if r.input.accepted > a.accepted {
		a.accepted = r.input.accepted
		return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_StdinAccepted{
			StdinAccepted: &agentv1.StdinAccepted{Offset: a.accepted},
		}}, nil
	}
	if c, ok := r.log.after(a.cursor); ok {
		a.cursor = c.seq
		return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Output{
			Output: &agentv1.Output{Seq: c.seq, Stream: c.stream, Offset: c.offset, Data: c.data},
		}}, nil
	}
	if r.ended != nil {
		a.finished = true
		return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Exited{Exited: r.ended}}, nil
	}
	return nil, r.news.wait()
}

// Ack frees output up to seq.
func (a *Attachment) Ack(seq uint64) error {
	r := a.run
	r.mu.Lock()
	defer r.mu.Unlock()
	freed, err := r.log.ack(seq)
	if err != nil {
		return refuse(Invalid, "ACK", r.id, "cannot acknowledge: %w", err)
	}
	if freed {
		r.room.ring()
	}
	return nil
}

// Input takes a piece of the run's input; see agentv1.Stdin.
func (a *Attachment) Input(offset uint64, data []byte, eof bool) error {
	r := a.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.spec.GetStdin() {
		return refuse(Invalid, "STDIN", r.id, "cannot take input: the run was started without stdin")
	}
	if r.attached != a || r.ended != nil {
		return nil // taken over, or nobody is left to read it
	}
	if err := r.input.push(offset, data, eof); err != nil {
		if errors.Is(err, errWindow) {
			return refuse(Exhausted, "STDIN_WINDOW", r.id, "cannot take input: %w", err)
		}
		return refuse(Invalid, "STDIN", r.id, "cannot take input: %w", err)
	}
	r.feed.ring()
	return nil
}

// Close ends the attachment. The run goes on.
func (a *Attachment) Close() {
	a.run.mu.Lock()
	defer a.run.mu.Unlock()
	if a.run.attached == a {
		a.run.attached = nil
	}
}
