package agentlink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

func chunkOf(seq uint64, n int) *agentv1.Output {
	return &agentv1.Output{Seq: seq, Stream: stdout, Data: make([]byte, n)}
}

// startBatcher runs a batcher until it is finished.
func startBatcher(ctx context.Context, sink Sink, ack func(uint64, int)) (b *batcher, stopped <-chan struct{}) {
	actx, stop := context.WithCancel(context.WithoutCancel(ctx))
	b = newBatcher(sink, ack, stop)
	go b.run(ctx)
	return b, actx.Done()
}

// What arrives while the sink is busy becomes one batch, in order; the bounds
// hold whatever the sizes; a batch is acknowledged when it is stored and not
// before; a failing sink is not called again.
func TestBatcherModel(t *testing.T) {
	errFull := errors.New("disk full")
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, agentv1.MaxChunk)), 1, 200).Draw(rt, "sizes")
		failAt := rapid.IntRange(1, 400).Draw(rt, "fails at")
		busy := rapid.SliceOfN(rapid.IntRange(0, 20), 1, 8).Draw(rt, "busy")
		var put atomic.Int64
		var stored, acked uint64
		total, ackedBytes, calls := 0, 0, 0
		var wrong error
		sink := func(_ context.Context, batch []*agentv1.Output) error {
			if acked != stored {
				wrong = errors.New("a batch was handed over before the last was acknowledged")
			}
			cost := 0
			for _, c := range batch {
				if stored++; c.GetSeq() != stored {
					wrong = errors.New("out of order")
				}
				cost += len(c.GetData()) + chunkCost
				total += len(c.GetData())
			}
			if len(batch) == 0 || cost > MaxBatch {
				wrong = errors.New("a batch is empty or too large")
			}
			for range busy[calls%len(busy)] {
				runtime.Gosched()
			}
			calls++
			if stored >= uint64(failAt) {
				return errFull
			}
			return nil
		}
		b, stopped := startBatcher(t.Context(), sink, func(seq uint64, n int) { acked, ackedBytes = seq, ackedBytes+n })
		var perr error
		for i, n := range sizes {
			if perr = b.put(t.Context(), chunkOf(uint64(i+1), n)); perr != nil {
				break
			}
			put.Add(1)
		}
		err := b.finish()
		switch {
		case wrong != nil:
			rt.Fatal(wrong)
		case failAt > len(sizes) && (err != nil || perr != nil || stored != uint64(len(sizes)) || acked != stored || ackedBytes != total):
			rt.Fatalf("%v, %v after %d of %d, %d acknowledged", err, perr, stored, len(sizes), acked)
		case failAt <= len(sizes) && (!errors.Is(err, errFull) || acked >= uint64(failAt) || perr != nil && !errors.Is(perr, errFull)):
			rt.Fatalf("%v, %v after %d of %d, %d acknowledged", err, perr, stored, len(sizes), acked)
		}
		if err != nil {
			<-stopped
		}
	})
}

// gate is a sink that waits in its first call until it is opened.
type gate struct {
	entered chan struct{}
	open    chan struct{}
	batches [][]*agentv1.Output
}

func newGate() *gate { return &gate{entered: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) sink(_ context.Context, batch []*agentv1.Output) error {
	g.batches = append(g.batches, batch)
	if len(g.batches) == 1 {
		close(g.entered)
		<-g.open
	}
	return nil
}

// While a lone chunk is being stored, all that comes gathers for the next
// batch: two transactions, not a thousand.
func TestBatchGathers(t *testing.T) {
	g := newGate()
	b, _ := startBatcher(t.Context(), g.sink, func(uint64, int) {})
	for seq := range uint64(1000) {
		if err := b.put(t.Context(), chunkOf(seq+1, 40)); err != nil {
			t.Fatal(err)
		}
		if seq == 0 {
			<-g.entered // at once, with no more to come
		}
	}
	close(g.open)
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	if len(g.batches) != 2 || len(g.batches[0]) != 1 || len(g.batches[1]) != 999 {
		t.Errorf("%d batches, the first of %d", len(g.batches), len(g.batches[0]))
	}
}

// A sink that stands still holds up whoever puts, after so many bytes or so
// many chunks; the end of the context lets go.
func TestBatchIsBounded(t *testing.T) {
	for name, size := range map[string]int{"large": agentv1.MaxChunk, "tiny": 1} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			ctx, cancel := context.WithCancel(t.Context())
			b, stopped := startBatcher(ctx, g.sink, func(uint64, int) {})
			if err := b.put(ctx, chunkOf(1, size)); err != nil {
				t.Fatal(err)
			}
			<-g.entered
			fit := MaxBatch / (size + chunkCost)
			for i := range fit {
				if err := b.put(ctx, chunkOf(uint64(i)+2, size)); err != nil {
					t.Fatal(err)
				}
			}
			if b.add(chunkOf(uint64(fit)+2, size), size+chunkCost) {
				t.Errorf("chunk %d of %d bytes was taken", fit+2, size)
			}
			cancel()
			if err := b.put(ctx, chunkOf(uint64(fit)+2, size)); !errors.Is(err, context.Canceled) {
				t.Errorf("putting more answers %v", err)
			}
			close(g.open)
			if err := b.finish(); !errors.Is(err, context.Canceled) || len(g.batches) != 1 {
				t.Errorf("finishing answers %v after %d batches", err, len(g.batches))
			}
			<-stopped
		})
	}
}

// A program that prints a line, waits until it was stored and prints the next
// is never made to wait for company: the guest says nothing more until its
// chunk was acknowledged.
func TestLoneChunkIsStoredAtOnce(t *testing.T) {
	const chunks = 50
	f := &fake{attach: func(s agentv1.Agent_AttachRunServer, _ *agentv1.Attach) error {
		if err := s.Send(runs()); err != nil {
			return err
		}
		for i := range uint64(chunks) {
			if err := s.Send(out(i+1, stdout, i, "x")); err != nil {
				return err
			}
			m, err := s.Recv()
			if err != nil || m.GetAck().GetSeq() != i+1 {
				t.Errorf("chunk %d was answered by %v, %v", i+1, m, err)
				return err
			}
		}
		return s.Send(end(exited0(chunks, chunks, 0)))
	}}
	l := link(t, f.serve(t), Options{})
	calls := 0
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: func(_ context.Context, batch []*agentv1.Output) error {
		if calls++; len(batch) != 1 {
			t.Errorf("batch %d has %d chunks", calls, len(batch))
		}
		return nil
	}})
	if err != nil || calls != chunks {
		t.Errorf("%v after %d batches", err, calls)
	}
}

// talker sends size bytes in pieces, counting what was sent.
type talker struct {
	size, piece uint64
	sent        atomic.Uint64
	moved       chan struct{} // holds a token when sent has grown
}

func (k *talker) attach(s agentv1.Agent_AttachRunServer, a *agentv1.Attach) error {
	chunks := k.size / k.piece
	if err := s.Send(attached(&agentv1.RunState{RunId: testRun, Running: true, LastSeq: chunks, AckedSeq: a.GetAfterSeq()})); err != nil {
		return err
	}
	data := strings.Repeat("x", int(k.piece))
	for seq := a.GetAfterSeq() + 1; seq <= chunks; seq++ {
		if err := s.Send(out(seq, stdout, (seq-1)*k.piece, data)); err != nil {
			return err
		}
		k.sent.Store(max(k.sent.Load(), seq*k.piece))
		signal(k.moved)
	}
	return s.Send(end(exited0(chunks, k.size, 0)))
}

// A guest that does not wait for acknowledgements is held up by the link: what
// the host holds for it is bounded, however slow the sink is, and the slower it
// is, the larger are the batches.
func TestStalledSink(t *testing.T) {
	// Both batches, the window, and the buffers of either transport.
	const bound = 2*MaxBatch + streamWindow + 1<<20
	// What was sent and has not been received is in the stream's window, among
	// the guest's unsent writes or in the receiver's hands.
	const transit = streamWindow + 128<<10
	k := &talker{size: 32 << 20, piece: 32 << 10, moved: make(chan struct{}, 1)}
	f := &fake{attach: k.attach}
	l := link(t, f.serve(t), Options{})
	var stored, most, gathered uint64
	calls := 0
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: func(ctx context.Context, batch []*agentv1.Output) error {
		n := uint64(len(batch)) * k.piece
		if n < gathered {
			t.Errorf("batch %d has %d bytes of the %d that had come", calls, n, gathered)
		}
		// The sink stands still until that much must have come for the next batch,
		// but for the last ones ...
		gathered = MaxBatch / 2
		if stored+n+gathered+transit > k.size {
			gathered = 0
		}
		for gathered > 0 && k.sent.Load() < stored+n+gathered+transit {
			select {
			case <-k.moved:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		// ... and the guest goes on for as long as it can.
		for was := uint64(0); was != k.sent.Load(); {
			was = k.sent.Load()
			for range 100 {
				runtime.Gosched()
			}
		}
		most = max(most, k.sent.Load()-stored)
		calls++
		stored += n
		return nil
	}})
	if err != nil || stored != k.size {
		t.Fatalf("%v after %d bytes", err, stored)
	}
	if most > bound {
		t.Errorf("%d bytes were on the way, at most %d may be", most, bound)
	}
	t.Logf("%d chunks in %d batches, at most %d KiB on the way", k.size/k.piece, calls, most>>10)
}

// What an attachment has brought is stored before the next one begins, and
// that says how far: it acknowledges. Nothing comes twice.
func TestCutWhileStoring(t *testing.T) {
	k := &talker{size: 400 << 10, piece: 1 << 10, moved: make(chan struct{}, 1)}
	var stored atomic.Uint64
	attachments := 0
	f := &fake{}
	d := &tracked{dial: f.serve(t)}
	f.attach = func(s agentv1.Agent_AttachRunServer, a *agentv1.Attach) error {
		if attachments++; a.GetAfterSeq() != stored.Load() {
			t.Errorf("attached after %d, stored is %d", a.GetAfterSeq(), stored.Load())
		}
		return k.attach(s, a)
	}
	l := link(t, d.Dial, Options{MaxBackoff: time.Millisecond})
	cuts := 0
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: func(_ context.Context, batch []*agentv1.Output) error {
		if cuts < 5 { // before the end can have been told
			cuts++
			d.cut(false)
		}
		for _, c := range batch {
			if c.GetSeq() != stored.Load()+1 {
				t.Errorf("chunk %d after %d", c.GetSeq(), stored.Load())
			}
			stored.Store(c.GetSeq())
		}
		return nil
	}})
	if err != nil || stored.Load() != k.size/k.piece {
		t.Errorf("%v after %d chunks", err, stored.Load())
	}
	t.Logf("%d cuts, %d attachments", cuts, attachments)
}

// An ended context drops what waits, even if the run has ended by then: the
// guest still has it, and the end is not believed before all is stored.
func TestContextEndsWhileStoring(t *testing.T) {
	f := &fake{attach: script(nil, runs(), out(1, stdout, 0, "a"), out(2, stdout, 1, "b"), end(exited0(2, 2, 0)))}
	l := link(t, f.serve(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var last uint64
	calls := 0
	e, err := l.FollowRun(ctx, testRun, FollowOptions{Sink: func(_ context.Context, batch []*agentv1.Output) error {
		cancel()
		calls++
		last = batch[len(batch)-1].GetSeq()
		return nil
	}})
	if calls != 1 || !errors.Is(err, context.Canceled) && (err != nil || last != 2) {
		t.Errorf("answers %v, %v, the sink was called %d times up to %d", e, err, calls, last)
	}
}

// The first failure of the sink is what FollowRun says, whatever else came.
func TestSinkFailsBeforeLie(t *testing.T) {
	full := errors.New("disk full")
	lied := make(chan struct{})
	f := &fake{attach: func(s agentv1.Agent_AttachRunServer, a *agentv1.Attach) error {
		defer close(lied)
		return script(nil, runs(), out(1, stdout, 0, "a"), out(2, stdout, 1, "b"), out(9, stdout, 2, "c"))(s, a)
	}}
	l := link(t, f.serve(t), Options{})
	calls := 0
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: func(context.Context, []*agentv1.Output) error {
		calls++
		<-lied
		return full
	}})
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("answers %v after %d calls", err, calls)
	}
}

// What a message holds beside what we know of is not kept with the output.
func TestUnknownFieldsAreDropped(t *testing.T) {
	c := &agentv1.Output{Seq: 1, Stream: stdout, Data: []byte("a")}
	c.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, 100<<10)))
	f := &fake{attach: script(nil, runs(), &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Output{Output: c}}, end(exited0(1, 1, 0)))}
	l := link(t, f.serve(t), Options{})
	_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: Each(func(_ context.Context, c *agentv1.Output) error {
		if n := proto.Size(c); n > chunkCost {
			t.Errorf("it takes %d bytes", n)
		}
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
}

// Each hands chunks on one by one, up to the first error.
func TestEach(t *testing.T) {
	var got bytes.Buffer
	sink := Each(func(_ context.Context, c *agentv1.Output) error {
		if c.GetSeq() == 3 {
			return io.ErrShortWrite
		}
		return got.WriteByte('0' + byte(c.GetSeq()))
	})
	err := sink(t.Context(), []*agentv1.Output{chunkOf(1, 1), chunkOf(2, 1), chunkOf(3, 1), chunkOf(4, 1)})
	if !errors.Is(err, io.ErrShortWrite) || got.String() != "12" {
		t.Errorf("%v after %q", err, got.String())
	}
}
