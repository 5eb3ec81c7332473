package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// sendLoads are how messages are sent: so many in one sample, so many at once.
func sendLoads() []struct{ count, atOnce int } {
	return []struct{ count, atOnce int }{{100, 1}, {240, 16}}
}

// server is one that is sent messages.
type server struct {
	name string
	target
	// slow: it gets fewer messages, which say nothing of the slowest in 100.
	slow bool
}

// slowShare is which part of the messages a slow server gets.
const slowShare = 5

// sends measures the answers to short messages against the servers of the
// Python SDK, which do the same by a function in their own process.
func (b *bench) sends(ctx context.Context, h *hosted) (s Section, err error) {
	s = Section{Name: sectionSend, Title: "message:send of a short text that comes back, HTTP+JSON of A2A 1.0"}
	servers := []server{{name: "sandboxd", target: h.agent}}
	python, err := preparePython(ctx, b.python, b.say)
	if err != nil {
		s.Notes = append(s.Notes, "Not compared with the Python SDK: "+err.Error())
		b.say("skipping the Python SDK: " + err.Error())
	} else {
		for _, store := range []string{"memory", "sqlite"} {
			p, err := python.serve(ctx, store, b.dir)
			if err != nil {
				b.fail(fmt.Errorf("%s: Python SDK, %s: %w", s.Name, store, err))
				continue
			}
			defer p.kill()
			servers = append(servers, server{"Python SDK, " + store, newTarget(p.url), store != "memory"})
		}
		s.Notes = append(s.Notes, "The peers are "+python.versions+".")
	}
	var arms []*arm
	var pairs []pair
	for _, load := range sendLoads() {
		var ours *arm
		for _, srv := range servers {
			a := srv.arm(load.count, load.atOnce)
			arms = append(arms, a)
			if ours == nil {
				ours = a
				continue
			}
			at := fmt.Sprintf("sandboxd / %s, %d at once", srv.name, load.atOnce)
			if pairs = append(pairs, pair{at, ours, a}); a.twin != nil {
				pairs = append(pairs, pair{at + ": p99", ours.twin, a.twin})
			}
		}
	}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	s.Notes = append(s.Notes,
		"Of 1/s more is better, of p99 less. sandboxd starts a process for each message and has every event on disk before it is told.")
	return s, s.add(withTwins(arms), pairs...)
}

func (s server) arm(count, atOnce int) *arm {
	a := &arm{name: fmt.Sprintf("%s, %d at once", s.name, atOnce), per: unitRequests}
	if s.slow {
		count /= slowShare
	} else {
		a.twin = &arm{name: a.name + ": p99"}
	}
	a.measure = func(ctx context.Context) (float64, error) {
		perSecond, p99, err := sendMany(ctx, s.target, count, atOnce)
		if a.twin != nil {
			a.twin.pending = p99
		}
		return perSecond, err
	}
	return a
}

// sendMany sends count messages, so many at once, and returns how many were
// answered in a second, and what 99 of 100 took at most, in seconds.
func sendMany(ctx context.Context, t target, count, atOnce int) (perSecond, p99 float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]float64, count)
	var next atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for range atOnce {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				began := time.Now()
				if err := t.echo(ctx, fmt.Sprintf("message %d of the benchmark", i)); err != nil {
					cancel(err)
					return
				}
				took[i] = time.Since(began).Seconds()
			}
		})
	}
	all.Wait()
	whole := time.Since(begin).Seconds()
	if err := context.Cause(ctx); err != nil {
		return 0, 0, err
	}
	slices.Sort(took)
	return float64(count) / whole, quantile(took, .99), nil
}

// echo sends a text and wants it back.
func (t target) echo(ctx context.Context, text string) error {
	a, err := t.send(ctx, fmt.Appendf(nil, `{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]}}`, uuid.NewString(), text))
	if err != nil {
		return err
	}
	for _, artifact := range a.Task.Artifacts {
		for _, p := range artifact.Parts {
			if p.Text == text {
				return nil
			}
		}
	}
	return errors.New("the text did not come back")
}
