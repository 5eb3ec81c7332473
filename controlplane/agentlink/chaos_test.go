package agentlink

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/test/rig/agentbin"
)

// agent is the real one.
var agent agentbin.Agent

func TestMain(m *testing.M) { os.Exit(agent.Main(m)) }

// realAgent is the agent as a process of this host.
type realAgent struct {
	dir  string
	cmd  *exec.Cmd
	dial Dialer
}

// startAgent starts an agent in dir and waits until it listens.
func startAgent(t *testing.T, dir string) *realAgent {
	t.Helper()
	config, err := json.Marshal(agentv1.BootConfig{Version: agentv1.BootConfigVersion, InstanceID: testID.String(), Hostname: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &realAgent{dir: dir, dial: dialUnix(filepath.Join(dir, "s"))}
	a.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), agent.Path(t),
		"serve", "--listen", "unix:"+filepath.Join(dir, "s"), "--config", filepath.Join(dir, "boot.json"))
	a.cmd.Stderr = os.Stderr
	pipe, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	if line, err := bufio.NewReader(pipe).ReadString('\n'); err != nil || !strings.Contains(line, "ready") {
		t.Fatalf("agent says %q, %v", line, err)
	}
	return a
}

func (a *realAgent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait() // it was killed
}

// peak is the most memory the agent ever had, in bytes.
func (a *realAgent) peak(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(data)
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// chaos is a dialer whose connections are cut after a random number of bytes,
// as many times as it has cuts.
type chaos struct {
	dial Dialer
	most int64 // bytes a connection lives for, at most
	cuts atomic.Int32
	made atomic.Int32
}

func (c *chaos) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.made.Add(1)
	if c.cuts.Add(-1) < 0 {
		return conn, nil
	}
	k := &cutConn{Conn: conn}
	k.left.Store(1 + rand.Int64N(c.most))
	return k, nil
}

type cutConn struct {
	net.Conn
	left atomic.Int64
}

var errCut = errors.New("the cable was cut")

func (k *cutConn) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	return k.spend(n, err)
}

func (k *cutConn) Write(p []byte) (int, error) {
	// Half of what is written when the cable is cut still arrives.
	if left := k.left.Load(); left < int64(len(p)) {
		_, _ = k.Conn.Write(p[:max(left, 0)])
		return k.spend(len(p), nil)
	}
	n, err := k.Conn.Write(p)
	return k.spend(n, err)
}

func (k *cutConn) spend(n int, err error) (int, error) {
	if k.left.Add(-int64(n)) <= 0 {
		_ = k.Conn.Close()
		return 0, errCut
	}
	return n, err
}

func realLink(t *testing.T, dial Dialer) *Link {
	t.Helper()
	return link(t, dial, Options{MaxBackoff: 20 * time.Millisecond})
}

func startScript(t *testing.T, l *Link, script string, change func(*agentv1.RunSpec)) string {
	t.Helper()
	id := uuid.NewString()
	spec := &agentv1.RunSpec{
		Argv: []string{"/bin/sh", "-c", script}, Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Root: "/", WorkingDir: "/", Timeout: durationpb.New(10 * time.Minute),
	}
	if change != nil {
		change(spec)
	}
	if _, err := l.StartRun(patient(t), id, spec); err != nil {
		t.Fatal(err)
	}
	return id
}

// 64 MiB over a link that is cut twenty times: every byte once, in order, and
// nobody holds more than a little of it.
func TestEveryByteOnce(t *testing.T) {
	a := startAgent(t, t.TempDir())
	c := &chaos{dial: a.dial, most: 4 << 20}
	c.cuts.Store(20)
	l := realLink(t, c.Dial)
	const size = 64 << 20
	file := filepath.Join(t.TempDir(), "data")
	run := startScript(t, l, fmt.Sprintf("head -c %d /dev/urandom >%s; sha256sum <%s >&2; cat %s; exit 7", size, file, file, file), nil)

	hash, errs := sha256.New(), strings.Builder{}
	var seq, bytesOut, highest uint64
	e, err := l.FollowRun(patient(t), run, FollowOptions{Sink: Each(func(_ context.Context, o *agentv1.Output) error {
		if o.GetSeq() != seq+1 {
			t.Errorf("chunk %d after %d", o.GetSeq(), seq)
		}
		if seq = o.GetSeq(); seq%64 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			highest = max(highest, m.HeapInuse)
		}
		if o.GetStream() == agentv1.Stream_STREAM_STDERR {
			errs.Write(o.GetData())
			return nil
		}
		bytesOut += uint64(len(o.GetData()))
		hash.Write(o.GetData())
		return nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if e.GetCause() != agentv1.Exited_CAUSE_EXITED || e.GetCode() != 7 || e.GetStdoutBytes() != size || bytesOut != size {
		t.Errorf("ended as %v after %d bytes", e, bytesOut)
	}
	if want := fmt.Sprintf("%x  -\n", hash.Sum(nil)); errs.String() != want {
		t.Errorf("checksum is %q, want %q", errs.String(), want)
	}
	if n := c.made.Load(); n < 21 {
		t.Errorf("only %d connections were made", n)
	}
	if highest > 64<<20 {
		t.Errorf("the host held %d bytes", highest)
	}
	if p := a.peak(t); p > 96<<20 {
		t.Errorf("the agent held %d bytes", p)
	}
	t.Logf("%d connections, host heap at most %d MiB, agent at most %d MiB", c.made.Load(), highest>>20, a.peak(t)>>20)
}

// The same in both directions: what goes in comes out.
func TestInputOverCutLink(t *testing.T) {
	a := startAgent(t, t.TempDir())
	c := &chaos{dial: a.dial, most: 1 << 20}
	c.cuts.Store(20)
	l := realLink(t, c.Dial)
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	run := startScript(t, l, "cat", func(s *agentv1.RunSpec) { s.Stdin = true })
	var got bytes.Buffer
	e, err := l.FollowRun(patient(t), run, FollowOptions{
		Stdin: bytes.NewReader(data),
		Sink:  Each(func(_ context.Context, o *agentv1.Output) error { got.Write(o.GetData()); return nil }),
	})
	if err != nil || e.GetCode() != 0 {
		t.Fatalf("%v, %v", e, err)
	}
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes came back of %d, or others", got.Len(), len(data))
	}
}

// Connections so short that most do not even greet.
func TestShortConnections(t *testing.T) {
	a := startAgent(t, t.TempDir())
	c := &chaos{dial: a.dial, most: 1200}
	c.cuts.Store(60)
	l := realLink(t, c.Dial)
	for i := range 5 {
		word := fmt.Sprintf("word %d", i)
		run := startScript(t, l, "echo "+word, nil)
		var got strings.Builder
		if _, err := l.FollowRun(patient(t), run, FollowOptions{Sink: collect(&got)}); err != nil {
			t.Fatal(err)
		}
		if got.String() != word+"\n" {
			t.Errorf("output is %q, want %q", got.String(), word)
		}
		if err := l.ReleaseRun(patient(t), run); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := l.ListRuns(patient(t)); err != nil || len(left) != 0 {
		t.Errorf("runs left: %v, %v", left, err)
	}
}

// Several runs on one cut link do not disturb each other.
func TestManyRunsOverCutLink(t *testing.T) {
	a := startAgent(t, t.TempDir())
	c := &chaos{dial: a.dial, most: 2 << 20}
	c.cuts.Store(10)
	l := realLink(t, c.Dial)
	var wg sync.WaitGroup
	for i := range 8 {
		run := startScript(t, l, fmt.Sprintf("i=0; while [ $i -lt 2000 ]; do echo %d $i; i=$((i+1)); done; head -c 1000000 /dev/zero", i), nil)
		wg.Go(func() {
			var lines bytes.Buffer
			e, err := l.FollowRun(patient(t), run, FollowOptions{Sink: Each(func(_ context.Context, o *agentv1.Output) error {
				lines.Write(o.GetData())
				return nil
			})})
			if err != nil || e.GetCode() != 0 {
				t.Errorf("run %d: %v, %v", i, e, err)
				return
			}
			var want bytes.Buffer
			for n := range 2000 {
				fmt.Fprintf(&want, "%d %d\n", i, n)
			}
			want.Write(make([]byte, 1000000))
			if !bytes.Equal(lines.Bytes(), want.Bytes()) {
				t.Errorf("run %d: %d bytes, want %d, or others", i, lines.Len(), want.Len())
			}
		})
	}
	wg.Wait()
}

func TestFilesOverCutLink(t *testing.T) {
	a := startAgent(t, t.TempDir())
	c := &chaos{dial: a.dial, most: 4 << 20}
	l := realLink(t, c.Dial)
	root := t.TempDir()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	c.cuts.Store(10)
	put := func(r io.Reader) error {
		return l.PutFile(patient(t), &agentv1.PutFileHeader{Root: root, Path: "d/f", Mode: 0o640, MakeParents: true}, r)
	}
	if err := put(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "d/f"))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("file has %d bytes, %v", len(got), err)
	}
	if fi, err := os.Stat(filepath.Join(root, "d/f")); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("mode is %v, %v", fi.Mode(), err)
	}
	c.cuts.Store(0)
	var back bytes.Buffer
	for { // reading cannot start over by itself: the caller may
		back.Reset()
		if _, err = l.GetFile(patient(t), &agentv1.GetFileRequest{Root: root, Path: "d/f", MaxBytes: 1 << 20}, &back); code(err) != CodeUnreachable {
			break
		}
	}
	if err != nil || !bytes.Equal(back.Bytes(), data) {
		t.Errorf("got %d bytes, %v", back.Len(), err)
	}
	if _, err := l.GetFile(patient(t), &agentv1.GetFileRequest{Root: root, Path: "d/f", MaxBytes: 1<<20 - 1}, io.Discard); code(err) != CodeFileTooLarge {
		t.Errorf("too large a file: %v", err)
	}
	if _, err := l.GetFile(patient(t), &agentv1.GetFileRequest{Root: root, Path: "none", MaxBytes: 1}, io.Discard); code(err) != CodeFileMissing {
		t.Errorf("no file: %v", err)
	}
	if err := l.PutFile(patient(t), &agentv1.PutFileHeader{Root: root, Path: "../out"}, strings.NewReader("x")); err == nil {
		t.Error("a path outside is accepted")
	}
	// A source that fails leaves no file.
	if err := l.PutFile(patient(t), &agentv1.PutFileHeader{Root: root, Path: "half"}, io.MultiReader(strings.NewReader("x"), failing{})); code(err) != CodeInput {
		t.Errorf("a failing source: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "half")); err == nil {
		t.Error("half a file was left")
	}
}

func TestPutArchive(t *testing.T) {
	a := startAgent(t, t.TempDir())
	l := realLink(t, a.dial)
	root := filepath.Join(t.TempDir(), "new")
	archive := func(path string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o600, Size: 5}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	h := &agentv1.PutArchiveHeader{Root: root}
	r, err := l.PutArchive(patient(t), h, archive("d/f"))
	if err != nil || r.GetBytes() != 5 {
		t.Fatalf("%v, %v", r, err)
	}
	if got, err := os.ReadFile(filepath.Join(root, "d/f")); err != nil || string(got) != "hello" {
		t.Errorf("file holds %q, %v", got, err)
	}
	if _, err := l.PutArchive(patient(t), h, archive("../out")); code(err) != CodeInvalid {
		t.Errorf("an entry outside answers %v", err)
	}
	if _, err := l.PutArchive(patient(t), h, strings.NewReader(strings.Repeat("no tar ", 1<<18))); err == nil || code(err) == CodeUnresponsive {
		t.Errorf("what is no archive answers %v", err)
	}
}

type failing struct{}

var errBrokenDisk = errors.New("broken disk")

func (failing) Read([]byte) (int, error) { return 0, errBrokenDisk }

// An agent that starts anew on the same socket is another boot: its runs are
// lost, and the link says so instead of waiting.
func TestAgentStartsAnew(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	l := realLink(t, a.dial)
	first := string(l.Hello().GetBootNonce())
	run := startScript(t, l, "echo ready; sleep 1000", nil)
	started := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := l.FollowRun(patient(t), run, FollowOptions{Sink: Each(func(context.Context, *agentv1.Output) error { close(started); return nil })})
		done <- err
	}()
	<-started
	a.kill()
	startAgent(t, dir)
	if err := <-done; !errors.Is(err, ErrRunLost) {
		t.Errorf("follow answers %v", err)
	}
	if err := l.CancelRun(patient(t), run, 0); !errors.Is(err, ErrRunLost) {
		t.Errorf("cancel answers %v", err)
	}
	if err := l.ReleaseRun(patient(t), run); err != nil {
		t.Errorf("release answers %v", err)
	}
	if string(l.Hello().GetBootNonce()) == first {
		t.Error("the nonce is the same")
	}
}

func TestCancelAndTakeOver(t *testing.T) {
	a := startAgent(t, t.TempDir())
	l, other := realLink(t, a.dial), realLink(t, a.dial)
	run := startScript(t, l, "trap '' TERM; echo ready; while :; do sleep 1000; done", nil)
	ready := make(chan struct{}, 2)
	sink := Each(func(context.Context, *agentv1.Output) error { ready <- struct{}{}; return nil })
	first := make(chan error, 1)
	go func() {
		_, err := l.FollowRun(patient(t), run, FollowOptions{Sink: sink})
		first <- err
	}()
	<-ready
	ctx, cancel := context.WithCancel(patient(t))
	second := make(chan error, 1)
	go func() {
		_, err := other.FollowRun(ctx, run, FollowOptions{Sink: sink, AfterSeq: 1})
		second <- err
	}()
	if err := <-first; !errors.Is(err, ErrTakenOver) {
		t.Errorf("the first follower ends with %v", err)
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the second follower ends with %v", err)
	}
	if err := l.ReleaseRun(patient(t), run); code(err) != CodeRunRunning {
		t.Errorf("releasing a running run answers %v", err)
	}
	if err := l.CancelRun(patient(t), run, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	e, err := l.FollowRun(patient(t), run, FollowOptions{Sink: sink, AfterSeq: 1})
	if err != nil || e.GetCause() != agentv1.Exited_CAUSE_CANCELED {
		t.Errorf("ended as %v, %v", e, err)
	}
	if _, err := l.FollowRun(patient(t), run, FollowOptions{Sink: sink}); code(err) != CodeOutputGone {
		t.Errorf("following from before what was acknowledged answers %v", err)
	}
}

// A link that goes dead without a word is noticed and replaced.
func TestDeadLink(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for keepalive, about 20 s; to enable: go test without -short")
	}
	t.Parallel()
	a := startAgent(t, t.TempDir())
	var conns atomic.Int32
	hole := newHole()
	l := realLink(t, func(ctx context.Context) (net.Conn, error) {
		c, err := a.dial(ctx)
		if err == nil && conns.Add(1) == 1 {
			c = &holeConn{c, hole}
		}
		return c, err
	})
	run := startScript(t, l, "echo one; read x; echo two", func(s *agentv1.RunSpec) { s.Stdin = true })
	in, feed := io.Pipe()
	var got strings.Builder
	_, err := l.FollowRun(patient(t), run, FollowOptions{Stdin: in, Sink: Each(func(_ context.Context, o *agentv1.Output) error {
		got.Write(o.GetData())
		if got.String() == "one\n" {
			hole.open()
			go func() { _, _ = feed.Write([]byte("go on\n")) }()
		}
		return nil
	})})
	if err != nil || got.String() != "one\ntwo\n" || conns.Load() < 2 {
		t.Errorf("%v, output %q, %d connections", err, got.String(), conns.Load())
	}
}

// hole swallows everything once it is open.
type hole struct {
	swallow atomic.Bool
	opened  chan struct{}
}

func newHole() *hole { return &hole{opened: make(chan struct{})} }

func (h *hole) open() {
	if !h.swallow.Swap(true) {
		close(h.opened)
	}
}

type holeConn struct {
	net.Conn
	hole *hole
}

func (c *holeConn) Write(p []byte) (int, error) {
	if c.hole.swallow.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *holeConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.hole.swallow.Load() {
			return n, err
		}
	}
}

func TestPowerOff(t *testing.T) {
	a := startAgent(t, t.TempDir())
	l := realLink(t, a.dial)
	if _, err := l.Stats(patient(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.PowerOff(patient(t)); err != nil {
		t.Fatal(err)
	}
	// Killed by nobody: it ends by itself, in order.
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("agent ended with %v", err)
	}
}
