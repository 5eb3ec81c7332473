package supervise

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// requestOf is a request that, once begun, works as itself.
func requestOf(e instance.Event) *Request { return &Request{Event: e, working: e} }

// after ends the activity at work and takes the next request.
func (q *queue) after() *Request {
	q.done()
	return q.next()
}

func TestStopCutsStartShort(t *testing.T) {
	var q queue
	if v := q.offer(instance.Stopped, requestOf(instance.StartRequested)); !v.begin || v.next != instance.Starting {
		t.Fatalf("start of a stopped instance: %+v", v)
	}
	if v := q.offer(instance.Starting, requestOf(instance.StopRequested)); !v.interrupt || v.begin {
		t.Errorf("stop while starting: %+v, want it to interrupt and wait", v)
	}
	if r := q.after(); r == nil || r.Event != instance.StopRequested {
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
	if got := q.done(); len(got) != 1 || got[0] != second {
		t.Errorf("the end is shared by %v, want the second stop", got)
	}
	if r := q.next(); r != nil || len(q.done()) != 0 {
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
	if r := q.after(); r == nil || r.Event != instance.DeleteRequested {
		t.Errorf("next is %v, want the delete", r)
	}
}

func TestNothingWaitsBehindDelete(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.DeleteRequested))
	if v := q.offer(instance.Deleting, requestOf(instance.StartRequested)); v.answer != instance.Denied {
		t.Errorf("start behind a delete: %+v", v)
	}
	if v := q.offer(instance.Deleting, requestOf(instance.DeleteRequested)); v.answer != instance.Accepted || len(q.done()) != 1 {
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

func TestForceHurriesAStop(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.StopRequested))
	r := requestOf(instance.StopRequested)
	r.Force = true
	if v := q.offer(instance.Stopping, r); !v.hurry || v.answer != instance.Accepted || v.begin || v.interrupt {
		t.Errorf("a forced stop behind a stop: %+v", v)
	}
}

func TestReportsComeFirst(t *testing.T) {
	var q queue
	if !q.report(report{kind: machineExit}) {
		t.Error("a report to an idle instance has to wait")
	}
	q.offer(instance.Running, requestOf(instance.PauseRequested))
	q.offer(instance.Running, requestOf(instance.StopRequested))
	if q.report(report{kind: machineExit}) {
		t.Error("a report is acted on while an activity works")
	}
	q.done()
	if r, ok := q.said(); !ok || r.kind != machineExit {
		t.Errorf("after the activity comes %v, want the report", r)
	}
	if _, ok := q.said(); ok {
		t.Error("a report is told twice")
	}
	if r := q.next(); r == nil || r.Event != instance.StopRequested {
		t.Errorf("then comes %v, want the stop", r)
	}
}

func TestQueueIsBounded(t *testing.T) {
	var q queue
	q.offer(instance.Running, requestOf(instance.StopRequested))
	for range maxWaiting {
		if v := q.offer(instance.Stopping, requestOf(instance.StartRequested)); v.answer != instance.Accepted {
			t.Fatalf("start behind a stop: %+v", v)
		}
	}
	v := q.offer(instance.Stopping, requestOf(instance.StartRequested))
	var d *instance.Denial
	if v.answer != instance.Denied || !errors.As(v.reason, &d) || d.Reason != instance.QueueFull {
		t.Errorf("one too many: %+v", v)
	}
	if v := q.offer(instance.Stopping, requestOf(instance.DeleteRequested)); v.answer != instance.Accepted {
		t.Errorf("a delete behind too many: %+v", v)
	}
	// Neither may those that ask for the same be without number.
	for _, e := range []instance.Event{instance.DeleteRequested, instance.StopRequested} {
		for range 1000 {
			q.offer(instance.Stopping, requestOf(e))
		}
		if v := q.offer(instance.Stopping, requestOf(e)); v.answer != instance.Denied || !errors.As(v.reason, &d) || d.Reason != instance.QueueFull {
			t.Errorf("one %s too many: %+v", e, v)
		}
	}
	if len(q.waiting) > 2*maxWaiting || len(q.joined) > maxJoined {
		t.Errorf("%d wait, %d have joined", len(q.waiting), len(q.joined))
	}
}

func TestWithdraw(t *testing.T) {
	var q queue
	of := func(id string, e instance.Event) *Request {
		r := requestOf(e)
		r.ID = id
		return r
	}
	q.offer(instance.Stopped, of("work", instance.StartRequested))
	q.offer(instance.Starting, of("joined", instance.StartRequested))
	q.offer(instance.Starting, of("waits", instance.PauseRequested))
	for _, c := range []struct {
		id           string
		found, ended bool
	}{{"nobody", false, false}, {"joined", true, true}, {"joined", false, false}, {"waits", true, true}, {"work", true, false}} {
		w := q.withdraw(c.id)
		if (w.request != nil) != c.found || w.ended != c.ended {
			t.Errorf("withdraw %q: %+v", c.id, w)
		}
	}
	if len(q.done()) != 0 || q.next() != nil {
		t.Error("something withdrawn is left")
	}
	begun := of("begun", instance.DeleteRequested)
	begun.begun = true
	q = queue{busy: of("work", instance.StartRequested), waiting: []*Request{begun}}
	if w := q.withdraw("begun"); w.request != begun || w.ended || q.next() != begun {
		t.Errorf("withdraw of what has cut another short: %+v", w)
	}
}

// TestOneActivityAtATime offers requests at random and checks that no activity
// begins while another works, that reports come before requests, and that every
// accepted request is handed out, shares an end or is withdrawn exactly once.
func TestOneActivityAtATime(t *testing.T) {
	requests := slices.DeleteFunc(instance.Events(), func(e instance.Event) bool { return e.Origin() == instance.ByMachine })
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		phase := rapid.SampledFrom(instance.Phases()).Draw(t, "phase")
		waiting := map[string]*Request{}
		reports := 0
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"request", "request", "finish", "report", "withdraw"}).Draw(t, "what") {
			case "report":
				if q.report(report{kind: machineExit}) != (q.busy == nil) {
					t.Fatal("a report is not acted on at once, or is while an activity works")
				}
				if q.busy != nil {
					reports++
				}
			case "withdraw":
				if len(waiting) == 0 {
					continue
				}
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(waiting))).Draw(t, "id")
				if w := q.withdraw(id); w.request != waiting[id] || !w.ended {
					t.Fatalf("withdraw: %+v", w)
				}
				delete(waiting, id)
			case "finish":
				if q.busy == nil {
					continue
				}
				busy := q.busy
				for _, r := range q.done() {
					if waiting[r.ID] != r || r.Event != busy.Event {
						t.Fatalf("%s shares the end of %s", r.Event, busy.Event)
					}
					delete(waiting, r.ID)
				}
				for _, ok := q.said(); ok; _, ok = q.said() {
					reports--
				}
				if reports != 0 {
					t.Fatalf("%d reports were lost", reports)
				}
				if r := q.next(); r != nil {
					if waiting[r.ID] != r {
						t.Fatalf("%s was handed out twice", r.Event)
					}
					delete(waiting, r.ID)
				} else if len(waiting) > 0 {
					t.Fatalf("%d requests were lost", len(waiting))
				}
				phase = rapid.SampledFrom(instance.Phases()).Draw(t, "next phase")
			case "request":
				r := requestOf(rapid.SampledFrom(requests).Draw(t, "request"))
				r.ID = strconv.Itoa(n)
				busy := q.busy
				v := q.offer(phase, r)
				var d *instance.Denial
				switch {
				case v.begin && busy != nil:
					t.Fatalf("%s began while %s worked", r.Event, busy.Event)
				case v.answer == instance.Accepted && !v.begin:
					waiting[r.ID] = r
				case v.answer == instance.Denied && (!errors.As(v.reason, &d) || d.Reason == ""):
					t.Fatalf("%s was denied without a named reason", r.Event)
				case v.begin:
					phase = v.next
				}
				if r.Event.Origin() == instance.ByPolicy && v.answer == instance.Denied && busy == nil {
					t.Fatalf("policy %s was denied", r.Event)
				}
			}
		}
	})
}

// TestWhatComesTooEarlyWaits: a stop of an instance whose files are still
// being made would be refused in that phase, so it must not cut the work short
// either, or nobody would work on the instance any more. It does so as soon as
// the phase allows.
func TestWhatComesTooEarlyWaits(t *testing.T) {
	for _, e := range []instance.Event{instance.StopRequested, instance.RestartRequested} {
		q := queue{busy: requestOf(instance.StartRequested)}
		r := requestOf(e)
		if v := q.offer(instance.Provisioning, r); v.answer != instance.Accepted || v.interrupt || v.begin {
			t.Errorf("%s while provisioning: %+v, want it to wait", e, v)
		}
		if got := q.urgent(instance.Provisioning); got != nil {
			t.Errorf("%s is urgent while provisioning", got.Event)
		}
		if got := q.urgent(instance.Starting); got != r {
			t.Errorf("%s is not urgent while starting", e)
		}
	}
	q := queue{busy: requestOf(instance.StartRequested)}
	if v := q.offer(instance.Provisioning, requestOf(instance.DeleteRequested)); !v.interrupt {
		t.Errorf("delete while provisioning: %+v, want it to interrupt", v)
	}
}

// TestWhatOutranksWhat: for every pair, who cuts whom short.
func TestWhatOutranksWhat(t *testing.T) {
	short := map[instance.Event][]instance.Event{
		instance.StopRequested: {instance.StartRequested, recovering, instance.ResumeRequested, instance.Used},
	}
	short[instance.RestartRequested] = short[instance.StopRequested]
	for _, fresh := range instance.Events() {
		for _, busy := range append(instance.Events(), recovering) {
			want := slices.Contains(short[fresh], busy) || fresh == instance.DeleteRequested && busy != instance.DeleteRequested
			if got := outranks(fresh, busy); got != want {
				t.Errorf("%s cuts %s short: %t, want %t", fresh, busy, got, want)
			}
		}
	}
}

// TestWhatBecameADeleteIsOne: an instance whose time was up is removed in the
// end; then nothing waits for it any more, and a delete shares that.
func TestWhatBecameADeleteIsOne(t *testing.T) {
	q := queue{busy: &Request{Event: instance.Expired, working: instance.DeleteRequested}}
	if v := q.offer(instance.Deleting, requestOf(instance.StartRequested)); v.answer != instance.Denied {
		t.Errorf("start behind a removal: %+v", v)
	}
	if v := q.offer(instance.Deleting, requestOf(instance.DeleteRequested)); v.answer != instance.Accepted || v.interrupt {
		t.Errorf("delete behind a removal: %+v", v)
	}
}

// TestNothingSharesACancelledEnd: who asks for what is being cancelled wants it
// done all the same.
func TestNothingSharesACancelledEnd(t *testing.T) {
	q := queue{busy: &Request{Event: instance.StartRequested, working: instance.StartRequested, canceled: true}}
	r := requestOf(instance.StartRequested)
	q.offer(instance.Stopping, r)
	if len(q.done()) != 0 || q.next() != r {
		t.Error("the second start shares the end of a cancelled one")
	}
}

// TestPoliciesLookAgain: what is idle or over asks again by itself and waits
// for nothing; who wants to use a machine waits.
func TestPoliciesLookAgain(t *testing.T) {
	for e, want := range map[instance.Event]instance.Answer{
		instance.Expired: instance.Ignored, instance.IdlePaused: instance.Ignored, instance.IdleStopped: instance.Ignored,
		instance.Used: instance.Accepted,
	} {
		q := queue{busy: requestOf(instance.PauseRequested)}
		if v := q.offer(instance.Running, requestOf(e)); v.answer != want || (len(q.waiting) == 1) != (want == instance.Accepted) {
			t.Errorf("%s while pausing: %+v", e, v)
		}
	}
}
