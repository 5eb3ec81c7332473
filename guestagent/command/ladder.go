package command

import "time"

// ladder decides when a run is asked to end, when it is made to, and why it
// ended. It is a plain value: no clock, no process, no I/O.
//
//	running ──timeout, cancel──▶ terminating ──grace over──▶ killing ──┐
//	   │                             │                         ▲      │
//	   └──main process ended──▶ lingering ──linger over,───────┘      │ box empty
//	                                 │      cancel                    ▼
//	                                 └───────────box empty─────────▶ gone
//
// A box that is empty ends every state. Its main process may end in any state;
// the first of timeout, cancel and its own end decides the cause.
type ladder struct {
	state    ladderState
	reason   ladderReason
	exited   bool // the main process has ended
	grace    time.Duration
	deadline time.Time // zero: nothing to wait for
	rekill   time.Duration
}

type ladderState int

const (
	stateRunning ladderState = iota
	stateLingering
	stateTerminating
	stateKilling
	stateGone
)

type ladderReason int

const (
	reasonItself ladderReason = iota
	reasonTimeout
	reasonCancel
)

// action is what the ladder wants done now.
type action int

const (
	doNothing action = iota
	doTerminate
	doKill
)

// The kill step is repeated while the box does not empty: a first one can
// meet a process that is being born.
const (
	firstRekill = time.Second
	lastRekill  = 30 * time.Second
)

func newLadder(now time.Time, timeout, grace time.Duration) ladder {
	return ladder{grace: grace, deadline: now.Add(timeout), rekill: firstRekill}
}

// due handles the passing of the deadline. A timer that is early is ignored.
func (l *ladder) due(now time.Time) action {
	if l.deadline.IsZero() || now.Before(l.deadline) {
		return doNothing
	}
	switch l.state {
	case stateRunning:
		l.reason = reasonTimeout
		return l.terminate(now)
	case stateLingering, stateTerminating, stateKilling:
		return l.kill(now)
	default:
		return doNothing
	}
}

// cancel handles a wish of the host. A repeat can only shorten the grace.
func (l *ladder) cancel(now time.Time, grace time.Duration) action {
	switch l.state {
	case stateRunning:
		l.reason = reasonCancel
		l.grace = grace
		return l.terminate(now)
	case stateTerminating:
		if next := now.Add(grace); next.Before(l.deadline) {
			l.deadline = next
		}
		return doNothing
	case stateLingering:
		return l.kill(now)
	default:
		return doNothing
	}
}

// mainExited handles the end of the main process. While terminating its
// children keep the rest of the grace.
func (l *ladder) mainExited(now time.Time, linger time.Duration) action {
	l.exited = true
	if l.state == stateRunning {
		l.state = stateLingering
		l.deadline = now.Add(linger)
	}
	return doNothing
}

// empty handles the end of the last process.
func (l *ladder) empty() {
	l.state = stateGone
	l.deadline = time.Time{}
}

func (l *ladder) terminate(now time.Time) action {
	l.state = stateTerminating
	l.deadline = now.Add(l.grace)
	return doTerminate
}

func (l *ladder) kill(now time.Time) action {
	l.state = stateKilling
	l.deadline = now.Add(l.rekill)
	l.rekill = min(2*l.rekill, lastRekill)
	return doKill
}
