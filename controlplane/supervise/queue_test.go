package supervise

import (
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

func requestOf(e instance.Event) *Request { return &Request{Event: e} }

func TestStopCutsStartShort(t *testing.T) {
	var q queue
	if v := q.offer(instance.Stopped, requestOf(instance.StartRequested)); !v.begin || v.next != instance.Starting {
		t.Fatalf("start of a stopped instance: %+v", v)
	}
	if v := q.offer(instance.Starting, requestOf(instance.StopRequested)); !v.interrupt || v.begin {
		t.Errorf("stop while starting: %+v, want it to interrupt and wait", v)
	}
	if r := q.done(); r == nil || r.Event != instance.StopRequested {
		t.Errorf("after the start came %v, want the stop", r)
	}
}

func TestRepeatedRequestSharesTheEnd(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.StopRequested))
	second := requestOf(instance.StopRequested)
	if v := q.offer(instance.Stopping, second); v.answer != instance.Accepted || v.begin || v.interrupt {
		t.Errorf("second stop: %+v", v)
	}
	if got := q.shared(); len(got) != 1 || got[0] != second {
		t.Errorf("the end is shared by %v, want the second stop", got)
	}
	if r := q.done(); r != nil || len(q.shared()) != 0 {
		t.Errorf("after the stop came %v, want nothing", r)
	}
}

func TestFulfilledRequestIsIgnored(t *testing.T) {
	var q queue
	if v := q.offer(instance.Stopped, requestOf(instance.StopRequested)); v.answer != instance.Ignored {
		t.Errorf("stop of a stopped instance: %+v", v)
	}
}

func TestDeleteComesFirst(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.StopRequested))
	q.offer(instance.Stopping, requestOf(instance.StartRequested))
	if v := q.offer(instance.Stopping, requestOf(instance.DeleteRequested)); !v.interrupt {
		t.Errorf("delete while stopping: %+v, want it to interrupt", v)
	}
	if r := q.done(); r == nil || r.Event != instance.DeleteRequested {
		t.Errorf("next is %v, want the delete", r)
	}
}

func TestNothingWaitsBehindDelete(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.DeleteRequested))
	if v := q.offer(instance.Deleting, requestOf(instance.StartRequested)); v.answer != instance.Denied {
		t.Errorf("start behind a delete: %+v", v)
	}
	if v := q.offer(instance.Deleting, requestOf(instance.DeleteRequested)); v.answer != instance.Accepted || len(q.shared()) != 1 {
		t.Errorf("second delete: %+v", v)
	}
}

func TestFailedDeleteCanBeRepeated(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.DeleteRequested))
	q.done() // it failed, and the phase is still deleting
	if v := q.offer(instance.Deleting, requestOf(instance.DeleteRequested)); !v.begin {
		t.Errorf("delete after a failed one: %+v", v)
	}
}

// TestOneActivityAtATime offers requests at random and checks that no activity
// begins while another works, and that every accepted request is handed out or
// shares an end exactly once.
func TestOneActivityAtATime(t *testing.T) {
	requests := []instance.Event{
		instance.StartRequested, instance.StopRequested, instance.PauseRequested,
		instance.ResumeRequested, instance.DeleteRequested,
	}
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		phase := rapid.SampledFrom(instance.Phases()).Draw(t, "phase")
		waiting := map[*Request]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "finish") && q.busy != "" {
				for _, r := range q.shared() {
					if !waiting[r] || r.Event != q.busy {
						t.Fatalf("%s shares the end of %s", r.Event, q.busy)
					}
					delete(waiting, r)
				}
				if r := q.done(); r != nil {
					if !waiting[r] {
						t.Fatalf("%s was handed out twice", r.Event)
					}
					delete(waiting, r)
				} else if len(waiting) > 0 {
					t.Fatalf("%d requests were lost", len(waiting))
				}
				phase = rapid.SampledFrom(instance.Phases()).Draw(t, "next phase")
				continue
			}
			r := requestOf(rapid.SampledFrom(requests).Draw(t, "request"))
			busy := q.busy
			v := q.offer(phase, r)
			switch {
			case v.begin && busy != "":
				t.Fatalf("%s began while %s worked", r.Event, busy)
			case v.answer == instance.Accepted && !v.begin:
				waiting[r] = true
			case v.answer == instance.Denied && v.reason == nil:
				t.Fatalf("%s was denied without a reason", r.Event)
			case v.begin:
				phase = v.next
			}
		}
	})
}
