package push

import (
	"context"
	"errors"
	"sync"
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

// TestGate: never more than may, of one owner and in all, and nothing is kept
// of owners that are gone.
func TestGate(t *testing.T) {
	g := newGate(2, 5)
	var mu sync.Mutex
	inside := map[string]int{}
	all := 0
	var wg sync.WaitGroup
	for i := range 200 {
		owner := string(rune('a' + i%5))
		wg.Go(func() {
			leave := g.enter(t.Context(), principal{name: owner})
			mu.Lock()
			inside[owner]++
			if all++; all > 5 || inside[owner] > 2 {
				t.Errorf("%d of %s and %d in all are inside", inside[owner], owner, all)
			}
			mu.Unlock()
			mu.Lock()
			inside[owner]--
			all--
			mu.Unlock()
			leave()
		})
	}
	wg.Wait()
	a, b := g.enter(t.Context(), principal{name: "a"}), g.enter(t.Context(), principal{name: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if g.enter(ctx, principal{name: "a"}) != nil {
		t.Error("entered a full gate")
	}
	a()
	b()
	if len(g.owners) != 0 || len(g.all) != 0 {
		t.Errorf("left behind: %v, %d", g.owners, len(g.all))
	}
}

// TestGateGivenUp: who gives up while all places are taken leaves his own to
// his next.
func TestGateGivenUp(t *testing.T) {
	g := newGate(3, 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gone, end := context.WithCancel(t.Context())
	end()
	x, y := principal{name: "x"}, principal{name: "y"}
	leaves := []func(){g.enter(ctx, x), g.enter(ctx, y), g.enter(ctx, y)}
	for range 20 {
		if g.enter(gone, x) != nil {
			t.Fatal("entered where all places are taken")
		}
	}
	leaves[1]()
	leaves[2]()
	for range 2 {
		leave := g.enter(ctx, x)
		if leave == nil {
			t.Fatal("cannot enter where there is room")
		}
		defer leave()
	}
	leaves[0]()
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
