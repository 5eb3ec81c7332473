package command

import (
	"testing"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// TestLadderStepByStep: at which moment what is done, and what it was.
func TestLadderStepByStep(t *testing.T) {
	const (
		timeout, grace, linger = 10 * time.Second, 5 * time.Second, 2 * time.Second
		instant                = time.Nanosecond
	)
	began := time.Unix(1000, 0)
	type step struct {
		at   time.Duration // since the beginning
		do   string        // due, exit, or cancel with the grace that follows
		with time.Duration
		want action
	}
	for name, c := range map[string]struct {
		steps    []step
		state    ladderState
		reason   ladderReason
		deadline time.Duration // since the beginning
	}{
		"nothing happens": {[]step{{timeout - instant, "due", 0, doNothing}}, stateRunning, reasonItself, timeout},
		"too late":        {[]step{{timeout, "due", 0, doTerminate}}, stateTerminating, reasonTimeout, timeout + grace},
		"too late, and stays": {[]step{
			{timeout, "due", 0, doTerminate}, {timeout + grace - instant, "due", 0, doNothing}, {timeout + grace, "due", 0, doKill},
		}, stateKilling, reasonTimeout, timeout + grace + time.Second},
		"too late, and a child stays": {[]step{
			{timeout, "due", 0, doTerminate}, {timeout + time.Second, "exit", 0, doNothing},
			{timeout + linger + time.Second, "due", 0, doNothing}, {timeout + grace, "due", 0, doKill},
		}, stateKilling, reasonTimeout, timeout + grace + time.Second},
		"killed again, ever later": {[]step{
			{timeout, "due", 0, doTerminate}, {15 * time.Second, "due", 0, doKill}, {16 * time.Second, "due", 0, doKill},
			{18*time.Second - instant, "due", 0, doNothing}, {18 * time.Second, "due", 0, doKill}, {22 * time.Second, "due", 0, doKill},
			{30 * time.Second, "due", 0, doKill}, {46 * time.Second, "due", 0, doKill}, {76 * time.Second, "due", 0, doKill},
		}, stateKilling, reasonTimeout, 106 * time.Second},
		"canceled": {[]step{{time.Second, "cancel", 3 * time.Second, doTerminate}}, stateTerminating, reasonCancel, 4 * time.Second},
		"canceled again, with more": {[]step{
			{time.Second, "cancel", 3 * time.Second, doTerminate}, {2 * time.Second, "cancel", time.Minute, doNothing},
		}, stateTerminating, reasonCancel, 4 * time.Second},
		"canceled again, with less": {[]step{
			{time.Second, "cancel", 3 * time.Second, doTerminate}, {2 * time.Second, "cancel", time.Second, doNothing},
			{3 * time.Second, "due", 0, doKill}, {3 * time.Second, "cancel", 0, doNothing}, {3 * time.Second, "exit", 0, doNothing},
		}, stateKilling, reasonCancel, 4 * time.Second},
		"too late, then canceled": {[]step{
			{timeout, "due", 0, doTerminate}, {timeout, "cancel", time.Second, doNothing},
		}, stateTerminating, reasonTimeout, timeout + time.Second},
		"ended, a child stays": {[]step{
			{time.Second, "exit", 0, doNothing}, {time.Second + linger - instant, "due", 0, doNothing}, {time.Second + linger, "due", 0, doKill},
		}, stateKilling, reasonItself, 4 * time.Second},
		"ended, the child is not waited for": {[]step{
			{time.Second, "exit", 0, doNothing}, {time.Second, "cancel", time.Minute, doKill},
		}, stateKilling, reasonItself, 2 * time.Second},
	} {
		l := newLadder(began, timeout, grace)
		for i, s := range c.steps {
			got, now := doNothing, began.Add(s.at)
			switch s.do {
			case "due":
				got = l.due(now)
			case "exit":
				got = l.mainExited(now, linger)
			case "cancel":
				got = l.cancel(now, s.with)
			}
			if got != s.want {
				t.Errorf("%s: step %d, %s: %d is done, want %d", name, i, s.do, got, s.want)
			}
		}
		if l.state != c.state || l.reason != c.reason || !l.deadline.Equal(began.Add(c.deadline)) {
			t.Errorf("%s: state %d, reason %d, next after %v; want %d, %d, %v",
				name, l.state, l.reason, l.deadline.Sub(began), c.state, c.reason, c.deadline)
		}
	}
}

// TestRoom: to the byte, and an empty log takes anything.
func TestRoom(t *testing.T) {
	l := outputLog{limit: 1000}
	if !l.room(10_000) {
		t.Error("an empty log has no room")
	}
	l.append(agentv1.Stream_STREAM_STDOUT, make([]byte, 500))
	most := 1000 - (500 + chunkCost) - chunkCost
	if !l.room(most) || l.room(most+1) {
		t.Errorf("with room for %d: %t, one more: %t", most, l.room(most), l.room(most+1))
	}
}
