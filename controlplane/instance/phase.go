package instance

// Phase is where an instance is in its life.
//
//	            ┌──────────── Failed ◄───────────┐
//	            ▼ start          ▲ fault         │
//	Provisioning ─ prepared ─► Starting ─ answered ─► Running ◄─ resume ─ Paused
//	                             ▲                      │  └──── pause ────►┘
//	                             └─ start ─ Stopped ◄─ exited ─ Stopping ◄─ stop
//
// Deleting is entered from everywhere and never left. A restart is a stop and
// a start; an instance whose time is up is stopped and then deleted.
type Phase string

// The phases. They are stored, so their spelling is fixed.
const (
	Provisioning Phase = "provisioning" // disk and boot files are being made
	Starting     Phase = "starting"     // the machine executes, the agent has not answered
	Running      Phase = "running"      // the agent has answered
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

// Event is something that happened to an instance or was asked of it. Those
// that are requests are stored with an instance that waits for one.
type Event string

// The events: what callers ask for, what our own policies ask for, and what
// the machine and our own steps report.
const (
	StartRequested   Event = "start"
	StopRequested    Event = "stop"
	RestartRequested Event = "restart"
	PauseRequested   Event = "pause"
	ResumeRequested  Event = "resume"
	RenewRequested   Event = "renew"
	DeleteRequested  Event = "delete"

	Expired     Event = "expired"    // its end has passed
	IdlePaused  Event = "idle-pause" // nobody uses it: pause
	IdleStopped Event = "idle-stop"  // nobody uses it: stop
	Used        Event = "used"       // somebody wants to use it again

	Prepared   Event = "prepared"    // files are in place
	Answered   Event = "answered"    // the agent said hello
	PoweredOff Event = "powered-off" // the guest cut its power, or we did
	Crashed    Event = "crashed"     // the machine ended in any other way
	GaveUp     Event = "gave-up"     // a step failed or its deadline passed
	Lost       Event = "lost"        // the machine and its disk are not there
)

// Events lists every event, for tables and tests.
func Events() []Event {
	return []Event{
		StartRequested, StopRequested, RestartRequested, PauseRequested, ResumeRequested, RenewRequested, DeleteRequested,
		Expired, IdlePaused, IdleStopped, Used,
		Prepared, Answered, PoweredOff, Crashed, GaveUp, Lost,
	}
}

// Origin is where an event comes from. It decides what happens to one that
// does not fit, and who comes first: reports, then policies and callers in
// the order of their coming.
type Origin string

// The origins.
const (
	ByCaller  Origin = "caller"  // denied with a reason when out of place
	ByPolicy  Origin = "policy"  // ignored when out of place: nobody waits for an answer
	ByMachine Origin = "machine" // ignored when out of place: reports cross requests on their way
)

// Origin says where e comes from.
func (e Event) Origin() Origin {
	switch e {
	case StartRequested, StopRequested, RestartRequested, PauseRequested, ResumeRequested, RenewRequested, DeleteRequested:
		return ByCaller
	case Expired, IdlePaused, IdleStopped, Used:
		return ByPolicy
	case Prepared, Answered, PoweredOff, Crashed, GaveUp, Lost:
		return ByMachine
	}
	return ByMachine
}

// Answer is what Next says to an event.
type Answer string

// The answers.
const (
	Accepted Answer = "accepted" // the phase changes, or the request is carried out in it
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
		{Provisioning, Expired}:         Deleting,
		{Provisioning, RenewRequested}:  Provisioning,
		{Provisioning, DeleteRequested}: Deleting,

		{Starting, Answered}:         Running,
		{Starting, GaveUp}:           Failed,
		{Starting, Crashed}:          Failed,
		{Starting, PoweredOff}:       Failed,
		{Starting, Lost}:             Failed,
		{Starting, StopRequested}:    Stopping,
		{Starting, RestartRequested}: Stopping,
		{Starting, Expired}:          Stopping,
		{Starting, RenewRequested}:   Starting,
		{Starting, DeleteRequested}:  Deleting,

		{Running, StopRequested}:    Stopping,
		{Running, RestartRequested}: Stopping,
		{Running, PauseRequested}:   Paused,
		{Running, IdlePaused}:       Paused,
		{Running, IdleStopped}:      Stopping,
		{Running, PoweredOff}:       Stopped,
		{Running, Crashed}:          Failed,
		{Running, GaveUp}:           Failed,
		{Running, Lost}:             Failed,
		{Running, Expired}:          Stopping,
		{Running, RenewRequested}:   Running,
		{Running, DeleteRequested}:  Deleting,

		{Paused, ResumeRequested}:  Running,
		{Paused, Used}:             Running,
		{Paused, StopRequested}:    Stopping,
		{Paused, RestartRequested}: Stopping,
		{Paused, Crashed}:          Failed,
		{Paused, PoweredOff}:       Failed,
		{Paused, GaveUp}:           Failed,
		{Paused, Lost}:             Failed,
		{Paused, Expired}:          Stopping,
		{Paused, RenewRequested}:   Paused,
		{Paused, DeleteRequested}:  Deleting,

		{Stopping, PoweredOff}:      Stopped,
		{Stopping, Crashed}:         Stopped,
		{Stopping, GaveUp}:          Failed,
		{Stopping, Lost}:            Failed,
		{Stopping, RenewRequested}:  Stopping,
		{Stopping, DeleteRequested}: Deleting,

		{Stopped, StartRequested}:   Starting,
		{Stopped, RestartRequested}: Starting,
		{Stopped, Used}:             Starting,
		{Stopped, Lost}:             Failed,
		{Stopped, Expired}:          Deleting,
		{Stopped, RenewRequested}:   Stopped,
		{Stopped, DeleteRequested}:  Deleting,

		{Failed, StartRequested}:   Starting,
		{Failed, RestartRequested}: Stopping,
		{Failed, StopRequested}:    Stopping,
		{Failed, Expired}:          Deleting,
		{Failed, RenewRequested}:   Failed,
		{Failed, DeleteRequested}:  Deleting,
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
	case RestartRequested, RenewRequested, Expired, IdlePaused, IdleStopped, Used,
		Prepared, Answered, PoweredOff, Crashed, GaveUp, Lost:
		return false
	}
	return false
}

// Next says what an event does to an instance in phase p. A caller's request
// out of place is Denied with a *Denial; what policies ask for and what the
// machine reports is then Ignored.
func Next(p Phase, e Event) (Phase, Answer, error) {
	if to, ok := transitions()[pair{p, e}]; ok {
		return to, Accepted, nil
	}
	if e.Origin() != ByCaller || settled(p, e) {
		return p, Ignored, nil
	}
	return p, Denied, &Denial{Event: e, Phase: p, Reason: reasonIn(p)}
}
