package command_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command/cgrouptest"
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

// patience bounds every wait of these tests, on a busy machine too.
const patience = 2 * time.Minute

// onEachContainment runs a test with every way of containment this host has.
func onEachContainment(t *testing.T, test func(t *testing.T, table *command.Table)) {
	t.Helper()
	t.Run(command.ContainmentSubreaper, func(t *testing.T) {
		test(t, newTable(t, command.Options{}))
	})
	t.Run(command.ContainmentCgroup, func(t *testing.T) {
		test(t, newTable(t, command.Options{CgroupMount: cgrouptest.Delegated(t)}))
	})
}

func newTable(t *testing.T, opt command.Options) *command.Table {
	t.Helper()
	table, err := command.NewTable(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close(0) })
	return table
}

func spec(argv ...string) *agentv1.RunSpec {
	return &agentv1.RunSpec{Argv: argv, Root: "/", Timeout: durationpb.New(patience)}
}

func sh(script string) *agentv1.RunSpec { return spec("/bin/sh", "-c", script) }

// start starts a run that must start.
func start(t *testing.T, table *command.Table, s *agentv1.RunSpec) string {
	t.Helper()
	id := uuid.NewString()
	if _, err := table.Start(t.Context(), id, s); err != nil {
		t.Fatal(err)
	}
	return id
}

// follower is a well-behaved host end of an attachment.
type follower struct {
	t      *testing.T
	a      *command.Attachment
	ctx    context.Context
	stdout io.Writer
	stderr io.Writer
	seq    uint64
	offset map[agentv1.Stream]uint64
	// accepted is told of every acceptance of input.
	accepted func(offset uint64)
}

func attach(t *testing.T, table *command.Table, id string, after uint64, stdout, stderr io.Writer) *follower {
	t.Helper()
	run, err := table.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := run.Attach(after)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return &follower{t: t, a: a, ctx: ctx, stdout: stdout, stderr: stderr, seq: after, offset: map[agentv1.Stream]uint64{}}
}

// follow reads to the end and acknowledges all, checking the order.
func (f *follower) follow() (*agentv1.Exited, error) {
	var exited *agentv1.Exited
	for {
		next, err := f.a.Next(f.ctx)
		if errors.Is(err, io.EOF) {
			return exited, nil
		}
		if err != nil {
			return nil, err
		}
		if exited != nil {
			return nil, errors.New("something came after exited")
		}
		switch r := next.GetResponse().(type) {
		case *agentv1.AttachResponse_Output:
			if err := f.output(r.Output); err != nil {
				return nil, err
			}
		case *agentv1.AttachResponse_StdinAccepted:
			if f.accepted != nil {
				f.accepted(r.StdinAccepted.GetOffset())
			}
		case *agentv1.AttachResponse_Exited:
			exited = r.Exited
		}
	}
}

func (f *follower) output(o *agentv1.Output) error {
	if o.GetSeq() != f.seq+1 {
		return fmt.Errorf("seq %d after %d", o.GetSeq(), f.seq)
	}
	if len(o.GetData()) == 0 || len(o.GetData()) > agentv1.MaxChunk {
		return fmt.Errorf("a chunk of %d bytes", len(o.GetData()))
	}
	if want, ok := f.offset[o.GetStream()]; ok && want != o.GetOffset() {
		return fmt.Errorf("offset %d, want %d", o.GetOffset(), want)
	}
	f.seq = o.GetSeq()
	f.offset[o.GetStream()] = o.GetOffset() + uint64(len(o.GetData()))
	w := f.stdout
	if o.GetStream() == agentv1.Stream_STREAM_STDERR {
		w = f.stderr
	}
	if _, err := w.Write(o.GetData()); err != nil {
		return err
	}
	return f.a.Ack(o.GetSeq())
}

// result runs a spec to its end.
func result(t *testing.T, table *command.Table, s *agentv1.RunSpec) (stdout, stderr string, e *agentv1.Exited) {
	t.Helper()
	var out, errOut limitedBuffer
	e, err := attach(t, table, start(t, table, s), 0, &out, &errOut).follow()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), e
}

// limitedBuffer is for outputs that are known to be small.
type limitedBuffer struct{ data []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if len(b.data)+len(p) > 1<<20 {
		return 0, errors.New("more output than expected")
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

func (b *limitedBuffer) String() string { return string(b.data) }
