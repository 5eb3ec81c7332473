package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// Environment variables of the random run.
const (
	seedEnv  = "FAULTS_SEED"
	stepsEnv = "FAULTS_STEPS"
	// realStepsEnv is that of real machines.
	realStepsEnv = "FAULTS_REAL_STEPS"
)

// seed chooses the way of a random run. The ordinary test goes one way, so that
// no change is blamed for another; `make faults` looks for new ones.
func seed(t *testing.T) uint64 {
	t.Helper()
	return number(t, seedEnv, 1)
}

func number(t *testing.T, env string, otherwise uint64) uint64 {
	t.Helper()
	n := otherwise
	if s := os.Getenv(env); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", env, err)
		}
	}
	t.Logf("%s=%d", env, n)
	return n
}

// absent is the state of an instance that is not there.
const absent = "absent"

// moves is the model: what brings an instance from which state to which one.
// What is not here changes nothing, whether it is refused or was so already.
var moves = map[string]map[string]string{
	"create":  {absent: "running"},
	"start":   {"stopped": "running", "failed": "running"},
	"stop":    {"running": "stopped", "paused": "stopped", "failed": "stopped"},
	"restart": {"running": "running", "paused": "running", "stopped": "running", "failed": "running"},
	"pause":   {"running": "paused"},
	"resume":  {"paused": "running"},
	"renew":   {},
	"delete":  {"running": absent, "paused": absent, "stopped": absent, "failed": absent},
	"kill":    {"running": "failed", "paused": "failed"},
}

// after is the state in which an instance ends up.
func after(state string, actions ...string) string {
	for _, a := range actions {
		if to, ok := moves[a][state]; ok {
			state = to
		}
	}
	return state
}

// allowed are the states after two actions at once: those of either order.
func allowed(state string, actions []string) []string {
	if len(actions) == 1 {
		return []string{after(state, actions[0])}
	}
	all := []string{after(state, actions[0], actions[1]), after(state, actions[1], actions[0])}
	if slices.Contains(actions, "create") && slices.Contains(actions, "kill") {
		all = append(all, absent) // a create that fails leaves nothing
	}
	return all
}

// walk is one random run.
type walk struct {
	*world
	rng    *rand.Rand
	states map[string]string
	story  []string
}

// TestRandomRun makes a long sequence of random requests, alone and two at a
// time, while agents and daemons are killed. After each the instance is in a
// state that the model allows, and now and then everything is compared.
func TestRandomRun(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(seed(t), 1))
	names := []string{"alpha", "beta", "gamma"}
	k := &walk{world: newWorld(t, rig.Options{}), rng: r, states: map[string]string{}}
	for _, n := range names {
		k.states[n] = absent
	}
	k.run(int(number(t, stepsEnv, 80)), names) //nolint:gosec // small
}

func (k *walk) run(steps int, names []string) {
	k.Helper()
	k.Cleanup(func() {
		if k.Failed() {
			k.Logf("the way to here:\n%s", strings.Join(k.story, "\n"))
		}
	})
	for n := range steps {
		k.step(n, names[k.rng.IntN(len(names))])
	}
	for _, name := range names {
		k.works(name)
	}
	k.consistent("at the end")
}

// choose returns an action, more often one that leads somewhere.
func (k *walk) choose(state string) string {
	all := slices.Sorted(maps.Keys(moves))
	for {
		a := all[k.rng.IntN(len(all))]
		if _, leads := moves[a][state]; leads || k.rng.IntN(12) == 0 {
			return a
		}
	}
}

// step does one or two things to an instance, and perhaps kills the daemon
// meanwhile.
func (k *walk) step(n int, name string) {
	k.Helper()
	state := k.states[name]
	actions := []string{k.choose(state)}
	if k.rng.IntN(3) == 0 {
		actions = append(actions, k.choose(after(state, actions[0])))
	}
	die := k.rng.IntN(4) == 0
	when := fmt.Sprintf("step %d: %s is %s, %v, daemon dies %t", n, name, state, actions, die)
	k.story = append(k.story, when)

	keys := []string{unique(), unique()}
	answers := make([]answer, len(actions))
	var all sync.WaitGroup
	var log *walWatch
	if die {
		log = k.watchLog()
	}
	for i, a := range actions {
		all.Go(func() { answers[i] = k.perform(a, name, keys[i]) })
	}
	if die {
		for range k.rng.IntN(120) {
			log.next(2 * time.Millisecond)
		}
		k.check(k.d.Kill())
		log.close()
	}
	all.Wait()
	if die {
		for k.rng.IntN(3) == 0 {
			k.stillborn(k.rng.IntN(30))
		}
		k.launch()
		for i, a := range actions {
			if a != "kill" {
				answers[i] = k.perform(a, name, keys[i]) // as a client does that got no answer
			}
		}
	}
	for i, a := range actions {
		k.outcome(when, state, a, answers[i], len(actions) == 1)
	}
	k.arrive(when, name, allowed(state, actions))
	if die || n%8 == 7 {
		k.consistent(when)
	}
}

// perform does one thing.
func (k *walk) perform(action, name, key string) answer {
	path := "/instances/" + name
	switch action {
	case "create":
		return k.ask(http.MethodPost, "/instances", k.order(name), key)
	case "delete":
		return k.ask(http.MethodDelete, path, nil, key)
	case "renew":
		return k.ask(http.MethodPost, path+":renew", object{"ttl": "24h"}, key)
	case "kill":
		k.killAny(k.held[name])
		return answer{}
	}
	return k.ask(http.MethodPost, path+":"+action, nil, key)
}

// outcome wants an answer that fits, and waits for the end of the operation.
// Who was alone must have got what the model says.
func (k *walk) outcome(when, state, action string, a answer, alone bool) {
	k.Helper()
	if action == "kill" {
		return
	}
	_, moves := moves[action][state]
	switch {
	case a.err != nil || a.status >= http.StatusInternalServerError:
		k.Fatalf("%s: %s got %s", when, action, a)
	case a.status == http.StatusAccepted:
		op := k.ended(a)
		k.want(!alone || !moves || op.State == "succeeded", "%s: %s ended %s: %s", when, action, op.State, op.Fault)
	case a.status >= http.StatusBadRequest:
		k.want(a.problem().Code != "", "%s: %s got %s", when, action, a)
		k.want(!alone || !moves, "%s: %s got %s", when, action, a)
	}
}

// arrive waits until an instance is in one of some states and its process as
// well: the end of one is noticed a moment later.
func (k *walk) arrive(when, name string, states []string) {
	k.Helper()
	var i instance
	state := absent
	k.Cleanup(func() {
		if k.Failed() && len(k.story) > 0 && k.story[len(k.story)-1] == when {
			k.Logf("%s; now it is %+v with %s", when, i, i.Fault)
		}
	})
	k.until(fmt.Sprintf("%v (%s)", states, when), func() bool {
		var ok bool
		if i, ok = k.find(name); !ok {
			state = absent
			return slices.Contains(states, absent)
		}
		state = i.State
		runs := state == "running" || state == "paused"
		return slices.Contains(states, state) && runs == (len(k.agents()[i.ID]) > 0)
	})
	k.states[name] = state
	if state == absent {
		delete(k.held, name)
		return
	}
	k.held[name] = i.ID
}
