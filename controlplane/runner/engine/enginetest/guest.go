// Package enginetest is a guest for tests of the engine and of what is above
// it: it keeps the contract of the agent link with real processes of this
// host, and can be made to break, lie and vanish.
package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// Guest runs commands on this host. The zero value is ready.
type Guest struct {
	// Dir replaces working directories, which do not exist here. Empty: /.
	Dir string

	mu     sync.Mutex
	deaf   chan struct{} // closed when input is taken again; nil: it is
	err    error         // of Guest, when the machine is to be out of reach
	runs   map[string]*run
	starts int
}

var (
	_ engine.Guest  = (*Guest)(nil)
	_ engine.Guests = (*Guest)(nil)
)

// Guest implements engine.Guests.
func (g *Guest) Guest(ctx context.Context, _ instance.ID) (engine.Guest, error) {
	if err := ctx.Err(); err != nil {
		return nil, err //nolint:wrapcheck // a test's guest
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.err
}

// Break makes the machine unreachable with err, or reachable with nil.
func (g *Guest) Break(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// Deafen makes runs take no input until it is called with false.
func (g *Guest) Deafen(deaf bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case deaf && g.deaf == nil:
		g.deaf = make(chan struct{})
	case !deaf && g.deaf != nil:
		close(g.deaf)
		g.deaf = nil
	}
}

// hears waits until input is taken.
func (g *Guest) hears(stop <-chan struct{}) {
	g.mu.Lock()
	deaf := g.deaf
	g.mu.Unlock()
	if deaf == nil {
		return
	}
	select {
	case <-deaf:
	case <-stop:
	}
}

// Forget makes the guest lose all runs, as a restart of the machine does.
func (g *Guest) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runs {
		r.kill(agentv1.Exited_CAUSE_LOST)
		r.lose()
	}
	g.runs = nil
}

// Starts counts the processes started, Runs those not released.
func (g *Guest) Starts() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.starts
}

// Runs counts the runs that were not released.
func (g *Guest) Runs() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.runs)
}

// Inject appends output to every run as if its process had written it.
func (g *Guest) Inject(s agentv1.Stream, data []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runs {
		r.append(s, data)
	}
}

type run struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	feed  sync.Mutex // held by who writes stdin

	mu      sync.Mutex
	cause   agentv1.Exited_Cause
	chunks  []*agentv1.Output
	acked   uint64
	taken   uint64 // bytes of input in the pipe
	bytes   [3]uint64
	exited  *agentv1.Exited
	lost    bool
	changed chan struct{}
}

// StartRun implements engine.Guest.
func (g *Guest) StartRun(_ context.Context, id string, spec *agentv1.RunSpec) (*agentv1.RunState, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	if _, ok := g.runs[id]; ok {
		return &agentv1.RunState{RunId: id, Running: true}, nil
	}
	argv := spec.GetArgv()
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // a test's command, which outlives the call
	cmd.Dir = g.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range spec.GetEnv() {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r := &run{cmd: cmd, changed: make(chan struct{})}
	var err error
	if spec.GetStdin() {
		if r.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, err //nolint:wrapcheck // a test's guest
		}
	}
	cmd.Stdout = writer{r, agentv1.Stream_STREAM_STDOUT}
	cmd.Stderr = writer{r, agentv1.Stream_STREAM_STDERR}
	if err := cmd.Start(); err != nil {
		return nil, &instance.Fault{Blame: instance.Guest, Code: agentlink.CodeRunNotStarted, Err: err}
	}
	g.starts++
	if g.runs == nil {
		g.runs = map[string]*run{}
	}
	g.runs[id] = r
	timeout := time.AfterFunc(spec.GetTimeout().AsDuration(), func() { r.kill(agentv1.Exited_CAUSE_TIMEOUT) })
	go func() {
		_ = cmd.Wait() // its outcome is in ProcessState
		timeout.Stop()
		r.end()
	}()
	return &agentv1.RunState{RunId: id, Running: true}, nil
}

type writer struct {
	r *run
	s agentv1.Stream
}

func (w writer) Write(p []byte) (int, error) {
	for chunk := range bytesChunks(p, agentv1.MaxChunk) {
		w.r.append(w.s, chunk)
	}
	return len(p), nil
}

func bytesChunks(p []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(p) > 0 {
			k := min(n, len(p))
			if !yield(p[:k]) {
				return
			}
			p = p[k:]
		}
	}
}

func (r *run) append(s agentv1.Stream, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chunks = append(r.chunks, &agentv1.Output{
		Seq: uint64(len(r.chunks) + 1), Stream: s, Offset: r.bytes[s], Data: bytes.Clone(data),
	})
	r.bytes[s] += uint64(len(data))
	r.wake()
}

func (r *run) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *run) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	r.wake()
}

func (r *run) kill(cause agentv1.Exited_Cause) {
	r.mu.Lock()
	if r.cause == 0 && r.exited == nil {
		r.cause = cause
	}
	r.mu.Unlock()
	_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) // gone already is what was wanted
}

func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := &agentv1.Exited{
		Cause: r.cause, LastSeq: uint64(len(r.chunks)),
		StdoutBytes: r.bytes[agentv1.Stream_STREAM_STDOUT], StderrBytes: r.bytes[agentv1.Stream_STREAM_STDERR],
	}
	st, _ := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case r.cause != 0:
	case st.Signaled():
		x.Cause, x.Signal, x.Code = agentv1.Exited_CAUSE_SIGNALED, int32(st.Signal()), 128+int32(st.Signal())
	default:
		x.Cause, x.Code = agentv1.Exited_CAUSE_EXITED, int32(st.ExitStatus())
	}
	r.exited = x
	r.wake()
}

func (g *Guest) find(id string) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	r := g.runs[id]
	if r == nil {
		return nil, fmt.Errorf("cannot find run %q: %w", id, agentlink.ErrRunLost)
	}
	return r, nil
}

// FollowRun implements engine.Guest. Output below what was acknowledged is
// gone, as in a real guest.
func (g *Guest) FollowRun(ctx context.Context, id string, o agentlink.FollowOptions) (*agentv1.Exited, error) {
	r, err := g.find(id)
	if err != nil {
		return nil, err
	}
	if r.stdin != nil && o.Stdin != nil {
		defer g.feed(r, o)()
	}
	next, told := o.AfterSeq, uint64(0)
	for first := true; ; first = false {
		r.mu.Lock()
		changed, exited, lost, acked, taken := r.changed, r.exited, r.lost, r.acked, r.taken
		fresh := r.chunks[min(next, uint64(len(r.chunks))):]
		r.mu.Unlock()
		if o.Taken != nil && (first || taken > told) {
			told = taken
			if err := o.Taken(taken); err != nil {
				return nil, err
			}
		}
		if acked > next {
			return nil, errors.New("output was acknowledged and is forgotten")
		}
		if lost {
			return nil, fmt.Errorf("cannot follow run %q: %w", id, agentlink.ErrRunLost)
		}
		if len(fresh) > 0 {
			fresh = slices.Clone(fresh[:min(len(fresh), agentlink.MaxBatch/agentv1.MaxChunk)])
			next = fresh[len(fresh)-1].GetSeq()
			if err := o.Sink(ctx, fresh); err != nil {
				return nil, err
			}
			r.mu.Lock()
			r.acked = next
			r.mu.Unlock()
			if err := ctx.Err(); err != nil {
				return nil, err //nolint:wrapcheck // a test's guest
			}
			continue
		}
		if exited != nil {
			return exited, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err() //nolint:wrapcheck // a test's guest
		}
	}
}

// feed writes input to a run's pipe until the returned function is called.
func (g *Guest) feed(r *run, o agentlink.FollowOptions) (end func()) {
	done, stop := make(chan struct{}), make(chan struct{})
	go func() { // ends with the process at the latest, whose pipe it writes
		defer close(done)
		r.feed.Lock()
		defer r.feed.Unlock()
		at, buf := o.StdinOffset, make([]byte, 4096)
		for {
			g.hears(stop)
			n, err := o.Stdin.Read(buf)
			r.mu.Lock()
			skip := min(r.taken-min(r.taken, at), uint64(n))
			r.mu.Unlock()
			at += uint64(n)
			if uint64(n) > skip {
				_, _ = r.stdin.Write(buf[skip:n]) // dropped when nobody reads, as in a real guest
				r.mu.Lock()
				r.taken = at
				r.wake()
				r.mu.Unlock()
			}
			switch {
			case errors.Is(err, io.EOF):
				_ = r.stdin.Close()
				return
			case err != nil:
				return
			}
		}
	}()
	return func() {
		close(stop)
		if c, ok := o.Stdin.(io.Closer); ok {
			_ = c.Close()
			<-done
		}
	}
}

// CancelRun implements engine.Guest.
func (g *Guest) CancelRun(_ context.Context, id string, _ time.Duration) error {
	r, err := g.find(id)
	if err != nil {
		return err
	}
	r.kill(agentv1.Exited_CAUSE_CANCELED)
	return nil
}

// ReleaseRun implements engine.Guest.
func (g *Guest) ReleaseRun(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, id)
	return g.err
}
