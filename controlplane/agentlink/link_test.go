package agentlink

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// tracked is a dialer whose newest connection can be cut, and which can say
// that the machine is gone.
type tracked struct {
	dial Dialer
	mu   sync.Mutex
	last net.Conn
	gone bool
	n    int
}

func (d *tracked) Dial(ctx context.Context) (net.Conn, error) {
	d.mu.Lock()
	gone := d.gone
	d.mu.Unlock()
	if gone {
		return nil, vm.ErrGone
	}
	c, err := d.dial(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.n = c, d.n+1
	return c, err
}

func (d *tracked) cut(gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = gone
	_ = d.last.Close()
}

// follow follows in the background.
func follow(t *testing.T, ctx context.Context, l *Link, o FollowOptions) <-chan error { //nolint:revive // t comes first in tests
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := l.FollowRun(ctx, testRun, o)
		done <- err
	}()
	return done
}

// silent attaches, says one chunk, and then nothing any more.
func silent(s agentv1.Agent_AttachRunServer, a *agentv1.Attach) error {
	if err := s.Send(attached(&agentv1.RunState{RunId: testRun, Running: true, LastSeq: a.GetAfterSeq()})); err != nil {
		return err
	}
	if a.GetAfterSeq() == 0 {
		if err := s.Send(out(1, stdout, 0, "x")); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// once is a sink that says when the first chunk has come.
func once() (sink Sink, came <-chan struct{}) {
	c := make(chan struct{})
	var o sync.Once
	return func(context.Context, []*agentv1.Output) error { o.Do(func() { close(c) }); return nil }, c
}

func TestCloseEndsEverything(t *testing.T) {
	f := &fake{attach: silent}
	l := link(t, f.serve(t), Options{})
	sink, came := once()
	done := follow(t, patient(t), l, FollowOptions{Sink: sink})
	<-came
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("following answers %v", err)
	}
	<-l.Done()
	if _, err := l.Stats(patient(t)); !errors.Is(err, ErrClosed) || !errors.Is(l.Err(), ErrClosed) {
		t.Errorf("stats answers %v, the link ended by %v", err, l.Err())
	}
	if l.Connected() {
		t.Error("a closed link is connected")
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing again answers %v", err)
	}
}

func TestMachineGone(t *testing.T) {
	f := &fake{attach: silent}
	d := &tracked{dial: f.serve(t)}
	l := link(t, d.Dial, Options{})
	sink, came := once()
	done := follow(t, patient(t), l, FollowOptions{Sink: sink})
	<-came
	d.cut(true)
	if err := <-done; !errors.Is(err, vm.ErrGone) {
		t.Errorf("following answers %v", err)
	}
	<-l.Done()
	if !errors.Is(l.Err(), vm.ErrGone) {
		t.Errorf("link ended by %v", l.Err())
	}
	// What was asked for has happened.
	if err := l.PowerOff(patient(t)); err != nil {
		t.Errorf("power off answers %v", err)
	}
}

func TestContextEndsFollowing(t *testing.T) {
	f := &fake{attach: silent}
	l := link(t, f.serve(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	sink, came := once()
	done := follow(t, ctx, l, FollowOptions{Sink: sink})
	<-came
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("following answers %v", err)
	}
	if !l.Connected() {
		t.Error("the link was broken by it")
	}
}

func TestSinkFails(t *testing.T) {
	full := errors.New("disk full")
	f := &fake{attach: script(nil, runs(), out(1, stdout, 0, "a"), out(2, stdout, 1, "b"), end(exited0(2, 2, 0)))}
	l := link(t, f.serve(t), Options{})
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: func(context.Context, []*agentv1.Output) error { return full }})
	if !errors.Is(err, full) {
		t.Errorf("following answers %v", err)
	}
}

func TestInputFails(t *testing.T) {
	f := &fake{attach: silent}
	l := link(t, f.serve(t), Options{})
	sink, _ := once()
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: sink, Stdin: failing{}})
	if !errors.Is(err, errBrokenDisk) || code(err) != CodeInput {
		t.Errorf("following answers %v", err)
	}
}

func TestAnotherBoot(t *testing.T) {
	f := &fake{attach: silent}
	d := &tracked{dial: f.serve(t)}
	l := link(t, d.Dial, Options{})
	sink, came := once()
	done := follow(t, patient(t), l, FollowOptions{Sink: sink})
	<-came
	f.setNonce(1)
	d.cut(false)
	if err := <-done; !errors.Is(err, ErrRunLost) || code(err) != CodeRunLost {
		t.Errorf("following answers %v", err)
	}
}

// A start whose answer was lost is not repeated on a machine that was booted
// anew: the program would run twice.
func TestStartIsNotRepeatedAfterBoot(t *testing.T) {
	var f fake
	var starts atomic.Int32
	d := &tracked{dial: f.serve(t)}
	f.start = func(context.Context, *agentv1.StartRunRequest) (*agentv1.RunState, error) {
		if starts.Add(1) == 1 {
			f.setNonce(1)
		}
		return nil, status.Error(codes.Unavailable, "gone")
	}
	l := link(t, d.Dial, Options{})
	if _, err := l.StartRun(patient(t), testRun, &agentv1.RunSpec{}); !errors.Is(err, ErrRunLost) {
		t.Errorf("start answers %v", err)
	}
	if n := starts.Load(); n != 1 {
		t.Errorf("the program was started %d times", n)
	}
}

// Another machine behind the same address ends the link.
func TestAnotherMachine(t *testing.T) {
	f := &fake{attach: silent}
	d := &tracked{dial: f.serve(t)}
	l := link(t, d.Dial, Options{})
	other := &fake{hello: func(*agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
		h := goodHello(0)
		h.InstanceId = "0197c1f0-0000-7000-8000-000000000002"
		return h, nil
	}}
	dial := other.serve(t)
	d.mu.Lock()
	d.dial = dial
	d.mu.Unlock()
	d.cut(false)
	<-l.Done()
	if code(l.Err()) != CodeWrongInstance {
		t.Errorf("link ended by %v", l.Err())
	}
}

// Acknowledgements say what was stored, are few, and come without more output.
func TestAcks(t *testing.T) {
	const chunks = 5000
	var acks, last atomic.Uint64
	f := &fake{attach: func(s agentv1.Agent_AttachRunServer, _ *agentv1.Attach) error {
		if err := s.Send(runs()); err != nil {
			return err
		}
		for i := range uint64(chunks) {
			if err := s.Send(out(i+1, stdout, i*4, "data")); err != nil {
				return err
			}
		}
		for last.Load() < chunks {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			seq := m.GetAck().GetSeq()
			if seq <= last.Load() {
				return status.Errorf(codes.InvalidArgument, "acknowledged %d after %d", seq, last.Load())
			}
			acks.Add(1)
			last.Store(seq)
		}
		return s.Send(end(exited0(chunks, chunks*4, 0)))
	}}
	l := link(t, f.serve(t), Options{})
	var stored uint64
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: Each(func(_ context.Context, o *agentv1.Output) error {
		if last.Load() > stored {
			t.Errorf("%d was acknowledged before it was stored", last.Load())
		}
		stored = o.GetSeq()
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if n := acks.Load(); n > chunks/4 {
		t.Errorf("%d acknowledgements for %d chunks", n, chunks)
	}
}

// Followers see what is behind the state the agent tells, or an error.
func TestFollowFromTheMiddle(t *testing.T) {
	state := func(last, acked uint64) *agentv1.AttachResponse {
		return attached(&agentv1.RunState{RunId: testRun, Running: true, LastSeq: last, AckedSeq: acked})
	}
	for name, c := range map[string]struct {
		after uint64
		msgs  []*agentv1.AttachResponse
		code  string
		want  string
	}{
		"rest":             {3, []*agentv1.AttachResponse{state(4, 3), out(4, stdout, 100, "d"), end(exited0(4, 101, 9))}, "", "d"},
		"nothing left":     {3, []*agentv1.AttachResponse{state(3, 3), end(exited0(3, 101, 9))}, "", ""},
		"offsets still":    {3, []*agentv1.AttachResponse{state(5, 3), out(4, stdout, 100, "d"), out(5, stdout, 102, "e")}, CodeProtocol, "d"},
		"totals still":     {3, []*agentv1.AttachResponse{state(4, 3), out(4, stdout, 100, "d"), end(exited0(4, 100, 9))}, CodeProtocol, "d"},
		"beyond the end":   {9, []*agentv1.AttachResponse{state(4, 4)}, CodeOutputGone, ""},
		"acknowledged":     {3, []*agentv1.AttachResponse{state(6, 5)}, CodeOutputGone, ""},
		"not what we want": {3, []*agentv1.AttachResponse{state(4, 3), out(3, stdout, 0, "c")}, CodeProtocol, ""},
	} {
		f := &fake{attach: script(nil, c.msgs...)}
		l := link(t, f.serve(t), Options{MaxBackoff: time.Millisecond})
		var got strings.Builder
		_, err := l.FollowRun(patient(t), testRun, FollowOptions{AfterSeq: c.after, Sink: collect(&got)})
		if code(err) != c.code || (c.code == "" && err != nil) || got.String() != c.want {
			t.Errorf("%s: answers %v, %q", name, err, got.String())
		}
	}
}
