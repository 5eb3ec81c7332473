package push_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestWhatWasDeliveredIsKept: a change of status is stored before what comes
// next is sent, and the rest when the service ends, which is no failure of a
// webhook that is just being told.
func TestWhatWasDeliveredIsKept(t *testing.T) {
	reached, goOn := make(chan uint64, 16), make(chan struct{})
	hook := newReceiver(t, func(_ int, w wire) int {
		reached <- w.Seq
		if w.Seq == 3 || w.Seq == 5 {
			<-goOn
		}
		return 200
	})
	r := newRig(t, nil)
	r.task("t")
	r.move("t", task.Working)
	var p task.Progress
	for i := range 5 {
		r.must(r.tasks.output(t.Context(), "t", &p, strconv.Itoa(i)))
	}
	r.hook("t", hook.url)
	for <-reached != 3 {
	}
	r.stored("t", func(p push.Progress) bool { return p.Delivered == 2 })
	goOn <- struct{}{}
	for <-reached != 5 {
	}
	r.s.Close()
	close(goOn)
	hooks, err := r.db.Webhooks().Hooks(t.Context(), task.System(), "t")
	r.must(err)
	if got := hooks[0].Progress; got.Delivered != 4 || got.Failures != 0 || got.State != push.Active {
		t.Errorf("kept is %+v", got)
	}
}

// failing is a store that fails as often as told.
type failing struct {
	push.Store
	left atomic.Int64
	fail func(push.Progress) bool
}

func (f *failing) Save(ctx context.Context, serial int64, p push.Progress) error {
	if f.fail(p) && f.left.Add(-1) >= 0 {
		return errors.New("the disk is full")
	}
	return f.Store.Save(ctx, serial, p)
}

// TestStoreThatStaysBroken is asked less and less often, and at last has the
// end: that there is no more to do is stored like everything else.
func TestStoreThatStaysBroken(t *testing.T) {
	for name, fail := range map[string]func(push.Progress) bool{
		"always": func(push.Progress) bool { return true },
		"end":    func(p push.Progress) bool { return p.State == push.Done },
	} {
		hook := newReceiver(t, nil)
		r := newRig(t, func(c *push.Config) { c.Jitter = func() float64 { return 1 } })
		r.s.Close()
		cfg := r.cfg
		store := &failing{Store: r.db.Webhooks(), fail: fail}
		store.left.Store(5)
		cfg.Store = store
		r.s = push.New(context.WithoutCancel(t.Context()), cfg)
		r.task("t")
		r.move("t", task.Completed)
		r.hook("t", hook.url)
		r.done("t")
		r.clock.mu.Lock()
		pauses := r.clock.pauses
		r.clock.mu.Unlock()
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}
		if !slices.Equal(pauses, want) {
			t.Errorf("%s: pauses are %v, want %v", name, pauses, want)
		}
		var seqs []uint64
		for _, q := range hook.all() {
			seqs = append(seqs, q.Seq)
		}
		if fmt.Sprint(seqs) != "[1 2]" {
			t.Errorf("%s: delivered are %v", name, seqs)
		}
	}
}

// told says when the store was asked.
type told struct {
	push.Store
	asked chan error
}

func (s *told) Save(ctx context.Context, serial int64, p push.Progress) error {
	err := s.Store.Save(ctx, serial, p)
	s.asked <- err
	return err
}

// TestRegistrationThatIsGone with its task is no trouble.
func TestRegistrationThatIsGone(t *testing.T) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	hook := newReceiver(t, func(int, wire) int { reached <- struct{}{}; <-goOn; return 200 })
	r := newRig(t, nil)
	r.s.Close()
	cfg := r.cfg
	store := &told{r.db.Webhooks(), make(chan error, 16)}
	cfg.Store = store
	r.s = push.New(context.WithoutCancel(t.Context()), cfg)
	r.task("t")
	h := r.hook("t", hook.url)
	<-reached
	r.must(r.db.Webhooks().Delete(t.Context(), task.System(), "t", h.ID))
	close(goOn)
	if err := <-store.asked; !errors.Is(err, push.ErrGone) {
		t.Errorf("the store said %v", err)
	}
	r.s.Close()
	if log := r.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("the log says %q", log)
	}
}
