package serve_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command/cgrouptest"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/serve"
)

// The test binary is the agent's program, so it must be able to become the
// supervisor of a run.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == command.ShimCommand {
		if err := command.RunShim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	// patience bounds every wait of these tests, in an emulated machine on a
	// busy host too.
	patience = 5 * time.Minute
	// machineVariable names a unix socket that leads to the vsock of a
	// machine by "CONNECT port", whose agent is then tested too.
	machineVariable = "SANDBOX_TEST_MACHINE"
	instanceID      = "0190a0a0-0000-7000-8000-000000000001"
)

// agent is one agent under test.
type agent struct {
	agentv1.AgentClient
	// dir is a directory on the agent's side that a test may use.
	dir     string
	machine bool
}

// onEachAgent runs a test against the agent in this process with each
// containment, and against a machine when there is one.
func onEachAgent(t *testing.T, test func(t *testing.T, a agent)) {
	t.Helper()
	t.Run("subreaper", func(t *testing.T) { test(t, local(t, "")) })
	t.Run("cgroup2", func(t *testing.T) { test(t, local(t, cgrouptest.Delegated(t))) })
	t.Run("machine", func(t *testing.T) { test(t, machine(t)) })
}

func machine(t *testing.T) agent {
	t.Helper()
	path := os.Getenv(machineVariable)
	if path == "" {
		t.Skip("no machine; run with " + machineVariable + "=SOCKET go test ./guestagent/serve, where SOCKET leads to the vsock of a machine")
	}
	conn := dial(t, func(ctx context.Context, _ string) (net.Conn, error) { return dialHybrid(ctx, path) })
	return agent{AgentClient: agentv1.NewAgentClient(conn), dir: "/workspace", machine: true}
}

// dialHybrid asks the socket of a machine for the agent's port.
func dialHybrid(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", agentv1.Port); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// Byte by byte: what follows the line is the agent's.
	var line []byte
	for b := make([]byte, 1); len(line) < 32 && (len(line) == 0 || line[len(line)-1] != '\n'); {
		if _, err := c.Read(b); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		line = append(line, b[0])
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return nil, errors.Join(fmt.Errorf("no connection: %q", line), c.Close())
	}
	return c, nil
}

// local serves in this process, under the race detector.
func local(t *testing.T, cgroup string) agent {
	t.Helper()
	table, err := command.NewTable(command.Options{CgroupMount: cgroup})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	server, err := serve.New(serve.Config{InstanceID: instanceID, Version: "test", Log: log}, table)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := serve.Listen(t.Context(), "unix:"+path, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := server.Run(ctx, l)
		done <- err
	}()
	conn := dial(t, func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	})
	t.Cleanup(func() {
		cancel()
		conn.Close()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return agent{AgentClient: agentv1.NewAgentClient(conn), dir: t.TempDir()}
}

func dial(t *testing.T, dialer func(context.Context, string) (net.Conn, error)) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:agent", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func sh(script string, args ...string) *agentv1.RunSpec {
	return &agentv1.RunSpec{
		Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...), Root: "/", Timeout: durationpb.New(patience),
	}
}

// start starts a run that must start, and forgets it after the test.
func (a agent) start(t *testing.T, spec *agentv1.RunSpec) string {
	t.Helper()
	id := uuid.NewString()
	if _, err := a.StartRun(t.Context(), &agentv1.StartRunRequest{RunId: id, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_, _ = a.CancelRun(ctx, &agentv1.CancelRunRequest{RunId: id, Grace: durationpb.New(0)})
		_, _ = a.ReleaseRun(ctx, &agentv1.ReleaseRunRequest{RunId: id})
	})
	return id
}

// attachment is a well-behaved host end of an attachment.
type attachment struct {
	stream agentv1.Agent_AttachRunClient
	state  *agentv1.RunState
	sums   map[agentv1.Stream]hash.Hash
	sizes  map[agentv1.Stream]uint64
	tail   map[agentv1.Stream]string // the last kilobyte
	seq    uint64
	input  chan uint64 // accepted positions, for a feeder
	noAck  bool
	mu     sync.Mutex // of the sending half
}

func (p *attachment) send(r *agentv1.AttachRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream.Send(r)
}

func (a agent) attach(ctx context.Context, id string, after uint64) (*attachment, error) {
	stream, err := a.AttachRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Attach{Attach: &agentv1.Attach{RunId: id, AfterSeq: after}}}); err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetAttached() == nil {
		return nil, fmt.Errorf("first message is %v", first)
	}
	return &attachment{
		stream: stream, state: first.GetAttached(), seq: after,
		sums:  map[agentv1.Stream]hash.Hash{agentv1.Stream_STREAM_STDOUT: sha256.New(), agentv1.Stream_STREAM_STDERR: sha256.New()},
		sizes: map[agentv1.Stream]uint64{},
		tail:  map[agentv1.Stream]string{},
		input: make(chan uint64, 1),
	}, nil
}

// resume goes on with the sums of an earlier attachment.
func (p *attachment) resume(earlier *attachment) {
	p.sums, p.sizes, p.tail = earlier.sums, earlier.sizes, earlier.tail
}

// next takes one message. It returns io.EOF after exited.
func (p *attachment) next() (*agentv1.Exited, error) {
	msg, err := p.stream.Recv()
	if err != nil {
		return nil, err
	}
	switch r := msg.GetResponse().(type) {
	case *agentv1.AttachResponse_Output:
		return nil, p.output(r.Output)
	case *agentv1.AttachResponse_StdinAccepted:
		select {
		case <-p.input:
		default:
		}
		p.input <- r.StdinAccepted.GetOffset()
		return nil, nil
	case *agentv1.AttachResponse_Exited:
		if _, err := p.stream.Recv(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("after exited: %w", err)
		}
		return r.Exited, nil
	default:
		return nil, fmt.Errorf("unexpected %v", msg)
	}
}

func (p *attachment) output(o *agentv1.Output) error {
	if o.GetSeq() != p.seq+1 {
		return fmt.Errorf("seq %d after %d", o.GetSeq(), p.seq)
	}
	if o.GetOffset() != p.sizes[o.GetStream()] {
		return fmt.Errorf("%v: offset %d, want %d", o.GetStream(), o.GetOffset(), p.sizes[o.GetStream()])
	}
	p.seq = o.GetSeq()
	p.sizes[o.GetStream()] += uint64(len(o.GetData()))
	p.sums[o.GetStream()].Write(o.GetData())
	tail := p.tail[o.GetStream()] + string(o.GetData())
	p.tail[o.GetStream()] = tail[max(0, len(tail)-1024):]
	if p.noAck {
		return nil
	}
	return p.ack(p.seq)
}

// ack acknowledges. A stream that the agent has ended is learnt of by Recv.
func (p *attachment) ack(seq uint64) error {
	err := p.send(&agentv1.AttachRequest{Request: &agentv1.AttachRequest_Ack{Ack: &agentv1.Ack{Seq: seq}}})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// follow reads to the end.
func (p *attachment) follow() (*agentv1.Exited, error) {
	for {
		if e, err := p.next(); e != nil || err != nil {
			return e, err
		}
	}
}

func (p *attachment) stdout() string { return p.tail[agentv1.Stream_STREAM_STDOUT] }
func (p *attachment) stderr() string { return p.tail[agentv1.Stream_STREAM_STDERR] }

// result runs a spec to its end.
func (a agent) result(t *testing.T, spec *agentv1.RunSpec) (*attachment, *agentv1.Exited) {
	t.Helper()
	p, err := a.attach(t.Context(), a.start(t, spec), 0)
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.follow()
	if err != nil {
		t.Fatal(err)
	}
	return p, e
}
