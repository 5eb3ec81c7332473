package instance_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// accepted is the whole table, written a second time on purpose: from → event
// → to. A pair that is not here must not change the phase.
var accepted = map[instance.Phase]map[instance.Event]instance.Phase{
	instance.Provisioning: {
		instance.Prepared: instance.Starting, instance.GaveUp: instance.Failed, instance.DeleteRequested: instance.Deleting,
		instance.Expired: instance.Deleting, instance.RenewRequested: instance.Provisioning,
	},
	instance.Starting: {
		instance.Answered: instance.Running, instance.GaveUp: instance.Failed, instance.Crashed: instance.Failed,
		instance.PoweredOff: instance.Failed, instance.StopRequested: instance.Stopping, instance.DeleteRequested: instance.Deleting,
		instance.RestartRequested: instance.Stopping, instance.Expired: instance.Stopping, instance.RenewRequested: instance.Starting,
		instance.Lost: instance.Failed,
	},
	instance.Running: {
		instance.StopRequested: instance.Stopping, instance.PauseRequested: instance.Paused, instance.PoweredOff: instance.Stopped,
		instance.Crashed: instance.Failed, instance.GaveUp: instance.Failed, instance.DeleteRequested: instance.Deleting,
		instance.RestartRequested: instance.Stopping, instance.Expired: instance.Stopping, instance.RenewRequested: instance.Running,
		instance.IdlePaused: instance.Paused, instance.IdleStopped: instance.Stopping, instance.Lost: instance.Failed,
	},
	instance.Paused: {
		instance.ResumeRequested: instance.Running, instance.StopRequested: instance.Stopping, instance.Crashed: instance.Failed,
		instance.PoweredOff: instance.Failed, instance.GaveUp: instance.Failed, instance.DeleteRequested: instance.Deleting,
		instance.RestartRequested: instance.Stopping, instance.Expired: instance.Stopping, instance.RenewRequested: instance.Paused,
		instance.Used: instance.Running, instance.Lost: instance.Failed,
	},
	instance.Stopping: {
		instance.PoweredOff: instance.Stopped, instance.Crashed: instance.Stopped, instance.GaveUp: instance.Failed,
		instance.DeleteRequested: instance.Deleting, instance.RenewRequested: instance.Stopping, instance.Lost: instance.Failed,
	},
	instance.Stopped: {
		instance.StartRequested: instance.Starting, instance.DeleteRequested: instance.Deleting,
		instance.RestartRequested: instance.Starting, instance.Used: instance.Starting, instance.Expired: instance.Deleting,
		instance.RenewRequested: instance.Stopped, instance.Lost: instance.Failed,
	},
	instance.Failed: {
		instance.StartRequested: instance.Starting, instance.StopRequested: instance.Stopping, instance.DeleteRequested: instance.Deleting,
		instance.RestartRequested: instance.Stopping, instance.Expired: instance.Deleting, instance.RenewRequested: instance.Failed,
	},
	instance.Deleting: {},
}

// ignored are the requests that are fulfilled already.
var ignored = map[instance.Phase][]instance.Event{
	instance.Provisioning: {instance.StartRequested},
	instance.Starting:     {instance.StartRequested},
	instance.Running:      {instance.StartRequested, instance.ResumeRequested},
	instance.Paused:       {instance.PauseRequested},
	instance.Stopping:     {instance.StopRequested},
	instance.Stopped:      {instance.StopRequested},
	instance.Deleting:     {instance.DeleteRequested},
}

var requests = []instance.Event{
	instance.StartRequested, instance.StopRequested, instance.RestartRequested, instance.PauseRequested, instance.ResumeRequested,
	instance.RenewRequested, instance.DeleteRequested,
}

func TestNextForEveryPair(t *testing.T) {
	for _, p := range instance.Phases() {
		for _, e := range instance.Events() {
			to, answer, err := instance.Next(p, e)
			want, ok := accepted[p][e]
			switch {
			case ok:
				if to != want || answer != instance.Accepted || err != nil {
					t.Errorf("Next(%s, %s) = %s, %s, %v; want %s accepted", p, e, to, answer, err, want)
				}
			case !slices.Contains(requests, e) || slices.Contains(ignored[p], e):
				if to != p || answer != instance.Ignored || err != nil {
					t.Errorf("Next(%s, %s) = %s, %s, %v; want it ignored", p, e, to, answer, err)
				}
			default:
				var denial *instance.Denial
				if to != p || answer != instance.Denied || !errors.As(err, &denial) || denial.Reason == "" {
					t.Errorf("Next(%s, %s) = %s, %s, %v; want it denied with a reason", p, e, to, answer, err)
				}
			}
		}
	}
}

// TestDenialsHaveARemedy: every request that is denied says what to do next,
// save where the instance is about to be no more.
func TestDenialsHaveARemedy(t *testing.T) {
	want := map[instance.Phase]string{
		instance.Provisioning: "wait until `sandboxctl show dev` says running",
		instance.Starting:     "wait until `sandboxctl show dev` says running",
		instance.Paused:       "resume it with `sandboxctl resume dev`",
		instance.Stopping:     "wait until `sandboxctl show dev` says stopped",
		instance.Stopped:      "start it with `sandboxctl start dev`",
		instance.Failed:       "start it with `sandboxctl start dev`",
	}
	for _, p := range instance.Phases() {
		for _, e := range requests {
			var denial *instance.Denial
			if _, _, err := instance.Next(p, e); errors.As(err, &denial) && denial.Remedy("dev") != want[p] {
				t.Errorf("%s while %s: %q, want %q", e, p, denial.Remedy("dev"), want[p])
			}
		}
	}
	full := &instance.Denial{Event: instance.StopRequested, Phase: instance.Running, Reason: instance.QueueFull}
	if full.Remedy("dev") == "" {
		t.Error("nothing is said when too many wait")
	}
}

// TestDeletingIsForEver walks at random and checks that nothing leaves
// Deleting and that every phase can be deleted.
func TestDeletingIsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := instance.Provisioning
		deleted := false
		for _, e := range rapid.SliceOf(rapid.SampledFrom(instance.Events())).Draw(t, "events") {
			to, _, _ := instance.Next(p, e)
			if deleted && to != instance.Deleting {
				t.Fatalf("%s after %s left deleting", to, e)
			}
			deleted = deleted || to == instance.Deleting
			p = to
		}
	})
}

func TestParseID(t *testing.T) {
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := instance.ParseID(id.String()); err != nil || back != id {
		t.Errorf("ParseID(%q) = %q, %v", id, back, err)
	}
	for _, bad := range []string{"", "x", "018FC0A2-7777-7AAA-BBBB-CCCCDDDDEEEE", "{018fc0a2-7777-7aaa-bbbb-ccccddddeeee}", "018fc0a2-7777-1aaa-bbbb-ccccddddeeee", "../../../etc/passwd"} {
		if _, err := instance.ParseID(bad); err == nil {
			t.Errorf("ParseID(%q) was accepted", bad)
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{"ab", "agent-1", "a23456789-123456789-123456789-123456789-123456789-123456789-123"} {
		if err := instance.CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a", "-a", "a-", "A1", "a_b", "1a", "a/b", "..", "a23456789-123456789-123456789-123456789-123456789-123456789-1234"} {
		if err := instance.CheckName(bad); err == nil {
			t.Errorf("CheckName(%q) was accepted", bad)
		}
	}
}

// TestTimeIsUp: from every phase, what follows an expiry ends in a removal.
func TestTimeIsUp(t *testing.T) {
	for _, p := range instance.Phases() {
		to, answer, _ := instance.Next(p, instance.Expired)
		switch {
		case p == instance.Deleting || p == instance.Stopping: // on its way, and asked again when it is down
			if answer != instance.Ignored {
				t.Errorf("expired while %s: %s", p, answer)
			}
		case to != instance.Deleting && to != instance.Stopping:
			t.Errorf("expired while %s: %s", p, to)
		}
	}
}
