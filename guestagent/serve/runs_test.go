package serve_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command/cgrouptest"
)

func TestHello(t *testing.T) {
	onEachAgent(t, func(t *testing.T, a agent) {
		hello := func(id string, versions ...uint32) (*agentv1.HelloResponse, error) {
			return a.Hello(t.Context(), &agentv1.HelloRequest{ProtocolVersions: versions, InstanceId: id})
		}
		h, err := hello(instanceID, 1, 99)
		if err != nil {
			t.Fatal(err)
		}
		if h.GetProtocolVersion() != 1 || h.GetInstanceId() != instanceID || len(h.GetBootNonce()) != 16 || h.GetUptime().AsDuration() <= 0 {
			t.Errorf("hello: %v", h)
		}
		t.Logf("hello: %v", h)
		again, err := hello(instanceID, 1)
		if err != nil || !bytes.Equal(h.GetBootNonce(), again.GetBootNonce()) {
			t.Errorf("the nonce changed: %v", err)
		}
		if _, err := hello("0190a0a0-0000-7000-8000-00000000ffff", 1); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("another instance: %v", err)
		}
		if _, err := hello(instanceID, 99); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("no common version: %v", err)
		}
		if a.machine {
			if h.GetContainment() != "cgroup2" || len(h.GetBootMarks()) < 6 {
				t.Errorf("in a machine: %v", h)
			}
		}
	})
}

func TestBigOutputArrivesWhole(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		const size = 64 << 20
		line := "0123456789abcde\n"
		want := sha256.New()
		block := []byte(strings.Repeat(line, 4096))
		for range size / len(block) {
			want.Write(block)
		}
		p, e := a.result(t, sh(fmt.Sprintf("yes 0123456789abcde | head -c %d; exit 7", size)))
		if e.GetCause() != agentv1.Exited_CAUSE_EXITED || e.GetCode() != 7 || e.GetStdoutBytes() != size {
			t.Errorf("exited: %v", e)
		}
		if got := p.sums[agentv1.Stream_STREAM_STDOUT].Sum(nil); !bytes.Equal(got, want.Sum(nil)) {
			t.Error("the checksum differs")
		}
		if e.GetLastSeq() != p.seq {
			t.Errorf("last_seq %d, received %d", e.GetLastSeq(), p.seq)
		}
	})
}

// feed sends input within the window.
func feed(p *attachment, data []byte) error {
	var sent, accepted uint64
	for sent < uint64(len(data)) {
		n := min(uint64(len(data))-sent, agentv1.MaxChunk)
		for sent+n > accepted+agentv1.StdinWindow {
			accepted = <-p.input
		}
		if err := p.send(stdin(sent, data[sent:sent+n], false)); err != nil {
			return err
		}
		sent += n
	}
	return p.send(stdin(sent, nil, true))
}

func stdin(offset uint64, data []byte, eof bool) *agentv1.AttachRequest {
	return &agentv1.AttachRequest{Request: &agentv1.AttachRequest_Stdin{Stdin: &agentv1.Stdin{Offset: offset, Data: data, Eof: eof}}}
}

func withInput(spec *agentv1.RunSpec) *agentv1.RunSpec {
	spec.Stdin = true
	return spec
}

func TestInputGoesThroughWhole(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		for _, size := range []int{0, 1, agentv1.MaxChunk + 1, 10 << 20} {
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(data)
			p, err := a.attach(t.Context(), a.start(t, withInput(sh("cat"))), 0)
			if err != nil {
				t.Fatal(err)
			}
			fed := make(chan error, 1)
			go func() { fed <- feed(p, data) }()
			e, err := p.follow()
			if err != nil {
				t.Fatal(err)
			}
			if err := <-fed; err != nil {
				t.Errorf("feeding: %v", err)
			}
			want := sha256.Sum256(data)
			if got := p.sums[agentv1.Stream_STREAM_STDOUT].Sum(nil); !bytes.Equal(got, want[:]) || e.GetCode() != 0 {
				t.Errorf("%d bytes: %v", size, e)
			}
		}
	})
}

func TestInputRules(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		for name, c := range map[string]struct {
			requests []*agentv1.AttachRequest
			want     codes.Code
		}{
			"gap":          {[]*agentv1.AttachRequest{stdin(1, []byte("x"), false)}, codes.InvalidArgument},
			"after end":    {[]*agentv1.AttachRequest{stdin(0, []byte("x"), true), stdin(1, []byte("y"), false)}, codes.InvalidArgument},
			"attach twice": {[]*agentv1.AttachRequest{{Request: &agentv1.AttachRequest_Attach{Attach: &agentv1.Attach{}}}}, codes.InvalidArgument},
			"ack of what never came": {
				[]*agentv1.AttachRequest{{Request: &agentv1.AttachRequest_Ack{Ack: &agentv1.Ack{Seq: 9}}}}, codes.InvalidArgument},
		} {
			p, err := a.attach(t.Context(), a.start(t, withInput(sh("sleep 300"))), 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.requests {
				if err := p.send(r); err != nil {
					break
				}
			}
			if _, err := p.follow(); status.Code(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		p, err := a.attach(t.Context(), a.start(t, withInput(sh("sleep 300"))), 0)
		if err != nil {
			t.Fatal(err)
		}
		chunk := make([]byte, agentv1.MaxChunk)
		for i := range uint64(10) { // the pipe takes one or two, the window four
			if p.send(stdin(i*agentv1.MaxChunk, chunk, false)) != nil {
				break
			}
		}
		if _, err := p.follow(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("beyond the window: %v", err)
		}
	})
}

func TestInputOfProcessThatDoesNotRead(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		p, err := a.attach(t.Context(), a.start(t, withInput(sh("exec <&-; sleep 0.2; echo done"))), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := feed(p, make([]byte, agentv1.StdinWindow)); err != nil {
			t.Fatal(err)
		}
		if e, err := p.follow(); err != nil || e.GetCode() != 0 || p.stdout() != "done\n" {
			t.Errorf("%v %v %q", e, err, p.stdout())
		}
	})
}

// stubborn starts a tree that ignores SIGTERM and leaves every session, and
// says how to see whether any of it is alive.
func stubborn(mark string) *agentv1.RunSpec {
	return sh(`
trap '' TERM
setsid sh -c 'trap "" TERM; (setsid sh -c "trap \"\" TERM; echo deep; while :; do sleep 1; done" '$1' & wait) & while :; do sleep 1; done' $1 &
(trap '' TERM; while :; do sleep 1; done) &
echo up
while :; do sleep 1; done`, mark)
}

// alive counts processes whose command line holds mark, from inside.
func (a agent) alive(t *testing.T, mark string) int {
	t.Helper()
	// The mark is put together there, so that this very command has none.
	p, e := a.result(t, sh(`n=0; for f in /proc/[0-9]*/cmdline; do
if tr '\0' ' ' < $f 2>/dev/null | grep -q "$1$2"; then n=$((n+1)); fi; done; echo $n`, mark[:4], mark[4:]))
	var n int
	if _, err := fmt.Sscan(p.stdout(), &n); err != nil || e.GetCode() != 0 {
		t.Fatalf("cannot count: %v %v %q %q", err, e, p.stdout(), p.stderr())
	}
	return n
}

func TestStubbornTreeIsGoneAtTimeoutAndCancel(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		for _, how := range []agentv1.Exited_Cause{agentv1.Exited_CAUSE_TIMEOUT, agentv1.Exited_CAUSE_CANCELED} {
			mark := "tree" + hex.EncodeToString(sha256.New().Sum([]byte(uuid.NewString()))[:8])
			spec := stubborn(mark)
			spec.KillGrace = durationpb.New(500 * time.Millisecond)
			if how == agentv1.Exited_CAUSE_TIMEOUT {
				spec.Timeout = durationpb.New(5 * time.Second)
			}
			id := a.start(t, spec)
			p, err := a.attach(t.Context(), id, 0)
			if err != nil {
				t.Fatal(err)
			}
			for !strings.Contains(p.stdout(), "deep") || !strings.Contains(p.stdout(), "up") {
				if e, err := p.next(); err != nil || e != nil {
					t.Fatal(e, err)
				}
			}
			if how == agentv1.Exited_CAUSE_CANCELED {
				if n := a.alive(t, mark); n < 3 {
					t.Errorf("only %d processes before the cancel", n)
				}
				for range 2 {
					if _, err := a.CancelRun(t.Context(), &agentv1.CancelRunRequest{RunId: id}); err != nil {
						t.Fatal(err)
					}
				}
			}
			e, err := p.follow()
			if err != nil {
				t.Fatal(err)
			}
			if e.GetCause() != how || e.GetCode() != 128+9 || e.GetSignal() != 9 {
				t.Errorf("exited: %v", e)
			}
			if n := a.alive(t, mark); n != 0 {
				t.Errorf("%v: %d processes are left", how, n)
			}
		}
	})
}

func TestChildrenLingerAndAreKilled(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		mark := "ling" + uuid.NewString()
		p, e := a.result(t, sh(`(echo early; sleep 1; echo late; exec sleep 300 "$1") & sh -c 'sleep 300; : '$1 & exit 4`, mark))
		if e.GetCause() != agentv1.Exited_CAUSE_EXITED || e.GetCode() != 4 || p.stdout() != "early\nlate\n" {
			t.Errorf("%v %q", e, p.stdout())
		}
		if n := a.alive(t, mark); n != 0 {
			t.Errorf("%d processes are left", n)
		}
	})
}

func TestSignalsAreTold(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		_, e := a.result(t, sh("kill -SEGV $$"))
		if e.GetCause() != agentv1.Exited_CAUSE_SIGNALED || e.GetSignal() != 11 || e.GetCode() != 139 {
			t.Errorf("exited: %v", e)
		}
	})
}

func TestReattachLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		spec := sh(`i=0; while [ $i -lt 2000 ]; do echo "line $i"; echo "err $i" >&2; i=$((i+1)); done`)
		spec.OutputBuffer = agentv1.MinOutputBuffer
		id := a.start(t, spec)
		whole := &attachment{}
		var stored uint64
		for round := 0; ; round++ {
			ctx, cancel := context.WithCancel(t.Context())
			p, err := a.attach(ctx, id, stored)
			if err != nil {
				t.Fatal(err)
			}
			if round > 0 {
				p.resume(whole)
			}
			p.noAck = round%2 == 0 // acknowledged by the next attachment then
			var e *agentv1.Exited
			for range 1 + rand.IntN(20) {
				if e, err = p.next(); err != nil {
					t.Fatal(err)
				}
				if e != nil {
					break
				}
			}
			stored, whole = p.seq, p
			cancel()
			if e != nil {
				checkLines(t, whole, e)
				return
			}
		}
	})
}

func checkLines(t *testing.T, p *attachment, e *agentv1.Exited) {
	t.Helper()
	out, errOut := sha256.New(), sha256.New()
	for i := range 2000 {
		fmt.Fprintf(out, "line %d\n", i)
		fmt.Fprintf(errOut, "err %d\n", i)
	}
	if !bytes.Equal(out.Sum(nil), p.sums[agentv1.Stream_STREAM_STDOUT].Sum(nil)) ||
		!bytes.Equal(errOut.Sum(nil), p.sums[agentv1.Stream_STREAM_STDERR].Sum(nil)) {
		t.Error("the checksums differ")
	}
	if e.GetCode() != 0 || e.GetLastSeq() != p.seq {
		t.Errorf("exited: %v, received up to %d", e, p.seq)
	}
}

func TestNewerAttachmentTakesOver(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		id := a.start(t, withInput(sh("cat")))
		older, err := a.attach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		newer, err := a.attach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := older.follow(); status.Code(err) != codes.Aborted {
			t.Errorf("the older one: %v", err)
		}
		if err := feed(newer, []byte("to the newer one")); err != nil {
			t.Fatal(err)
		}
		if e, err := newer.follow(); err != nil || e.GetCode() != 0 || newer.stdout() != "to the newer one" {
			t.Errorf("%v %v %q", e, err, newer.stdout())
		}
		if _, err := a.attach(t.Context(), uuid.NewString(), 0); status.Code(err) != codes.NotFound {
			t.Errorf("unknown run: %v", err)
		}
	})
}

func TestFullBufferBlocksTheProcessAndTimeoutStillFires(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		spec := sh("exec yes")
		spec.OutputBuffer = agentv1.MinOutputBuffer
		spec.Timeout = durationpb.New(3 * time.Second)
		id := a.start(t, spec)
		p, err := a.attach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.noAck = true
		e, err := p.follow()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetCause() != agentv1.Exited_CAUSE_TIMEOUT || e.GetSignal() != 15 {
			t.Errorf("exited: %v", e)
		}
		// The buffer, what the pumps hold, and what was left in the pipe.
		if most := uint64(agentv1.MinOutputBuffer + 2*agentv1.MaxChunk + 64<<10); e.GetStdoutBytes() > most || e.GetStdoutBytes() != p.sizes[agentv1.Stream_STREAM_STDOUT] {
			t.Errorf("%d bytes of output, %d received, at most %d should have been read", e.GetStdoutBytes(), p.sizes[agentv1.Stream_STREAM_STDOUT], most)
		}
	})
}

func TestHundredRunsAtOnce(t *testing.T) {
	onEachAgent(t, func(t *testing.T, a agent) {
		var wg sync.WaitGroup
		for i := range 100 {
			id := a.start(t, sh(`echo "$1"; exit $(($1 % 100))`, strconv.Itoa(i)))
			wg.Go(func() {
				p, err := a.attach(t.Context(), id, 0)
				if err != nil {
					t.Error(err)
					return
				}
				e, err := p.follow()
				if err != nil || int(e.GetCode()) != i || p.stdout() != fmt.Sprintln(i) {
					t.Errorf("run %d: %v %v %q", i, e, err, p.stdout())
				}
			})
		}
		wg.Wait()
	})
}

func TestTooManyRuns(t *testing.T) {
	t.Parallel()
	// Not in a machine, where it would take the runs of other tests away.
	a := local(t, cgrouptest.Delegated(t))
	var last error
	for range agentv1.MaxRuns + 1 {
		spec := sh("echo kept")
		spec.OutputBuffer = agentv1.MinOutputBuffer
		if _, last = a.StartRun(t.Context(), &agentv1.StartRunRequest{RunId: uuid.NewString(), Spec: spec}); last != nil {
			break
		}
	}
	if status.Code(last) != codes.ResourceExhausted || !strings.Contains(last.Error(), "ReleaseRun") {
		t.Errorf("one too many: %v", last)
	}
	list, err := a.ListRuns(t.Context(), &agentv1.ListRunsRequest{})
	if err != nil || len(list.GetRuns()) != agentv1.MaxRuns {
		t.Errorf("%d runs, %v", len(list.GetRuns()), err)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		spec := sh("")
		spec.Argv = []string{"no-such-program", "x"}
		_, err := a.StartRun(t.Context(), &agentv1.StartRunRequest{RunId: uuid.NewString(), Spec: spec})
		st := status.Convert(err)
		if st.Code() != codes.FailedPrecondition || !strings.Contains(st.Message(), "no-such-program") || len(st.Details()) != 1 {
			t.Fatalf("%v %v", err, st.Details())
		}
		info, ok := st.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "PROGRAM_NOT_FOUND" || info.GetMetadata()["subject"] != "no-such-program" {
			t.Errorf("detail: %v", st.Details())
		}
	})
}

func TestMemoryLimitEndsTheRunAsOOM(t *testing.T) {
	t.Parallel()
	a := machine(t)
	spec := sh(`x=0123456789; while :; do x=$x$x; done`)
	spec.MemoryMax = 16 << 20
	_, e := a.result(t, spec)
	if e.GetCause() != agentv1.Exited_CAUSE_OOM || e.GetSignal() != 9 || e.GetMemoryPeak() < 8<<20 {
		t.Errorf("exited: %v", e)
	}
	spec = sh(`i=0; while [ $i -lt 50 ]; do sleep 5 & i=$((i+1)); done; wait`)
	spec.PidsMax = 10
	if p, e := a.result(t, spec); e.GetCode() == 0 {
		t.Errorf("50 processes with pids_max 10: %v %q", e, p.stderr())
	}
}

func TestReleaseNeedsTheEnd(t *testing.T) {
	t.Parallel()
	onEachAgent(t, func(t *testing.T, a agent) {
		id := a.start(t, withInput(sh("cat")))
		if _, err := a.ReleaseRun(t.Context(), &agentv1.ReleaseRunRequest{RunId: id}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("release of a running run: %v", err)
		}
		p, err := a.attach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.send(stdin(0, nil, true)); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := p.follow(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := a.ReleaseRun(t.Context(), &agentv1.ReleaseRunRequest{RunId: id}); err != nil {
				t.Error(err)
			}
		}
	})
}
