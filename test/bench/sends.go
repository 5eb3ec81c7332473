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
	return []struct{ count, atOnce int }{{100, 1}, {320, 16}}
}

// sends measures the answers to short messages against the servers of the
// Python SDK, which do the same by a function in their own process.
func (b *bench) sends(ctx context.Context, h *hosted) (s Section, err error) {
	s = Section{Name: sectionSend, Title: "message:send of a short text that comes back, HTTP+JSON of A2A 1.0"}
	type server struct {
		name string
		target
	}
	servers := []server{{"sandboxd", h.agent}}
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
			servers = append(servers, server{"Python SDK, " + store, newTarget(p.url)})
		}
		s.Notes = append(s.Notes, "The peers are "+python.versions+".")
	}
	var arms []*arm
	var pairs []pair
	for _, load := range sendLoads() {
		var ours *arm
		for _, srv := range servers {
			a := sendArm(srv.name, srv.target, load.count, load.atOnce)
			arms = append(arms, a)
			if ours == nil {
				ours = a
				continue
			}
			at := fmt.Sprintf("sandboxd / %s, %d at once", srv.name, load.atOnce)
			pairs = append(pairs, pair{at, ours, a}, pair{at + ": p99", ours.twin, a.twin})
		}
	}
	if err := b.rounds(ctx, s.Name, b.n, arms); err != nil {
		return s, err
	}
	s.Notes = append(s.Notes,
		"Of 1/s more is better, of p99 less. sandboxd starts a process for each message and has every event on disk before it is told.")
	return s, s.add(withTwins(arms), pairs...)
}

func sendArm(name string, t target, count, atOnce int) *arm {
	p99 := &arm{name: fmt.Sprintf("%s, %d at once: p99", name, atOnce)}
	return &arm{
		name: fmt.Sprintf("%s, %d at once", name, atOnce), per: unitRequests, twin: p99,
		measure: func(ctx context.Context) (perSecond float64, err error) {
			perSecond, p99.pending, err = sendMany(ctx, t, count, atOnce)
			return perSecond, err
		},
	}
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
