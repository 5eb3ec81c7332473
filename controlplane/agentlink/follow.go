package agentlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const (
	// ackBytes of delivered output are acknowledged at once, less after
	// ackDelay. It is below MinOutputBuffer's default so that a run does not
	// stall on an acknowledgement that waits for company.
	ackBytes = agentv1.DefaultOutputBuffer / 4
	ackDelay = 5 * time.Millisecond
	// maxFutile attachments in a row that bring nothing are a guest's fault.
	maxFutile = 20
)

// FollowOptions say from where to follow a run.
type FollowOptions struct {
	// AfterSeq is the newest chunk the caller has stored; 0 is none.
	AfterSeq uint64
	// Sink stores the output. An error of it ends FollowRun. Required.
	Sink Sink
	// Stdin is the run's input; its end is the end of input. Nil sends none
	// and leaves the input open. If it is an io.Closer, it is closed when
	// FollowRun returns, which must end a blocked Read; otherwise one Read may
	// outlive FollowRun.
	Stdin io.Reader
	// StdinOffset is the position of Stdin's first byte in the whole input.
	// What the agent has taken already is read and dropped.
	StdinOffset uint64
	// Taken, if set, is told up to which position the agent has taken the
	// input: on every attachment, and whenever it changes. An error of it ends
	// FollowRun. It must not block for long and is not called any more once
	// FollowRun has returned. It does not wait for the sink: output that came
	// before may not be stored yet.
	Taken func(offset uint64) error
}

// FollowRun delivers the output of a run and feeds its input until it has
// ended. It outlives broken connections. When ctx ends, its error is returned
// and the run goes on. A silent run of a living guest is followed for ever:
// bound it by ctx.
//
// While the sink stores one batch, the output that comes meanwhile gathers for
// the next, up to MaxBatch; beyond that the guest is held up. Nothing else
// delays output. Once FollowRun has returned, the sink is not called any more.
//
// Errors: ErrRunLost, ErrTakenOver, the error of ctx, of Sink or of the link's
// end, or a fault with CodeProtocol of a guest that lies.
func (l *Link) FollowRun(ctx context.Context, runID string, o FollowOptions) (*agentv1.Exited, error) {
	f := &follower{
		link: l, runID: runID, sink: o.Sink, taken: o.Taken, out: newOutput(o.AfterSeq), what: fmt.Sprintf("follow run %q", runID),
	}
	if o.Stdin != nil {
		f.in = newInput(o.Stdin, o.StdinOffset)
		defer f.in.close()
	}
	return f.follow(ctx)
}

// follower follows one run over as many connections as it takes.
type follower struct {
	link  *Link
	runID string
	what  string
	sink  Sink
	taken func(uint64) error // nil: nobody asks
	out   *output            // as received; the same as stored while there is no attachment
	in    *input             // nil: no input
	nonce []byte
}

func (f *follower) follow(ctx context.Context) (*agentv1.Exited, error) {
	b := newBackoff(f.link.opts.MaxBackoff)
	futile := 0
	for {
		s, err := f.link.session(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ended(ctx, f.what, false)
		case err != nil:
			return nil, fmt.Errorf("cannot %s: %w", f.what, err)
		case f.nonce != nil && !bytes.Equal(f.nonce, s.hello.GetBootNonce()):
			return nil, lostRun(f.what, "the machine was booted anew")
		}
		f.nonce = s.hello.GetBootNonce()
		before := f.progress()
		exited, err := f.attach(ctx, s)
		switch {
		case err == nil:
			return exited, nil
		case ctx.Err() != nil && !errors.As(err, new(*instance.Fault)):
			return nil, ended(ctx, f.what, true)
		case !errors.Is(err, errBroken):
			return nil, err
		}
		s.kill()
		futile++
		if f.progress() != before {
			futile = 0
			b.reset()
		}
		if futile > maxFutile {
			return nil, lie("%d attachments to run %q in a row broke without any output", futile, f.runID)
		}
		if b.wait(ctx) != nil {
			return nil, ended(ctx, f.what, true)
		}
	}
}

// progress grows whenever the run moved on.
func (f *follower) progress() uint64 {
	p := f.out.seq
	if f.in != nil {
		p += f.in.taken()
	}
	return p
}

// attach follows the run over one connection; what it has received is stored
// when it returns, unless the sink failed or ctx ended. errBroken: try the next
// one.
func (f *follower) attach(ctx context.Context, s *session) (*agentv1.Exited, error) {
	actx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.AttachRun(actx)
	if err != nil {
		return nil, f.explain(err)
	}
	err = stream.Send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Attach{
		Attach: &agentv1.Attach{RunId: f.runID, AfterSeq: f.out.seq}}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, f.explain(err)
	}
	// The state must come soon; what follows may take as long as it likes.
	var late atomic.Bool
	watchdog := time.AfterFunc(f.link.opts.CallTimeout, func() { late.Store(true); cancel() })
	first, err := stream.Recv()
	watchdog.Stop()
	if late.Load() {
		return nil, fault(instance.Guest, CodeUnresponsive, "the machine may hang; see its console",
			fmt.Errorf("cannot %s: agent did not answer in time", f.what))
	}
	if err != nil {
		return nil, f.explain(err)
	}
	if err := f.attached(first.GetAttached()); err != nil {
		return nil, err
	}
	snd := newSender(stream, f.in, cancel, f.out.seq)
	go snd.run(actx)
	defer func() { cancel(); <-snd.done }()
	b := newBatcher(f.sink, snd.ack, cancel)
	go b.run(ctx) // an attachment that breaks does not cut the sink short
	exited, err := f.receive(ctx, stream.Recv, b)
	cancel() // whatever the guest says now is of no use
	if serr := b.finish(); serr != nil {
		return nil, fmt.Errorf("cannot %s: %w", f.what, serr)
	}
	return exited, err
}

// attached checks the first message of an attachment.
func (f *follower) attached(st *agentv1.RunState) error {
	if err := checkState(st, f.runID); err != nil {
		return err
	}
	switch {
	case st.GetLastSeq() < f.out.seq:
		if f.out.seq != f.out.start {
			return lie("run %q has output up to %d, but %d came before", f.runID, st.GetLastSeq(), f.out.seq)
		}
		return fault(instance.Caller, CodeOutputGone, "",
			fmt.Errorf("cannot %s after output %d: its newest is %d", f.what, f.out.seq, st.GetLastSeq()))
	case st.GetAckedSeq() > f.out.seq:
		return fault(instance.Caller, CodeOutputGone, "",
			fmt.Errorf("cannot %s after output %d: %d was acknowledged and is forgotten", f.what, f.out.seq, st.GetAckedSeq()))
	}
	if f.in == nil {
		return nil
	}
	if err := f.in.attach(st.GetStdinAccepted()); err != nil {
		return err
	}
	return f.tell(st.GetStdinAccepted())
}

// tell passes on how much of the input the agent has taken.
func (f *follower) tell(offset uint64) error {
	if f.taken == nil {
		return nil
	}
	return f.taken(offset)
}

// receive takes messages until the end of the run or of the connection.
func (f *follower) receive(ctx context.Context, recv func() (*agentv1.AttachResponse, error), b *batcher) (*agentv1.Exited, error) {
	for {
		m, err := recv()
		if f.in != nil {
			if ierr := f.in.err(); ierr != nil {
				return nil, fault(instance.Caller, CodeInput, "", fmt.Errorf("cannot %s: cannot read its input: %w", f.what, ierr))
			}
		}
		if err != nil {
			return nil, f.explain(err)
		}
		switch r := m.GetResponse().(type) {
		case *agentv1.AttachResponse_Output:
			if err := f.out.take(r.Output); err != nil {
				return nil, err
			}
			// What we do not know of is not held: nothing bounds it.
			r.Output.ProtoReflect().SetUnknown(nil)
			if err := b.put(ctx, r.Output); err != nil {
				return nil, err
			}
		case *agentv1.AttachResponse_StdinAccepted:
			if f.in == nil {
				return nil, lie("it took input that nobody sent")
			}
			if err := f.in.accept(r.StdinAccepted.GetOffset()); err != nil {
				return nil, err
			}
			if err := f.tell(r.StdinAccepted.GetOffset()); err != nil {
				return nil, err
			}
		case *agentv1.AttachResponse_Exited:
			return r.Exited, f.out.finish(r.Exited)
		default:
			return nil, lie("unexpected message %T", r)
		}
	}
}

// explain turns the end of an attachment into an error; errBroken when the
// next connection may do better. End of stream proves nothing.
func (f *follower) explain(err error) error {
	if errors.Is(err, io.EOF) {
		return errBroken
	}
	if isLost(err) || status.Code(err) == codes.Internal {
		return errBroken
	}
	return statusFault(f.what, err, meanings{
		codes.NotFound: func(string) error { return lostRun(f.what, "the agent does not know it") },
		codes.OutOfRange: func(string) error {
			return fault(instance.Caller, CodeOutputGone, "",
				fmt.Errorf("cannot %s after output %d: it was acknowledged and is forgotten", f.what, f.out.seq))
		},
		codes.Aborted: func(string) error {
			return fault(instance.Host, CodeRunTakenOver, "", fmt.Errorf("cannot %s: %w", f.what, ErrTakenOver))
		},
	})
}
