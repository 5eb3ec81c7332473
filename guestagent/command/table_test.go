package command

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

func runName(i int) string { return fmt.Sprintf("0190a0a0-0000-7000-8000-%012d", i) }

// tableOf is a table of that many running runs; nothing executes.
func tableOf(n int) *Table {
	t := &Table{runs: map[string]*entry{}, budget: 1 << 40}
	for i := range n {
		ready := make(chan struct{})
		close(ready)
		s := &agentv1.RunSpec{Argv: []string{"x"}}
		t.runs[runName(i)] = &entry{spec: s, ready: ready, run: newRun(runName(i), s, bounds{buffer: agentv1.MinOutputBuffer})}
		t.order = append(t.order, runName(i))
	}
	return t
}

// end has a run end, with output that is acknowledged or not.
func (t *Table) end(i int, drained bool) *Run {
	r := t.runs[runName(i)].run
	r.log.append(stdout, []byte("x"))
	if drained {
		r.log.after(0)
		_, _ = r.log.ack(1) // it was shown
	}
	r.ended = &agentv1.Exited{}
	return r
}

// TestTableMakesRoom by forgetting the oldest run of which the host has
// everything, and no other.
func TestTableMakesRoom(t *testing.T) {
	claim := func(table *Table, name int) Kind {
		_, fresh, err := table.claim(runName(name), &agentv1.RunSpec{Argv: []string{"y"}}, bounds{buffer: 1})
		if err == nil && !fresh {
			t.Error("a new run is an old one")
		}
		return kindOf(err)
	}
	table := tableOf(agentv1.MaxRuns)
	table.end(1, false)
	table.end(2, true).attached = &Attachment{}
	if kind := claim(table, 1000); kind != Exhausted || len(table.runs) != agentv1.MaxRuns {
		t.Errorf("with nothing to forget: %d, %d runs are kept", kind, len(table.runs))
	}
	table.end(7, true)
	table.end(5, true)
	for i, want := range []int{5, 7} {
		if kind := claim(table, 1001+i); kind != -1 || table.runs[runName(want)] != nil || len(table.runs) != agentv1.MaxRuns {
			t.Errorf("new run %d: %d, the older one is %v", i, kind, table.runs[runName(want)])
		}
	}
	if kind := claim(table, 2000); kind != Exhausted {
		t.Errorf("then: %d", kind)
	}
}

// TestTableHoldsOutputInBounds: all runs together.
func TestTableHoldsOutputInBounds(t *testing.T) {
	table := tableOf(3)
	table.budget = 4 * agentv1.MinOutputBuffer
	for _, c := range []struct {
		buffer int
		want   Kind
	}{{agentv1.MinOutputBuffer + 1, Exhausted}, {agentv1.MinOutputBuffer, -1}} {
		_, _, err := table.claim(runName(10), &agentv1.RunSpec{Argv: []string{"y"}}, bounds{buffer: c.buffer})
		if kindOf(err) != c.want {
			t.Errorf("a buffer of %d more: %v", c.buffer, err)
		}
	}
}

// TestRunsAreStartedOnce: an id that is known is never started again, also when
// nothing new is.
func TestRunsAreStartedOnce(t *testing.T) {
	table := tableOf(1)
	ready := make(chan struct{})
	close(ready)
	table.runs[runName(1)] = &entry{ready: ready, run: lostRun(runName(1))}
	same, other := &agentv1.RunSpec{Argv: []string{"x"}}, &agentv1.RunSpec{Argv: []string{"x"}, Timeout: durationpb.New(1)}
	for _, closing := range []bool{false, true} {
		table.closing = closing
		for i, c := range []struct {
			name int
			spec *agentv1.RunSpec
			want Kind
		}{{0, same, -1}, {0, other, Conflict}, {1, same, -1}, {1, other, -1}} {
			if _, fresh, err := table.claim(runName(c.name), c.spec, bounds{buffer: 1}); fresh || kindOf(err) != c.want {
				t.Errorf("closing %t, %d: fresh %t, %v", closing, i, fresh, err)
			}
		}
	}
	if _, _, err := table.claim(runName(2), same, bounds{buffer: 1}); kindOf(err) != Precondition {
		t.Errorf("a new run while the machine ends: %v", err)
	}
}
