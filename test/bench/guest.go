package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/test/bench/wire"
)

// guestPackage is the program in the guest; guestReady is what it says once it
// can be spoken to.
const (
	guestPackage = "agentic-sandbox.aiwg.io/sandbox/test/bench/testdata/guest"
	guestPath    = "/tmp/bench-guest"
	guestReady   = "bench guest ready"
)

// buildGuest builds the guest program into dir and returns it.
func buildGuest(ctx context.Context, dir string) ([]byte, error) {
	out := filepath.Join(dir, "guest")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, guestPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build the guest program: %w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// guest is a machine of the driver's with the guest program running in it.
type guest struct {
	*machine
	run    string        // id of the program's run
	cancel func()        // ends the following of it
	ended  chan struct{} // closed when it is followed no longer
	err    error         // why, once ended
	stream net.Conn      // raw vsock to wire.PortStream
	echo   net.Conn      // raw vsock to wire.PortEcho
}

// startGuest boots a machine and starts the program in it. Close it.
func startGuest(ctx context.Context, s *sandbox, program []byte) (*guest, error) {
	m, _, err := s.boot(ctx)
	if err != nil {
		return nil, err
	}
	g := &guest{machine: m, run: uuid.NewString(), ended: make(chan struct{})}
	if err := g.start(ctx, program); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start the guest program: %w", err), g.close(ctx))
	}
	return g, nil
}

func (g *guest) start(ctx context.Context, program []byte) error {
	follow, cancel := context.WithCancel(ctx)
	g.cancel = cancel
	ready := make(chan struct{})
	var said bytes.Buffer
	err := g.link.PutFile(ctx, &agentv1.PutFileHeader{
		Root: filepath.Dir(guestPath), Path: filepath.Base(guestPath), Mode: 0o755,
	}, bytes.NewReader(program))
	if err == nil {
		_, err = g.link.StartRun(ctx, g.run, runSpec(guestPath, "vsock"))
	}
	if err != nil {
		close(g.ended)
		return err
	}
	go func() {
		defer close(g.ended)
		exited, err := g.link.FollowRun(follow, g.run, agentlink.FollowOptions{
			Sink: agentlink.Each(func(_ context.Context, out *agentv1.Output) error {
				open := !bytes.Contains(said.Bytes(), []byte(guestReady))
				if said.Len() < wire.ChunkSize {
					_, _ = said.Write(out.GetData()) // never fails
				}
				if open && bytes.Contains(said.Bytes(), []byte(guestReady)) {
					close(ready)
				}
				return nil
			}),
		})
		g.err = fmt.Errorf("it ended: %v, %v, and said %q", exited, err, said.String())
	}()
	select {
	case <-ready:
	case <-g.ended:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.stream, err = g.inst.Dial(ctx, wire.PortStream); err != nil {
		return err
	}
	g.echo, err = g.inst.Dial(ctx, wire.PortEcho)
	return err
}

// close ends the program with its machine.
func (g *guest) close(ctx context.Context) error {
	for _, c := range []net.Conn{g.stream, g.echo} {
		if c != nil {
			_ = c.Close() // the machine goes as well
		}
	}
	g.cancel()
	<-g.ended
	return g.machine.close(ctx)
}

// runLimit bounds a run; the bench ends it long before.
const runLimit = time.Hour

func runSpec(argv ...string) *agentv1.RunSpec {
	return &agentv1.RunSpec{
		Argv: argv, Root: "/", WorkingDir: "/", Timeout: durationpb.New(runLimit),
		// As the engine asks for it: the agent's default.
		OutputBuffer: agentv1.DefaultOutputBuffer,
	}
}

// carry runs a command to its end, as an engine would, and returns how it
// ended; what it writes goes to w.
func (g *guest) carry(ctx context.Context, w io.Writer, argv ...string) (*agentv1.Exited, error) {
	id := uuid.NewString()
	if _, err := g.link.StartRun(ctx, id, runSpec(argv...)); err != nil {
		return nil, err
	}
	exited, err := g.link.FollowRun(ctx, id, agentlink.FollowOptions{
		Sink: agentlink.Each(func(_ context.Context, out *agentv1.Output) error {
			if out.GetStream() != agentv1.Stream_STREAM_STDOUT {
				return fmt.Errorf("it complains: %q", out.GetData())
			}
			_, err := w.Write(out.GetData())
			return err
		}),
	})
	if err != nil {
		return nil, err
	}
	if exited.GetCause() != agentv1.Exited_CAUSE_EXITED || exited.GetCode() != 0 {
		return nil, fmt.Errorf("%q ended with %v", argv, exited)
	}
	return exited, g.link.ReleaseRun(ctx, id)
}

// stream is a channel into a guest program.
type stream interface {
	io.ReadWriter
	SetDeadline(t time.Time) error
}

// bounded gives a stream the deadline of a context.
func bounded(ctx context.Context, s stream) error {
	deadline, _ := ctx.Deadline() // none is the zero time, which means none here as well
	return s.SetDeadline(deadline)
}

// sink sends data into the guest and returns how long it took until the guest
// had all of it and said so.
func sink(ctx context.Context, s stream, size, seed uint64) (time.Duration, error) {
	if err := bounded(ctx, s); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := wire.WriteRequest(s, wire.Request{Op: wire.OpSink, Size: size, Seed: seed}); err != nil {
		return 0, err
	}
	want, err := wire.Send(s, size, seed)
	if err != nil {
		return 0, err
	}
	got, err := wire.ReadAnswer(s)
	return time.Since(begin), errors.Join(err, same(got, want))
}

// source has the guest send data and returns how long it took until all of it
// had come.
func source(ctx context.Context, s stream, size, seed uint64) (time.Duration, error) {
	if err := bounded(ctx, s); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := wire.WriteRequest(s, wire.Request{Op: wire.OpSource, Size: size, Seed: seed}); err != nil {
		return 0, err
	}
	got, err := wire.Receive(s, size)
	if err != nil {
		return 0, err
	}
	want, err := wire.ReadAnswer(s)
	return time.Since(begin), errors.Join(err, same(got, want))
}

// ask has the guest do something that it measures by itself.
func ask(ctx context.Context, s stream, r wire.Request) (time.Duration, error) {
	if err := bounded(ctx, s); err != nil {
		return 0, err
	}
	if err := wire.WriteRequest(s, r); err != nil {
		return 0, err
	}
	nanoseconds, err := wire.ReadAnswer(s)
	return time.Duration(nanoseconds), err
}

func same(got, want uint64) error {
	if got != want {
		return fmt.Errorf("the data came changed: checksum is %x, want %x", got, want)
	}
	return nil
}
