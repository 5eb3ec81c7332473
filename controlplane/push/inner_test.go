package push

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestBackoffBounds: pauses grow to the limit, never beyond, and never to
// nothing.
func TestBackoffBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "first"))
		limit := time.Duration(rapid.Int64Range(int64(first), int64(1000*time.Hour)).Draw(rt, "limit"))
		n := rapid.IntRange(1, 1<<20).Draw(rt, "n")
		j := rapid.Float64Range(0, 0.999999).Draw(rt, "jitter")
		d := backoff(first, limit, n, j)
		if d < first/2 || d > limit {
			rt.Errorf("pause %d is %v", n, d)
		}
		if more := backoff(first, limit, n+1, j); more < d {
			rt.Errorf("pause %d is %v, the one before %v", n+1, more, d)
		}
	})
}

// TestControl: the last judge, just before a socket connects, needs no other.
func TestControl(t *testing.T) {
	g := &Guard{}
	for _, c := range [][2]string{
		{"tcp4", "127.0.0.1:80"}, {"tcp6", "[::ffff:10.0.0.1]:80"}, {"tcp6", "[fe80::1%lo]:80"}, {"tcp4", "example.org:80"},
		{"unix", "/run/docker.sock"}, {"udp4", "8.8.8.8:53"},
	} {
		if err := g.control(c[0], c[1], nil); !errors.Is(err, errForbidden) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := g.control("tcp4", "8.8.8.8:443", nil); err != nil {
		t.Error(err)
	}
}

// TestCausesHaveNoForeignText: a cause is stored and may be shown.
func TestCausesHaveNoForeignText(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("dial tcp 10.0.0.1: connection refused"): "not reachable", context.DeadlineExceeded: "timeout", errForbidden: "address refused",
	} {
		if got := explain(err).cause; got != want {
			t.Errorf("%v is %q", err, got)
		}
	}
}
