package agentlink

import (
	"context"
	"fmt"
	"sync"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

const (
	// MaxBatch bounds the output handed to a Sink at once, and that which waits
	// behind it: the data, in bytes, and 128 for each chunk.
	MaxBatch = agentv1.DefaultOutputBuffer
	// chunkCost is charged for a chunk beside its data, so that a guest that
	// sends single bytes cannot make us hold more either.
	chunkCost = 128
)

// Sink takes a batch of output, in order and each chunk exactly once; a batch
// is never empty. All of it is acknowledged after the sink has returned nil and
// none of it otherwise. The sink owns the batch and is called by one goroutine
// at a time, not the caller's of FollowRun.
type Sink func(ctx context.Context, batch []*agentv1.Output) error

// Each is a Sink that hands the chunks of a batch to take one by one, until it
// fails.
func Each(take func(ctx context.Context, out *agentv1.Output) error) Sink {
	return func(ctx context.Context, batch []*agentv1.Output) error {
		for _, c := range batch {
			if err := take(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
}

// batcher stands between the receiver of an attachment and the sink. While the
// sink stores one batch, what arrives gathers for the next; a chunk that
// arrives while the sink is idle is stored at once.
type batcher struct {
	sink Sink
	ack  func(seq uint64, n int) // all up to seq is stored, n bytes more
	stop context.CancelFunc      // ends the attachment when storing has failed

	mu    sync.Mutex
	next  []*agentv1.Output
	cost  int // of next
	ended bool

	more chan struct{} // holds a token when there may be something in next, or the end
	room chan struct{} // holds a token when there may be room in next
	done chan struct{} // closed when the sink will not be called again
	err  error         // why not everything was stored; set before done is closed
}

// newBatcher makes a batcher whose run must be called.
func newBatcher(sink Sink, ack func(seq uint64, n int), stop context.CancelFunc) *batcher {
	return &batcher{sink: sink, ack: ack, stop: stop,
		more: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{})}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a chunk, waiting for room if need be. It fails when storing has
// failed or ctx ends. For one goroutine.
func (b *batcher) put(ctx context.Context, c *agentv1.Output) error {
	cost := len(c.GetData()) + chunkCost
	for !b.add(c, cost) {
		select {
		case <-b.room:
		case <-b.done:
			return b.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	signal(b.more)
	return nil
}

func (b *batcher) add(c *agentv1.Output, cost int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cost > 0 && b.cost+cost > MaxBatch {
		return false
	}
	b.next = append(b.next, c)
	b.cost += cost
	return true
}

// take returns what has gathered, and whether that was the last.
func (b *batcher) take() (batch []*agentv1.Output, ended bool) {
	b.mu.Lock()
	batch, b.next, b.cost, ended = b.next, nil, 0, b.ended
	b.mu.Unlock()
	signal(b.room)
	return batch, ended
}

// run hands batches to the sink until finish has been called and nothing is
// left, storing fails, or ctx ends: the guest keeps what is dropped then.
func (b *batcher) run(ctx context.Context) {
	defer close(b.done)
	for {
		batch, ended := b.take()
		if len(batch) == 0 {
			if ended {
				return
			}
			<-b.more
			continue
		}
		if b.err = ctx.Err(); b.err == nil {
			b.err = b.store(ctx, batch)
		}
		if b.err != nil {
			b.stop()
			return
		}
	}
}

func (b *batcher) store(ctx context.Context, batch []*agentv1.Output) error {
	first, last, n := batch[0].GetSeq(), batch[len(batch)-1].GetSeq(), 0
	for _, c := range batch {
		n += len(c.GetData())
	}
	if err := b.sink(ctx, batch); err != nil {
		return fmt.Errorf("cannot store output %d to %d: %w", first, last, err)
	}
	b.ack(last, n)
	return nil
}

// finish waits until all that was put is stored, and says why if it is not.
// Nothing may be put afterwards.
func (b *batcher) finish() error {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	signal(b.more)
	<-b.done
	return b.err
}
