package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// seedEnv repeats a run that failed: its log names the seed.
const seedEnv = "SANDBOX_TEST_SEED"

// TestRandomLife asks for anything in any order, of several instances at once,
// while machines are killed and the daemon ends in order or dies; then it waits
// for rest and compares what is said with what is.
func TestRandomLife(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	if s, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64); err == nil {
		seed = s
	}
	t.Logf("repeat it with %s=%d", seedEnv, seed)
	l := &life{rig: newRig(t), rand: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // not a secret
	l.live()
	for range 80 {
		l.step()
		if t.Failed() {
			return
		}
	}
	l.close()
	l.config = nil
	l.open()
	l.rest()
}

type life struct {
	*rig
	rand   *rand.Rand
	mortal *mortal
}

// live begins the life of a daemon that can be made to die.
func (l *life) live() {
	l.mortal = &mortal{die: func() { l.fault.dead.Store(true) }, died: make(chan struct{})}
	l.config = func(c *fleet.Config) { l.mortal.Store = c.Store; c.Store = l.mortal }
	l.open()
}

func (l *life) name() string { return "soul-" + strconv.Itoa(l.rand.IntN(3)) }

func (l *life) step() {
	ctx := l.t.Context()
	var err error
	switch n := l.rand.IntN(20); {
	case n < 4:
		_, err = l.fleet.Create(ctx, request(l.name()))
	case n < 11:
		actions := []fleet.Action{
			fleet.ActionStart, fleet.ActionStop, fleet.ActionRestart, fleet.ActionPause, fleet.ActionResume,
		}
		_, err = l.fleet.Act(ctx, l.name(), actions[l.rand.IntN(len(actions))], fleet.ActOptions{Force: l.rand.IntN(3) == 0})
	case n < 13:
		_, err = l.fleet.Delete(ctx, l.name(), 0)
	case n < 14:
		_, err = l.fleet.Renew(ctx, l.name(), time.Duration(1+l.rand.IntN(3))*time.Second)
	case n < 16:
		page, listErr := l.fleet.Operations(ctx, fleet.OperationFilter{Unended: true})
		if err = listErr; err == nil && len(page.Operations) > 0 {
			_, err = l.fleet.CancelOperation(ctx, page.Operations[l.rand.IntN(len(page.Operations))].ID)
		}
	case n < 17:
		l.killOne()
	case n < 18:
		l.close()
		l.live()
	case n < 19:
		l.mortal.after = l.rand.IntN(2) == 0
		l.mortal.left.Store(int64(1 + l.rand.IntN(12)))
	default:
		l.pauseForBreath()
	}
	select {
	case <-l.mortal.died:
		l.close()
		l.live()
		return
	default:
	}
	if err != nil && instance.AsFault(err).Blame != instance.Caller {
		select {
		case <-l.mortal.died: // just now
		default:
			l.t.Errorf("a request failed: %v", err)
		}
	}
}

// pauseForBreath lets things happen.
func (l *life) pauseForBreath() {
	wait := time.NewTimer(time.Duration(l.rand.IntN(400)) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-l.mortal.died:
	}
}

// killOne kills a machine's process behind everybody's back.
func (l *life) killOne() {
	v, err := l.fleet.Get(l.t.Context(), l.name())
	if err != nil {
		return
	}
	log, err := l.fleet.Log(l.t.Context(), v.ID.String())
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(log.Facts["pid"]); err == nil && log.State != "stopped" {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	}
}

// rest waits until nothing is under way, and compares.
func (l *life) rest() {
	l.t.Helper()
	page, err := l.fleet.Operations(l.t.Context(), fleet.OperationFilter{Unended: true})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, op := range page.Operations {
		l.end(op)
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		odd := l.odd()
		if odd == "" {
			break
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			l.t.Fatalf("at rest: %s", odd)
		}
	}
	for i := range 3 { // every name still works
		name := "soul-" + strconv.Itoa(i)
		if _, err := l.fleet.Get(l.t.Context(), name); err == nil {
			op, err := l.fleet.Delete(l.t.Context(), name, 0)
			if err != nil {
				if faultCode(err) != "instance.not_found" { // its time was up
					l.t.Error(err)
				}
			} else if op = l.end(op); op.State != fleet.OperationSucceeded {
				l.t.Errorf("delete of %s: %v", name, op.Fault)
			}
			l.gone(name)
		}
		l.create(name)
	}
}

// odd says where what is said and what is differ; nothing when they agree.
func (l *life) odd() string {
	found, err := l.driver.List(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	machines := map[instance.ID]vm.Found{}
	for _, m := range found {
		machines[m.ID] = m
	}
	page, err := l.fleet.List(l.t.Context(), fleet.Filter{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, v := range page.Views {
		m, there := machines[v.ID]
		delete(machines, v.ID)
		switch v.Phase {
		case instance.Running, instance.Paused:
			if !there || !m.Running {
				return fmt.Sprintf("%s is %s, and its machine %+v", v.Name, v.Phase, m)
			}
		case instance.Stopped, instance.Failed:
			if there && m.Running {
				return fmt.Sprintf("%s is %s, and its machine %+v", v.Name, v.Phase, m)
			}
		default:
			return fmt.Sprintf("%s is %s", v.Name, v.Phase)
		}
	}
	for id := range machines {
		return fmt.Sprintf("no instance knows machine %s", id)
	}
	return ""
}
