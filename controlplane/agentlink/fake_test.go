package agentlink

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const testID = instance.ID("0197c1f0-0000-7000-8000-000000000001")

// fake is a guest that does whatever a test wants, over a real connection.
type fake struct {
	agentv1.UnimplementedAgentServer
	hello  func(*agentv1.HelloRequest) (*agentv1.HelloResponse, error)
	attach func(agentv1.Agent_AttachRunServer, *agentv1.Attach) error
	start  func(context.Context, *agentv1.StartRunRequest) (*agentv1.RunState, error)
	list   func() *agentv1.ListRunsResponse
	stats  func(context.Context) (*agentv1.StatsResponse, error)
	get    func(agentv1.Agent_GetFileServer) error
	put    func(agentv1.Agent_PutFileServer) error

	mu    sync.Mutex
	nonce byte
}

func (f *fake) setNonce(b byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nonce = b
}

func (f *fake) Hello(_ context.Context, r *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	if f.hello != nil {
		return f.hello(r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return goodHello(f.nonce), nil
}

func goodHello(nonce byte) *agentv1.HelloResponse {
	return &agentv1.HelloResponse{ProtocolVersion: 1, InstanceId: testID.String(), BootNonce: []byte(strings.Repeat(string(rune('a'+nonce)), 16))}
}

func (f *fake) AttachRun(s agentv1.Agent_AttachRunServer) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	return f.attach(s, first.GetAttach())
}

func (f *fake) StartRun(ctx context.Context, r *agentv1.StartRunRequest) (*agentv1.RunState, error) {
	return f.start(ctx, r)
}

func (f *fake) ListRuns(context.Context, *agentv1.ListRunsRequest) (*agentv1.ListRunsResponse, error) {
	return f.list(), nil
}

func (f *fake) Stats(ctx context.Context, _ *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	return f.stats(ctx)
}

func (f *fake) GetFile(_ *agentv1.GetFileRequest, s agentv1.Agent_GetFileServer) error {
	return f.get(s)
}
func (f *fake) PutFile(s agentv1.Agent_PutFileServer) error { return f.put(s) }

// serve runs the fake and returns how to dial it.
func (f *fake) serve(t *testing.T) Dialer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxSendMsgSize(64<<20), grpc.MaxRecvMsgSize(agentv1.MaxMessage))
	agentv1.RegisterAgentServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return dialUnix(path)
}

func dialUnix(path string) Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func link(t *testing.T, dial Dialer, o Options) *Link {
	t.Helper()
	o.InstanceID = testID
	l, err := Connect(patient(t), dial, o)
	if err != nil {
		t.Fatalf("cannot connect: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

const testRun = "0197c1f0-0000-7000-8000-0000000000aa"

// Messages of a run, as the agent sends them.

func attached(st *agentv1.RunState) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Attached{Attached: st}}
}

func runs() *agentv1.AttachResponse {
	return attached(&agentv1.RunState{RunId: testRun, Running: true})
}

func out(seq uint64, stream agentv1.Stream, offset uint64, data string) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Output{
		Output: &agentv1.Output{Seq: seq, Stream: stream, Offset: offset, Data: []byte(data)}}}
}

func end(e *agentv1.Exited) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_Exited{Exited: e}}
}

func took(offset uint64) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Response: &agentv1.AttachResponse_StdinAccepted{StdinAccepted: &agentv1.StdinAccepted{Offset: offset}}}
}

func exited0(seq, stdout, stderr uint64) *agentv1.Exited {
	return &agentv1.Exited{Cause: agentv1.Exited_CAUSE_EXITED, LastSeq: seq, StdoutBytes: stdout, StderrBytes: stderr}
}

// script sends messages and then ends the stream with err.
func script(err error, msgs ...*agentv1.AttachResponse) func(agentv1.Agent_AttachRunServer, *agentv1.Attach) error {
	return func(s agentv1.Agent_AttachRunServer, _ *agentv1.Attach) error {
		for _, m := range msgs {
			if serr := s.Send(m); serr != nil {
				return serr
			}
		}
		return err
	}
}

// collect is a sink that keeps everything.
func collect(b *strings.Builder) Sink {
	return Each(func(_ context.Context, o *agentv1.Output) error {
		b.Write(o.GetData())
		return nil
	})
}

func code(err error) string {
	var f *instance.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}
