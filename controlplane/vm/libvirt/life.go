package libvirt

import (
	"fmt"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// phase is where one run of a machine stands.
type phase string

const (
	phaseIdle     phase = "created" // never started
	phaseStarting phase = "starting"
	phaseRunning  phase = "running"
	phasePaused   phase = "paused"
	phaseEnded    phase = "ended"
)

// life is what events have told about one run. Pure: apply has no effects.
type life struct {
	phase phase
	exit  vm.Exit
	// panicked is set by the guest's panic device, before the end.
	panicked bool
	// shutdown is QEMU's word for why it stops, such as "guest-reset".
	shutdown string
	// ours is set before we destroy the machine ourselves.
	ours bool
	// unborn is true until the run's domain has been created. What is heard
	// before that is about the run before this one: libvirt tells late.
	unborn bool
}

// apply takes one event and reports whether the run ended by it. Events that
// do not fit the phase are ignored: libvirt sends them late and, around a
// start, in either order.
func (l *life) apply(e event) (ended bool) {
	if l.phase == phaseIdle || l.phase == phaseEnded || l.unborn {
		return false
	}
	switch {
	case e.gone:
		l.finish(vm.ExitKilled, "the hypervisor process ended")
		return true
	case e.qmp != nil:
		// libvirt ends a machine that shuts down with a signal, which QEMU
		// reports as well: the first word counts.
		if e.qmp.Event == "SHUTDOWN" && l.shutdown == "" {
			l.shutdown = shutdownReason(e.qmp.Details)
		}
		return false
	case e.life == nil:
		return false
	}
	switch e.life.Event {
	case lv.DOMAIN_EVENT_RESUMED:
		if l.phase == phasePaused {
			l.phase = phaseRunning
		}
	case lv.DOMAIN_EVENT_SUSPENDED:
		if l.phase == phaseRunning {
			l.phase = phasePaused
		}
	case lv.DOMAIN_EVENT_CRASHED:
		l.panicked = true
	case lv.DOMAIN_EVENT_STOPPED:
		l.stopped(lv.DomainEventStoppedDetailType(e.life.Detail))
		return true
	}
	return false
}

func (l *life) stopped(detail lv.DomainEventStoppedDetailType) {
	switch {
	case l.panicked || detail == lv.DOMAIN_EVENT_STOPPED_CRASHED || l.shutdown == "guest-panic":
		l.finish(vm.ExitPanic, "the guest's kernel reported a panic")
	case l.ours:
		l.finish(vm.ExitDestroyed, "")
	case l.shutdown == "host-signal":
		l.finish(vm.ExitKilled, "somebody sent the hypervisor a signal")
	case detail == lv.DOMAIN_EVENT_STOPPED_SHUTDOWN:
		l.finish(vm.ExitPowerOff, l.shutdown)
	case detail == lv.DOMAIN_EVENT_STOPPED_DESTROYED:
		l.finish(vm.ExitDestroyed, "by somebody else through libvirt")
	case detail == lv.DOMAIN_EVENT_STOPPED_FAILED:
		l.finish(vm.ExitKilled, "the hypervisor process ended unexpectedly")
	default:
		l.finish(vm.ExitUnknown, fmt.Sprintf("libvirt says: stopped, detail %d", detail))
	}
}

func (l *life) finish(reason vm.ExitReason, detail string) {
	if l.ours && reason == vm.ExitKilled {
		reason, detail = vm.ExitDestroyed, "" // it took a SIGKILL of ours
	}
	l.phase, l.exit = phaseEnded, vm.Exit{Reason: reason, Detail: detail}
}
