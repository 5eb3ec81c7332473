package share

import (
	"context"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestGate: never more than may, of one owner and in all, and nothing is kept
// of owners that are gone.
func TestGate(t *testing.T) {
	g := NewGate(2, 5)
	var mu sync.Mutex
	inside := map[string]int{}
	all := 0
	var wg sync.WaitGroup
	for i := range 200 {
		owner := string(rune('a' + i%5))
		wg.Go(func() {
			leave := g.Enter(t.Context(), Owner{Name: owner})
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
	a, b := g.Enter(t.Context(), Owner{Name: "a"}), g.Enter(t.Context(), Owner{Name: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if g.Enter(ctx, Owner{Name: "a"}) != nil {
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
	g := NewGate(3, 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gone, end := context.WithCancel(t.Context())
	end()
	x, y := Owner{Name: "x"}, Owner{Name: "y"}
	leaves := []func(){g.Enter(ctx, x), g.Enter(ctx, y), g.Enter(ctx, y)}
	for range 20 {
		if g.Enter(gone, x) != nil {
			t.Fatal("entered where all places are taken")
		}
	}
	leaves[1]()
	leaves[2]()
	for range 2 {
		leave := g.Enter(ctx, x)
		if leave == nil {
			t.Fatal("cannot enter where there is room")
		}
		defer leave()
	}
	leaves[0]()
}

// TestPlaces: never more than there are, and whatever others hold, a tenant that
// has none gets one as long as it is the only such.
func TestPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.IntRange(1, 40).Draw(t, "all")
		p := NewPlaces(all)
		held := map[string][]func(){}
		taken := 0
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			who := rapid.SampledFrom([]string{"greedy", "greedy", "greedy", "other"}).Draw(t, "who")
			if n := len(held[who]); n > 0 && rapid.IntRange(0, 3).Draw(t, "give") == 0 {
				held[who][n-1]()
				held[who][n-1]() // once is enough
				held[who] = held[who][:n-1]
				taken--
				continue
			}
			give := p.Take(who)
			switch {
			case give != nil:
				held[who] = append(held[who], give)
				taken++
			case len(held[who]) < all/4 && taken < all:
				t.Fatalf("%s has %d of %d, %d are taken, and got none", who, len(held[who]), all, taken)
			case taken < all-all/4:
				t.Fatalf("%s got none although %d of %d are taken", who, taken, all)
			}
			if taken > all || len(held["greedy"]) > all-all/4 && len(held["greedy"]) > all/4 && all >= 4 {
				t.Fatalf("%d of %d are taken, %d by one", taken, all, len(held["greedy"]))
			}
		}
		for _, list := range held {
			for _, give := range list {
				give()
			}
		}
		if p.taken != 0 || len(p.held) != 0 {
			t.Fatalf("left behind: %d, %v", p.taken, p.held)
		}
	})
}
