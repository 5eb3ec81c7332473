package faults

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// crowd is how many are made at once.
const crowd = 20

// TestKillAmongCreates kills the daemon while twenty instances are made at
// once, some under the same name, and again while they are removed. Everybody
// asks again with the same key; then each name is there once.
func TestKillAmongCreates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	seed := seed(t)
	rng := rand.New(rand.NewPCG(seed, 20))
	for round := range 2 {
		keys := make([]string, crowd+2)
		for n := range keys {
			keys[n] = unique()
		}
		make1 := func(n int) answer {
			return w.ask(http.MethodPost, "/instances", w.order(fmt.Sprintf("one-%d-%02d", round, n%crowd)), keys[n])
		}
		before := w.last()
		w.amidst(rng, len(keys), "agent began", make1)
		won := map[string]int{}
		for n := range keys {
			a := make1(n)
			if a.status == http.StatusConflict {
				w.want(a.problem().Code == "instance.name_taken", "the second of a name got %s", a)
				continue
			}
			op := w.succeed(a)
			won[op.Name]++
		}
		w.want(len(won) == crowd, "there are %d names, want %d: %v", len(won), crowd, won)
		made := 0
		for _, e := range w.events() {
			if e.Seq > before && e.Type == "instance.created" {
				made++
			}
		}
		w.want(made == crowd, "%d instances were made for %d names", made, crowd)
		w.consistent(fmt.Sprintf("round %d", round))
		w.works(fmt.Sprintf("one-%d-%02d", round, rng.IntN(crowd)))

		remove := func(n int) answer {
			return w.ask(http.MethodDelete, fmt.Sprintf("/instances/one-%d-%02d", round, n), nil, keys[n]+"-rm")
		}
		w.amidst(rng, crowd, "machine began", remove)
		for n := range crowd {
			w.succeed(remove(n))
		}
		w.consistent(fmt.Sprintf("round %d, removed", round))
	}
	w.works("after")
}

// last is the number of the newest event.
func (w *world) last() uint64 {
	all := w.events()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Seq
}

// amidst makes n requests at once, kills the daemon when one of them has come
// as far as that point and some writes further, and starts the next daemon.
func (w *world) amidst(rng *rand.Rand, n int, far string, ask func(int) answer) {
	w.Helper()
	log, heard := w.watchLog(), w.follow(w.last())
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i] = ask(i) })
	}
	heard.await("operation.changed " + far)
	for range rng.IntN(200) {
		log.next(3 * time.Millisecond)
	}
	w.check(w.d.Kill())
	heard.close()
	log.close()
	all.Wait()
	w.launch()
	for i, a := range answers {
		var op operation
		if a.err != nil || a.status != http.StatusAccepted {
			continue
		}
		w.check(json.Unmarshal(a.body, &op))
		again := w.ask(http.MethodGet, "/operations/"+op.ID, nil, "")
		w.want(again.status == http.StatusOK, "request %d was answered with an operation that is lost: %s", i, again)
	}
}
