package agentlink

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// TestLinkThatBreaksFillsNoLog: a guest that greets, as one started anew, and
// hangs up, over and over, is told of once.
func TestLinkThatBreaksFillsNoLog(t *testing.T) {
	const times = 20
	var nonce atomic.Uint32
	f := &fake{
		hello: func(*agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
			return goodHello(byte(nonce.Add(1) % 2)), nil
		},
		stats: func(context.Context) (*agentv1.StatsResponse, error) { return &agentv1.StatsResponse{}, nil },
	}
	dial := f.serve(t)
	conns := make(chan net.Conn, times)
	var log lines
	l := link(t, func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err == nil {
			select {
			case conns <- c:
			case <-ctx.Done():
			}
		}
		return c, err
	}, Options{MaxBackoff: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range times {
		if _, err := l.Stats(patient(t)); err != nil {
			t.Fatal(err)
		}
		if err := (<-conns).Close(); err != nil && !errors.Is(err, net.ErrClosed) { // the link may be first
			t.Fatal(err)
		}
	}
	if n := log.n.Load(); n > 2 {
		t.Errorf("the log has %d lines of it", n)
	}
}

// lines counts the lines of a log.
type lines struct{ n atomic.Int32 }

func (l *lines) Write(p []byte) (int, error) { l.n.Add(1); return len(p), nil }
