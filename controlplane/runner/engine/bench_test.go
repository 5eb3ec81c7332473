package engine_test

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// BenchmarkOutput carries out a command that writes much, over a real link and
// with the database on a real disk: by batches, and by a transaction for each
// chunk, to compare.
func BenchmarkOutput(b *testing.B) {
	for _, c := range []struct {
		name string
		talk talk
	}{
		{"lines", talk{chunks: 10_000, data: []byte("one line that somebody printed\n")}},
		{"bulk", talk{chunks: 1024, data: make([]byte, agentv1.MaxChunk)}},
	} {
		b.Run(c.name+"/batches", func(b *testing.B) { measure(b, &c.talk, false) })
		b.Run(c.name+"/singly", func(b *testing.B) { measure(b, &c.talk, true) })
	}
}

func measure(b *testing.B, k *talk, singly bool) {
	b.Helper()
	j := &countingJournal{}
	r := newRig(b, func(c *engine.Config) {
		j.Journal, c.Journal = c.Journal, j
		c.Guests = &talkingGuests{link: k.link(b), singly: singly}
	})
	b.SetBytes(int64(k.chunks * len(k.data)))
	events := uint64(0)
	for b.Loop() {
		id := r.submit("").ID
		for c := r.Changed(id); c != nil; c = r.Changed(id) {
			<-c
		}
		rec, err := r.db.Task(b.Context(), task.System(), id, task.View{Inline: -1})
		if err != nil || rec.Status.State != task.Completed {
			b.Fatalf("ended as %+v, %v", rec.Status, err)
		}
		events += rec.LastSeq
	}
	b.ReportMetric(float64(k.chunks*b.N)/b.Elapsed().Seconds(), "chunks/s")
	b.ReportMetric(float64(j.calls)/float64(b.N), "commits/op")
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
}

// countingJournal counts transactions.
type countingJournal struct {
	task.Journal
	calls int
}

func (j *countingJournal) Output(ctx context.Context, id string, chunks []task.Chunk, p task.Progress) error {
	j.calls++
	return j.Journal.Output(ctx, id, chunks, p)
}

// talk is an agent whose every run writes the same chunk again and again, as
// fast as the link and the run's buffer take it.
type talk struct {
	agentv1.UnimplementedAgentServer
	chunks int
	data   []byte
}

func (k *talk) Hello(_ context.Context, r *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{
		ProtocolVersion: agentv1.ProtocolVersion, InstanceId: r.GetInstanceId(), BootNonce: bytes.Repeat([]byte{1}, 16),
	}, nil
}

func (k *talk) StartRun(_ context.Context, r *agentv1.StartRunRequest) (*agentv1.RunState, error) {
	return &agentv1.RunState{RunId: r.GetRunId(), Running: true}, nil
}

func (k *talk) ReleaseRun(context.Context, *agentv1.ReleaseRunRequest) (*agentv1.ReleaseRunResponse, error) {
	return &agentv1.ReleaseRunResponse{}, nil
}

func (k *talk) AttachRun(s agentv1.Agent_AttachRunServer) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	state := &agentv1.RunState{RunId: m.GetAttach().GetRunId(), Running: true}
	if err := s.Send(&agentv1.AttachResponse{Response: &agentv1.AttachResponse_Attached{Attached: state}}); err != nil {
		return err
	}
	size := uint64(len(k.data))
	acked, window := uint64(0), agentv1.DefaultOutputBuffer/(size+96) // as the agent counts
	for seq := uint64(1); seq <= uint64(k.chunks); seq++ {
		for seq-acked > window {
			if m, err = s.Recv(); err != nil {
				return err
			}
			acked = max(acked, m.GetAck().GetSeq())
		}
		out := &agentv1.Output{Seq: seq, Stream: agentv1.Stream_STREAM_STDOUT, Offset: (seq - 1) * size, Data: k.data}
		if err := s.Send(&agentv1.AttachResponse{Response: &agentv1.AttachResponse_Output{Output: out}}); err != nil {
			return err
		}
	}
	x := &agentv1.Exited{Cause: agentv1.Exited_CAUSE_EXITED, LastSeq: uint64(k.chunks), StdoutBytes: uint64(k.chunks) * size}
	return s.Send(&agentv1.AttachResponse{Response: &agentv1.AttachResponse_Exited{Exited: x}})
}

// link serves the agent and connects to it.
func (k *talk) link(b *testing.B) *agentlink.Link {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(b.Context(), "unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s := grpc.NewServer()
	agentv1.RegisterAgentServer(s, k)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) }) // until it is stopped
	b.Cleanup(func() { s.Stop(); wg.Wait() })
	dial := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) }
	link, err := agentlink.Connect(b.Context(), dial, agentlink.Options{InstanceID: machine().ID})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = link.Close() }) // never fails
	return link
}

// talkingGuests answer by one link.
type talkingGuests struct {
	link   *agentlink.Link
	singly bool
}

// Guest implements engine.Guests.
func (g *talkingGuests) Guest(context.Context, instance.ID) (engine.Guest, error) {
	if g.singly {
		return singleGuest{g.link}, nil
	}
	return g.link, nil
}

// singleGuest hands output over in batches of one chunk.
type singleGuest struct{ *agentlink.Link }

func (g singleGuest) FollowRun(ctx context.Context, id string, o agentlink.FollowOptions) (*agentv1.Exited, error) {
	sink := o.Sink
	o.Sink = agentlink.Each(func(ctx context.Context, c *agentv1.Output) error {
		return sink(ctx, []*agentv1.Output{c})
	})
	return g.Link.FollowRun(ctx, id, o)
}
