package instance

import "fmt"

// Reason names why a request is denied.
type Reason string

// The reasons.
const (
	NotReady   Reason = "not-ready"  // it has not come up yet
	NoMachine  Reason = "no-machine" // nothing executes
	IsRunning  Reason = "running"    // it executes
	IsPaused   Reason = "paused"     // its processor is stopped
	IsStopping Reason = "stopping"   // it is on its way down
	IsDeleting Reason = "deleting"   // it is being removed, or will be first
	QueueFull  Reason = "queue-full" // too many requests wait already
)

// Denial says why a request makes no sense now.
type Denial struct {
	Event  Event
	Phase  Phase
	Reason Reason
}

func (d *Denial) Error() string {
	if d.Reason == QueueFull {
		return fmt.Sprintf("cannot %s an instance for which too many requests wait", d.Event)
	}
	return fmt.Sprintf("cannot %s an instance that is %s", d.Event, d.Phase)
}

// Remedy is what to do next with the instance of that name; empty when there
// is nothing to be done.
func (d *Denial) Remedy(name string) string {
	switch d.Reason {
	case QueueFull:
		return "try again when some of them have ended"
	case NotReady:
		return fmt.Sprintf("wait until `sandboxctl show %s` says running", name)
	case NoMachine:
		return fmt.Sprintf("start it with `sandboxctl start %s`", name)
	case IsPaused:
		return fmt.Sprintf("resume it with `sandboxctl resume %s`", name)
	case IsStopping:
		return fmt.Sprintf("wait until `sandboxctl show %s` says stopped", name)
	case IsRunning, IsDeleting:
	}
	return ""
}

// reasonIn is why a phase denies what it denies.
func reasonIn(p Phase) Reason {
	switch p {
	case Provisioning, Starting:
		return NotReady
	case Running:
		return IsRunning
	case Paused:
		return IsPaused
	case Stopping:
		return IsStopping
	case Stopped, Failed:
		return NoMachine
	case Deleting:
		return IsDeleting
	}
	return NotReady
}
