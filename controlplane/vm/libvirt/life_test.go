package libvirt

import (
	"testing"

	lv "libvirt.org/go/libvirt"
	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

func happened(e lv.DomainEventType, detail int) event {
	return event{life: &lv.DomainEventLifecycle{Event: e, Detail: detail}}
}

func shutdown(reason string) event {
	return event{qmp: &lv.DomainQemuMonitorEvent{Event: "SHUTDOWN", Details: `{"guest":true,"reason":"` + reason + `"}`}}
}

func TestLife(t *testing.T) {
	const (
		byShutdown  = int(lv.DOMAIN_EVENT_STOPPED_SHUTDOWN)
		byDestroy   = int(lv.DOMAIN_EVENT_STOPPED_DESTROYED)
		byCrash     = int(lv.DOMAIN_EVENT_STOPPED_CRASHED)
		byFailure   = int(lv.DOMAIN_EVENT_STOPPED_FAILED)
		byMigration = int(lv.DOMAIN_EVENT_STOPPED_MIGRATED)
	)
	stopped := func(detail int) event { return happened(lv.DOMAIN_EVENT_STOPPED, detail) }
	tests := map[string]struct {
		from   life
		events []event
		phase  phase
		exit   vm.ExitReason
	}{
		"created machines have no events":   {life{phase: phaseIdle}, []event{stopped(byFailure)}, phaseIdle, ""},
		"start, either order":               {life{phase: phaseStarting}, []event{happened(lv.DOMAIN_EVENT_RESUMED, 0), happened(lv.DOMAIN_EVENT_STARTED, 0)}, phaseStarting, ""},
		"pause":                             {life{phase: phaseRunning}, []event{happened(lv.DOMAIN_EVENT_SUSPENDED, 0)}, phasePaused, ""},
		"pause and resume":                  {life{phase: phaseRunning}, []event{happened(lv.DOMAIN_EVENT_SUSPENDED, 0), happened(lv.DOMAIN_EVENT_RESUMED, 0)}, phaseRunning, ""},
		"power off":                         {life{phase: phaseRunning}, []event{shutdown("guest-shutdown"), shutdown("host-signal"), stopped(byShutdown)}, phaseEnded, vm.ExitPowerOff},
		"restart":                           {life{phase: phaseRunning}, []event{shutdown("guest-reset"), shutdown("host-signal"), stopped(byShutdown)}, phaseEnded, vm.ExitPowerOff},
		"panic by device":                   {life{phase: phaseRunning}, []event{happened(lv.DOMAIN_EVENT_CRASHED, 0), stopped(byCrash)}, phaseEnded, vm.ExitPanic},
		"panic, end lost its detail":        {life{phase: phaseRunning}, []event{happened(lv.DOMAIN_EVENT_CRASHED, 0), stopped(byDestroy)}, phaseEnded, vm.ExitPanic},
		"hypervisor killed":                 {life{phase: phaseRunning}, []event{stopped(byFailure)}, phaseEnded, vm.ExitKilled},
		"hypervisor told to end":            {life{phase: phaseRunning}, []event{shutdown("host-signal"), stopped(byShutdown)}, phaseEnded, vm.ExitKilled},
		"process gone, libvirt silent":      {life{phase: phasePaused}, []event{{gone: true}}, phaseEnded, vm.ExitKilled},
		"destroyed by us":                   {life{phase: phaseRunning, ours: true}, []event{shutdown("host-signal"), stopped(byDestroy)}, phaseEnded, vm.ExitDestroyed},
		"killed by us":                      {life{phase: phaseRunning, ours: true}, []event{stopped(byFailure)}, phaseEnded, vm.ExitDestroyed},
		"destroyed by us, process only":     {life{phase: phaseRunning, ours: true}, []event{{gone: true}}, phaseEnded, vm.ExitDestroyed},
		"destroyed by another":              {life{phase: phaseRunning}, []event{stopped(byDestroy)}, phaseEnded, vm.ExitDestroyed},
		"ended in a way we do not know":     {life{phase: phaseRunning}, []event{stopped(byMigration)}, phaseEnded, vm.ExitUnknown},
		"the run before this one ended":     {life{phase: phaseStarting, unborn: true}, []event{stopped(byFailure), {gone: true}}, phaseStarting, ""},
		"ended while starting":              {life{phase: phaseStarting}, []event{stopped(byFailure)}, phaseEnded, vm.ExitKilled},
		"the first end counts":              {life{phase: phaseRunning}, []event{shutdown("guest-shutdown"), stopped(byShutdown), {gone: true}}, phaseEnded, vm.ExitPowerOff},
		"monitor events alone end nothing":  {life{phase: phaseRunning}, []event{shutdown("guest-shutdown")}, phaseRunning, ""},
		"a shutdown nobody can read":        {life{phase: phaseRunning}, []event{{qmp: &lv.DomainQemuMonitorEvent{Event: "SHUTDOWN", Details: "{"}}, stopped(byShutdown)}, phaseEnded, vm.ExitPowerOff},
		"other monitor events are not ours": {life{phase: phaseRunning}, []event{{qmp: &lv.DomainQemuMonitorEvent{Event: "DEVICE_DELETED"}}, {}}, phaseRunning, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := test.from
			for _, e := range test.events {
				l.apply(e)
			}
			if l.phase != test.phase || l.exit.Reason != test.exit {
				t.Errorf("machine is %s, ended by %q; want %s, %q", l.phase, l.exit.Reason, test.phase, test.exit)
			}
		})
	}
}

// TestLifeEndsOnce checks that any sequence of events ends a run at most once,
// and always with a reason.
func TestLifeEndsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := life{phase: phaseStarting, ours: rapid.Bool().Draw(t, "ours")}
		ends := 0
		for range rapid.IntRange(0, 50).Draw(t, "events") {
			var e event
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				e.gone = true
			case 1, 2:
				e = shutdown(rapid.SampledFrom([]string{"guest-reset", "guest-shutdown", "guest-panic", "host-signal", ""}).Draw(t, "reason"))
			default:
				e = happened(lv.DomainEventType(rapid.IntRange(-1, 10).Draw(t, "event")), rapid.IntRange(-1, 10).Draw(t, "detail"))
			}
			if l.apply(e) {
				ends++
			}
		}
		if ended := l.phase == phaseEnded; ends > 1 || (ends == 1) != ended || ended != (l.exit.Reason != "") {
			t.Fatalf("ended %d times, %+v", ends, l)
		}
	})
}

func TestJudgeReset(t *testing.T) {
	tests := map[string]struct {
		detail, console string
		want            vm.Exit
	}{
		"power off":                     {"guest-shutdown", "Kernel panic - not syncing: printed by a liar", vm.Exit{Reason: vm.ExitPowerOff}},
		"restart":                       {"guest-reset", "all is well\n", vm.Exit{Reason: vm.ExitPowerOff, Detail: "the guest asked for a restart"}},
		"panic":                         {"guest-reset", "[ 1.0] Kernel panic - not syncing: out of \x1b[1mluck\r\n", vm.Exit{Reason: vm.ExitPanic, Detail: `"Kernel panic - not syncing: out of \x1b[1mluck"`}},
		"no console":                    {"guest-reset", "", vm.Exit{Reason: vm.ExitPowerOff, Detail: "the guest asked for a restart"}},
		"nobody said why it shuts down": {"", "", vm.Exit{Reason: vm.ExitPowerOff}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judgeReset(vm.Exit{Reason: vm.ExitPowerOff, Detail: test.detail}, []byte(test.console)); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestInboxIsBounded(t *testing.T) {
	in := newInbox()
	for range maxInbox + 1 {
		in.push(event{id: "x"})
	}
	if events, lost := in.take(); len(events) != maxInbox || !lost {
		t.Errorf("%d events, lost %v", len(events), lost)
	}
	if events, lost := in.take(); len(events) != 0 || lost {
		t.Errorf("then %d events, lost %v", len(events), lost)
	}
}
