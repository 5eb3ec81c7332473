package agentlink

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

const (
	stdout = agentv1.Stream_STREAM_STDOUT
	stderr = agentv1.Stream_STREAM_STDERR
)

// A guest that lies about a run is found out, blamed, and never waited for.
func TestFollowLies(t *testing.T) {
	big := strings.Repeat("x", agentv1.MaxChunk+1)
	huge := strings.Repeat("x", agentv1.MaxMessage+1)
	for name, msgs := range map[string][]*agentv1.AttachResponse{
		"gap":                   {runs(), out(1, stdout, 0, "a"), out(3, stdout, 1, "b")},
		"starts late":           {runs(), out(2, stdout, 0, "a")},
		"repeat":                {runs(), out(1, stdout, 0, "a"), out(1, stdout, 0, "a")},
		"backwards":             {runs(), out(1, stdout, 0, "a"), out(0, stdout, 1, "a")},
		"offset gap":            {runs(), out(1, stdout, 0, "a"), out(2, stdout, 2, "b")},
		"offset repeats":        {runs(), out(1, stdout, 0, "ab"), out(2, stdout, 1, "b")},
		"other stream's offset": {runs(), out(1, stdout, 0, "a"), out(2, stderr, 1, "b")},
		"offset not 0":          {runs(), out(1, stdout, 7, "a")},
		"offset wraps":          {runs(), out(1, stdout, math.MaxUint64, "a")},
		"empty chunk":           {runs(), out(1, stdout, 0, "")},
		"big chunk":             {runs(), out(1, stdout, 0, big)},
		"huge message":          {runs(), out(1, stdout, 0, huge)},
		"no stream":             {runs(), out(1, 0, 0, "a")},
		"unknown stream":        {runs(), out(1, 3, 0, "a")},
		"negative stream":       {runs(), out(1, -1, 0, "a")},
		"no attached":           {out(1, stdout, 0, "a")},
		"attached twice":        {runs(), runs()},
		"empty message":         {runs(), {}},
		"empty state":           {attached(nil)},
		"other run":             {attached(&agentv1.RunState{RunId: "other", Running: true})},
		"runs and ended":        {attached(&agentv1.RunState{RunId: testRun, Running: true, Exited: exited0(0, 0, 0)})},
		"ended without how":     {attached(&agentv1.RunState{RunId: testRun})},
		"acked beyond last":     {attached(&agentv1.RunState{RunId: testRun, Running: true, AckedSeq: 9})},
		"bad start time":        {attached(&agentv1.RunState{RunId: testRun, Running: true, StartedAt: &timestamppb.Timestamp{Nanos: -1}})},
		"input nobody sent":     {runs(), took(0)},
		"end too early":         {runs(), out(1, stdout, 0, "a"), end(exited0(2, 2, 0))},
		"end forgets output":    {runs(), out(1, stdout, 0, "a"), end(exited0(0, 0, 0))},
		"fewer bytes":           {runs(), out(1, stdout, 0, "ab"), end(exited0(1, 1, 0))},
		"more bytes":            {runs(), out(1, stdout, 0, "ab"), end(exited0(1, 2, 1))},
		"no cause":              {runs(), end(&agentv1.Exited{})},
		"unknown cause":         {runs(), end(&agentv1.Exited{Cause: 99})},
		"code too large":        {runs(), end(&agentv1.Exited{Cause: 1, Code: 256})},
		"code negative":         {runs(), end(&agentv1.Exited{Cause: 1, Code: -1})},
		"signal too large":      {runs(), end(&agentv1.Exited{Cause: 2, Signal: 65})},
		"bad end time":          {runs(), end(&agentv1.Exited{Cause: 1, EndedAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}})},
		"negative CPU time":     {runs(), end(&agentv1.Exited{Cause: 1, CpuTime: durationpb.New(-1)})},
		"end without end":       {runs(), end(nil)},
		"ends with status 0":    {runs()}, // again and again
		"ends at once":          {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{attach: script(nil, msgs...)}
			l := link(t, f.serve(t), Options{MaxBackoff: time.Millisecond})
			var got strings.Builder
			e, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: collect(&got)})
			if code(err) != CodeProtocol || instance.AsFault(err).Blame != instance.Guest {
				t.Errorf("answers %v, %v", e, err)
			}
		})
	}
}

// The same messages in order are believed.
func TestFollowTruth(t *testing.T) {
	f := &fake{attach: script(nil, runs(), out(1, stdout, 0, "ab"), out(2, stderr, 0, "c"), out(3, stdout, 2, "d"), end(exited0(3, 3, 1)))}
	l := link(t, f.serve(t), Options{})
	var got strings.Builder
	e, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: collect(&got)})
	if err != nil || e.GetLastSeq() != 3 || got.String() != "abcd" {
		t.Errorf("answers %v, %v, %q", e, err, got.String())
	}
}

// Errors that a status tells, and the connection's own.
func TestFollowStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code string
		is   error
	}{
		"unknown run":   {status.Error(codes.NotFound, "x"), CodeRunLost, ErrRunLost},
		"taken over":    {status.Error(codes.Aborted, "x"), CodeRunTakenOver, ErrTakenOver},
		"output gone":   {status.Error(codes.OutOfRange, "x"), CodeOutputGone, nil},
		"invalid":       {status.Error(codes.InvalidArgument, "x"), CodeInvalid, nil},
		"busy":          {status.Error(codes.ResourceExhausted, "x"), CodeBusy, nil},
		"escape":        {status.Error(codes.Unknown, "\x1b[2J\n"+strings.Repeat("y", 4000)), CodeInternal, nil},
		"unimplemented": {status.Error(codes.Unimplemented, "x"), CodeInternal, nil},
		"for ever away": {status.Error(codes.Unavailable, "x"), CodeProtocol, nil},
		"for ever torn": {status.Error(codes.Internal, "x"), CodeProtocol, nil},
		"late":          {status.Error(codes.DeadlineExceeded, "x"), CodeInternal, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{attach: script(c.err, runs())}
			l := link(t, f.serve(t), Options{MaxBackoff: time.Millisecond})
			_, err := l.FollowRun(patient(t), testRun, FollowOptions{Sink: collect(new(strings.Builder))})
			if code(err) != c.code || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("answers %v (%s)", err, code(err))
			}
			if strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 1000 {
				t.Errorf("the guest's text is not quoted and bounded: %q", err.Error())
			}
		})
	}
}

// A guest that is silent is not waited for longer than the call's time.
func TestSilentGuest(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	f := &fake{
		attach: func(s agentv1.Agent_AttachRunServer, _ *agentv1.Attach) error { return hang(s.Context()) },
		start: func(ctx context.Context, _ *agentv1.StartRunRequest) (*agentv1.RunState, error) {
			return nil, hang(ctx)
		},
		stats: func(ctx context.Context) (*agentv1.StatsResponse, error) { return nil, hang(ctx) },
		get:   func(s agentv1.Agent_GetFileServer) error { return hang(s.Context()) },
		put:   func(s agentv1.Agent_PutFileServer) error { return hang(s.Context()) },
	}
	l := link(t, f.serve(t), Options{CallTimeout: 200 * time.Millisecond})
	for name, call := range map[string]func(context.Context) error{
		"follow": func(ctx context.Context) error {
			_, err := l.FollowRun(ctx, testRun, FollowOptions{Sink: collect(new(strings.Builder))})
			return err
		},
		"start": func(ctx context.Context) error { _, err := l.StartRun(ctx, testRun, &agentv1.RunSpec{}); return err },
		"stats": func(ctx context.Context) error { _, err := l.Stats(ctx); return err },
		"get": func(ctx context.Context) error {
			_, err := l.GetFile(ctx, &agentv1.GetFileRequest{MaxBytes: 1}, io.Discard)
			return err
		},
		"put": func(ctx context.Context) error {
			return l.PutFile(ctx, &agentv1.PutFileHeader{}, strings.NewReader("x"))
		},
		"put much": func(ctx context.Context) error { return l.PutFile(ctx, &agentv1.PutFileHeader{}, endless{}) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(patient(t)); code(err) != CodeUnresponsive {
				t.Errorf("answers %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("answers %v to an ended context", err)
			}
		})
	}
}

// An agent that finds the deadline of a call past before we do has not
// answered in time; whose time it was, our own clock says.
func TestDeadlineOfTheGuest(t *testing.T) {
	f := &fake{stats: func(context.Context) (*agentv1.StatsResponse, error) {
		return nil, status.Error(codes.DeadlineExceeded, "too late")
	}}
	l := link(t, f.serve(t), Options{CallTimeout: 50 * time.Millisecond})
	if _, err := l.Stats(patient(t)); code(err) != CodeUnresponsive {
		t.Errorf("answers %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Stats(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("answers %v to the caller's deadline", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestHello(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*agentv1.HelloResponse)
		code   string
	}{
		"other instance": {func(h *agentv1.HelloResponse) { h.InstanceId = "0197c1f0-0000-7000-8000-000000000002" }, CodeWrongInstance},
		"no instance":    {func(h *agentv1.HelloResponse) { h.InstanceId = "" }, CodeWrongInstance},
		"version":        {func(h *agentv1.HelloResponse) { h.ProtocolVersion = 2 }, CodeVersion},
		"no nonce":       {func(h *agentv1.HelloResponse) { h.BootNonce = nil }, CodeProtocol},
		"long nonce":     {func(h *agentv1.HelloResponse) { h.BootNonce = make([]byte, 17) }, CodeProtocol},
		"many marks":     {func(h *agentv1.HelloResponse) { h.BootMarks = make([]*agentv1.BootMark, 65) }, CodeProtocol},
		"bad uptime":     {func(h *agentv1.HelloResponse) { h.Uptime = durationpb.New(-1) }, CodeProtocol},
		"bad mark": {func(h *agentv1.HelloResponse) {
			h.BootMarks = []*agentv1.BootMark{{SinceKernel: &durationpb.Duration{Nanos: -1}}}
		}, CodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{hello: func(*agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
				h := goodHello(0)
				c.change(h)
				return h, nil
			}}
			l, err := Connect(patient(t), f.serve(t), Options{InstanceID: testID})
			if err == nil {
				_ = l.Close()
			}
			if code(err) != c.code {
				t.Errorf("answers %v", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		f := &fake{hello: func(*agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
			return nil, status.Error(codes.FailedPrecondition, "no")
		}}
		if _, err := Connect(patient(t), f.serve(t), Options{InstanceID: testID}); code(err) != CodeRefused {
			t.Errorf("answers %v", err)
		}
	})
	t.Run("unprintable", func(t *testing.T) {
		f := &fake{hello: func(r *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
			if r.GetInstanceId() != testID.String() || r.GetHostTime() == nil || r.GetHostVersion() != "v" {
				t.Errorf("greeting is %v", r)
			}
			h := goodHello(0)
			h.Kernel = "6.1\x1b[2J\u202e" + strings.Repeat("ä", 500)
			return h, nil
		}}
		l := link(t, f.serve(t), Options{HostVersion: "v"})
		if k := l.Hello().GetKernel(); !strings.HasPrefix(k, "6.1?[2J?ää") || len(k) > maxWord {
			t.Errorf("kernel is %q", k)
		}
	})
}

func TestConnectWaits(t *testing.T) {
	good := (&fake{}).serve(t)
	var attempts atomic.Int32
	dial := func(ctx context.Context) (net.Conn, error) {
		switch n := attempts.Add(1); {
		case n < 10:
			return nil, errors.New("nobody listens yet")
		case n < 15: // accepts and hangs up, like a proxy in front of a guest
			a, b := net.Pipe()
			_ = b.Close()
			return a, nil
		}
		return good(ctx)
	}
	link(t, dial, Options{MaxBackoff: 2 * time.Millisecond})
	if n := attempts.Load(); n != 15 {
		t.Errorf("%d attempts", n)
	}
}

func TestConnectGivesUp(t *testing.T) {
	t.Run("machine is gone", func(t *testing.T) {
		_, err := Connect(patient(t), func(context.Context) (net.Conn, error) { return nil, vm.ErrGone }, Options{InstanceID: testID})
		if !errors.Is(err, vm.ErrGone) || instance.AsFault(err).Blame != instance.Guest {
			t.Errorf("answers %v", err)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := Connect(ctx, func(context.Context) (net.Conn, error) { return nil, errors.New("nobody listens") }, Options{InstanceID: testID})
		if !errors.Is(err, context.DeadlineExceeded) || code(err) != CodeUnreachable || !strings.Contains(err.Error(), "nobody listens") {
			t.Errorf("answers %v", err)
		}
	})
	t.Run("never greets", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var others []net.Conn
		_, err := Connect(ctx, func(context.Context) (net.Conn, error) {
			a, b := net.Pipe()
			others = append(others, b)
			return a, nil
		}, Options{InstanceID: testID, HelloTimeout: 20 * time.Millisecond})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("answers %v", err)
		}
		for _, c := range others {
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Errorf("a connection was left open: %v", err)
			}
		}
	})
	t.Run("no instance id", func(t *testing.T) {
		if _, err := Connect(patient(t), (&fake{}).serve(t), Options{}); err == nil {
			t.Error("is accepted")
		}
	})
}

func TestOtherAnswersAreChecked(t *testing.T) {
	many := make([]*agentv1.RunState, agentv1.MaxRuns+1)
	for i := range many {
		many[i] = &agentv1.RunState{RunId: strings.Repeat("r", i%100+1), Running: true}
	}
	var f fake
	l := link(t, f.serve(t), Options{})
	for name, list := range map[string][]*agentv1.RunState{
		"too many":   many,
		"twice":      {{RunId: "a", Running: true}, {RunId: "a", Running: true}},
		"no id":      {{Running: true}},
		"long id":    {{RunId: strings.Repeat("r", 200), Running: true}},
		"how it end": {{RunId: "a"}},
	} {
		f.list = func() *agentv1.ListRunsResponse { return &agentv1.ListRunsResponse{Runs: list} }
		if got, err := l.ListRuns(patient(t)); code(err) != CodeProtocol {
			t.Errorf("list %s: answers %v, %v", name, got, err)
		}
	}
	for name, s := range map[string]*agentv1.StatsResponse{
		"NaN":          {Load1: math.NaN()},
		"infinite":     {Load1: math.Inf(1)},
		"more memory":  {MemoryAvailable: 1},
		"more disk":    {DiskAvailable: 1},
		"bad time":     {Time: &timestamppb.Timestamp{Nanos: -1}},
		"bad uptime":   {Uptime: durationpb.New(-1)},
		"bad CPU time": {CpuBusy: &durationpb.Duration{Seconds: math.MaxInt64}},
	} {
		f.stats = func(context.Context) (*agentv1.StatsResponse, error) { return s, nil }
		if got, err := l.Stats(patient(t)); code(err) != CodeProtocol {
			t.Errorf("stats %s: answers %v, %v", name, got, err)
		}
	}
	f.start = func(context.Context, *agentv1.StartRunRequest) (*agentv1.RunState, error) {
		return &agentv1.RunState{RunId: "another", Running: true}, nil
	}
	if _, err := l.StartRun(patient(t), testRun, &agentv1.RunSpec{}); code(err) != CodeProtocol {
		t.Errorf("start: answers %v", err)
	}
}

func TestStartRunErrors(t *testing.T) {
	var f fake
	l := link(t, f.serve(t), Options{})
	for c, want := range map[codes.Code]string{
		codes.InvalidArgument:    CodeInvalid,
		codes.AlreadyExists:      CodeRunExists,
		codes.ResourceExhausted:  CodeBusy,
		codes.FailedPrecondition: CodeRunNotStarted,
		codes.Internal:           CodeInternal,
	} {
		f.start = func(context.Context, *agentv1.StartRunRequest) (*agentv1.RunState, error) {
			return nil, status.Error(c, "why")
		}
		if _, err := l.StartRun(patient(t), testRun, &agentv1.RunSpec{}); code(err) != want || !strings.Contains(err.Error(), `"why"`) {
			t.Errorf("%s: answers %v", c, err)
		}
	}
	huge := &agentv1.RunSpec{Argv: []string{strings.Repeat("x", agentv1.MaxMessage)}}
	if _, err := l.StartRun(patient(t), testRun, huge); code(err) != CodeInvalid {
		t.Errorf("a huge spec: answers %v", err)
	}
}

func TestGetFileLies(t *testing.T) {
	data := func(s string) *agentv1.GetFileResponse {
		return &agentv1.GetFileResponse{Response: &agentv1.GetFileResponse_Data{Data: []byte(s)}}
	}
	last := func(n uint64, s string) *agentv1.GetFileResponse {
		sum := sha256.Sum256([]byte(s))
		return &agentv1.GetFileResponse{Response: &agentv1.GetFileResponse_End{End: &agentv1.FileEnd{Size: n, Sha256: sum[:]}}}
	}
	var f fake
	l := link(t, f.serve(t), Options{})
	get := func(msgs []*agentv1.GetFileResponse, err error) error {
		f.get = func(s agentv1.Agent_GetFileServer) error {
			for _, m := range msgs {
				if err := s.Send(m); err != nil {
					return err
				}
			}
			return err
		}
		_, gerr := l.GetFile(patient(t), &agentv1.GetFileRequest{Path: "f", MaxBytes: 4}, io.Discard)
		return gerr
	}
	for name, msgs := range map[string][]*agentv1.GetFileResponse{
		"wrong digest": {data("ab"), last(2, "ac")},
		"wrong size":   {data("ab"), last(3, "ab")},
		"too much":     {data("abc"), data("de"), last(5, "abcde")},
		"empty chunk":  {data("")},
		"big chunk":    {data(strings.Repeat("x", agentv1.MaxChunk+1))},
		"no end":       {data("ab")},
		"nothing":      {},
		"empty":        {{}},
	} {
		if err := get(msgs, nil); code(err) != CodeProtocol {
			t.Errorf("%s: answers %v", name, err)
		}
	}
	if err := get([]*agentv1.GetFileResponse{data("ab"), data("c"), last(3, "abc")}, nil); err != nil {
		t.Errorf("a true file: answers %v", err)
	}
	for c, want := range map[codes.Code]string{
		codes.NotFound: CodeFileMissing, codes.OutOfRange: CodeFileTooLarge, codes.PermissionDenied: CodeFileRefused,
	} {
		if err := get(nil, status.Error(c, "x")); code(err) != want {
			t.Errorf("%s: answers %v", c, err)
		}
	}
}
