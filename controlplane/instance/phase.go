package instance

import "fmt"

// Phase is where an instance is in its life.
//
//	            ┌──────────── Failed ◄───────────┐
//	            ▼ start          ▲ fault         │
//	Provisioning ─ prepared ─► Starting ─ answered ─► Running ◄─ resume ─ Paused
//	                             ▲                      │  └──── pause ────►┘
//	                             └─ start ─ Stopped ◄─ exited ─ Stopping ◄─ stop
//
// Deleting is entered from everywhere and never left.
type Phase string

// The phases. They are stored, so their spelling is fixed.
const (
	Provisioning Phase = "provisioning" // disk and boot files are being made
	Starting     Phase = "starting"     // the machine executes, the agent has not answered
	Running      Phase = "running"      // the agent answers
	Paused       Phase = "paused"       // the processor is stopped, memory is kept
	Stopping     Phase = "stopping"     // power is being cut, in order or hard
	Stopped      Phase = "stopped"      // no machine, the disk is kept
	Failed       Phase = "failed"       // no machine, or none that answers; the fault says why
	Deleting     Phase = "deleting"     // everything is being removed
)

// Phases lists every phase, for tables and tests.
func Phases() []Phase {
	return []Phase{Provisioning, Starting, Running, Paused, Stopping, Stopped, Failed, Deleting}
}

// Event is something that happened to an instance or was asked of it.
type Event string

// The events. The first group are requests, the second what the machine and
// our own steps report.
const (
	StartRequested  Event = "start"
	StopRequested   Event = "stop"
	PauseRequested  Event = "pause"
	ResumeRequested Event = "resume"
	DeleteRequested Event = "delete"

	Prepared   Event = "prepared"    // files are in place
	Answered   Event = "answered"    // the agent said hello
	PoweredOff Event = "powered-off" // the guest cut its power, or we did
	Crashed    Event = "crashed"     // the machine ended in any other way
	GaveUp     Event = "gave-up"     // a step failed or its deadline passed
)

// Events lists every event, for tables and tests.
func Events() []Event {
	return []Event{
		StartRequested, StopRequested, PauseRequested, ResumeRequested, DeleteRequested,
		Prepared, Answered, PoweredOff, Crashed, GaveUp,
	}
}

// request reports whether e was asked for, rather than happened.
func (e Event) request() bool {
	switch e {
	case StartRequested, StopRequested, PauseRequested, ResumeRequested, DeleteRequested:
		return true
	case Prepared, Answered, PoweredOff, Crashed, GaveUp:
		return false
	}
	return false
}

// Answer is what Next says to an event.
type Answer string

// The answers.
const (
	Accepted Answer = "accepted" // the phase changes
	Ignored  Answer = "ignored"  // already so, or too late to matter
	Denied   Answer = "denied"   // a request that makes no sense in this phase
)

type pair struct {
	phase Phase
	event Event
}

// transitions holds every accepted pair. What is missing is ignored or denied
// by the rules in Next.
func transitions() map[pair]Phase {
	return map[pair]Phase{
		{Provisioning, Prepared}:        Starting,
		{Provisioning, GaveUp}:          Failed,
		{Starting, Answered}:            Running,
		{Starting, GaveUp}:              Failed,
		{Starting, Crashed}:             Failed,
		{Starting, PoweredOff}:          Failed,
		{Starting, StopRequested}:       Stopping,
		{Running, StopRequested}:        Stopping,
		{Running, PauseRequested}:       Paused,
		{Running, PoweredOff}:           Stopped,
		{Running, Crashed}:              Failed,
		{Running, GaveUp}:               Failed,
		{Paused, ResumeRequested}:       Running,
		{Paused, StopRequested}:         Stopping,
		{Paused, Crashed}:               Failed,
		{Paused, PoweredOff}:            Failed,
		{Paused, GaveUp}:                Failed,
		{Stopping, PoweredOff}:          Stopped,
		{Stopping, Crashed}:             Stopped,
		{Stopping, GaveUp}:              Failed,
		{Stopped, StartRequested}:       Starting,
		{Failed, StartRequested}:        Starting,
		{Failed, StopRequested}:         Stopping,
		{Provisioning, DeleteRequested}: Deleting,
		{Starting, DeleteRequested}:     Deleting,
		{Running, DeleteRequested}:      Deleting,
		{Paused, DeleteRequested}:       Deleting,
		{Stopping, DeleteRequested}:     Deleting,
		{Stopped, DeleteRequested}:      Deleting,
		{Failed, DeleteRequested}:       Deleting,
	}
}

// settled are requests that are already fulfilled or on their way.
func settled(p Phase, e Event) bool {
	switch e {
	case StartRequested:
		return p == Starting || p == Running || p == Provisioning
	case StopRequested:
		return p == Stopping || p == Stopped
	case PauseRequested:
		return p == Paused
	case ResumeRequested:
		return p == Running
	case DeleteRequested:
		return p == Deleting
	case Prepared, Answered, PoweredOff, Crashed, GaveUp:
		return false
	}
	return false
}

// Next says what an event does to an instance in phase p. A request out of
// place is Denied with a reason; an event of the machine that comes too late
// is Ignored, because reports may cross requests on their way.
func Next(p Phase, e Event) (Phase, Answer, error) {
	if to, ok := transitions()[pair{p, e}]; ok {
		return to, Accepted, nil
	}
	if !e.request() || settled(p, e) {
		return p, Ignored, nil
	}
	return p, Denied, fmt.Errorf("cannot %s an instance that is %s", e, p)
}
