package supervise

import (
	"slices"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

const (
	// maxWaiting bounds the requests that wait for one instance; as many deletes
	// may wait beside them.
	maxWaiting = 32
	// maxJoined bounds those that share the end of the one at work.
	maxJoined = 256
)

// queue decides what an instance does next. It is a plain value: no lock, no
// clock, no I/O. At most one activity works at a time. A request for what is
// at work already shares its end; others that arrive meanwhile wait. A stop or
// restart cuts a start short, a delete everything. What the machine reports
// meanwhile is kept and comes before every request.
type queue struct {
	// busy is the request at work, nil when idle.
	busy    *Request
	waiting []*Request
	// joined ask for what is at work already; they share its end.
	joined []*Request
	// reports are what the machine said while an activity was at work.
	reports []report
}

// verdict is what the queue says to a request.
type verdict struct {
	answer instance.Answer
	// next is the phase after the request, when it may begin at once.
	next instance.Phase
	// begin is true when the caller must start the activity now.
	begin bool
	// interrupt is true when the activity at work must be cut short first.
	interrupt bool
	// hurry is true when the stop at work must not wait for the guest any more.
	hurry bool
	// reason is an *instance.Denial when the answer is Denied.
	reason error
}

// offer gives a request to an instance in phase p.
func (q *queue) offer(p instance.Phase, r *Request) verdict {
	next, answer, err := instance.Next(p, r.Event)
	if q.busy == nil {
		if p == instance.Deleting && r.Event == instance.DeleteRequested {
			answer, next = instance.Accepted, p // an earlier delete failed: try again
		}
		if answer == instance.Accepted {
			q.busy = r
		}
		return verdict{answer: answer, next: next, begin: answer == instance.Accepted, reason: err}
	}
	deny := func(d instance.Denial) verdict {
		d.Event, d.Phase = r.Event, p
		return verdict{answer: instance.Denied, next: p, reason: &d}
	}
	same := q.busy.Event == r.Event && !q.busy.canceled && !q.busy.overtaken
	switch {
	case same && len(q.joined) >= maxJoined:
		return deny(instance.Denial{Reason: instance.QueueFull})
	case same:
		q.joined = append(q.joined, r)
		return verdict{answer: instance.Accepted, next: p, hurry: r.Force && !q.busy.Force}
	case q.busy.working == instance.DeleteRequested && r.Event != instance.DeleteRequested:
		// Nothing that waits behind a delete can ever be done.
		return deny(instance.Denial{Reason: instance.IsDeleting})
	case r.Event.Origin() == instance.ByPolicy && r.Event != instance.Used:
		return verdict{answer: instance.Ignored, next: p} // policies look again when this is done
	case len(q.waiting) >= 2*maxWaiting, len(q.waiting) >= maxWaiting && r.Event != instance.DeleteRequested:
		return deny(instance.Denial{Reason: instance.QueueFull})
	}
	q.waiting = append(q.waiting, r)
	// What would be refused in this phase must wait for the next one: cut short
	// now, the work would leave an instance that nobody works on.
	return verdict{answer: instance.Accepted, next: p, interrupt: answer != instance.Denied && outranks(r.Event, q.busy.working)}
}

// urgent returns a request that waits and may cut the one at work short, now
// that the instance is in phase p; nil if there is none.
func (q *queue) urgent(p instance.Phase) *Request {
	for _, r := range q.waiting {
		_, answer, _ := instance.Next(p, r.Event)
		if q.busy != nil && answer == instance.Accepted && outranks(r.Event, q.busy.working) {
			return r
		}
	}
	return nil
}

// report gives what the machine says, and returns whether to act on it now.
func (q *queue) report(r report) bool {
	if q.busy == nil {
		return true
	}
	q.reports = append(q.reports, r)
	return false
}

// done says that the activity at work has ended, and returns those who share
// its end.
func (q *queue) done() []*Request {
	all := q.joined
	q.busy, q.joined = nil, nil
	return all
}

// said takes the next report of the machine, if there is one.
func (q *queue) said() (report, bool) {
	if len(q.reports) == 0 {
		return report{}, false
	}
	r := q.reports[0]
	q.reports = q.reports[1:]
	return r, true
}

// next takes the next request that waits, nil if none does: a delete before
// all others, then in the order of arrival.
func (q *queue) next() *Request {
	if len(q.waiting) == 0 {
		return nil
	}
	at := max(0, slices.IndexFunc(q.waiting, func(r *Request) bool { return r.Event == instance.DeleteRequested }))
	r := q.waiting[at]
	q.waiting = slices.Delete(q.waiting, at, at+1)
	return r
}

// withdrawal is what the queue says to the end of a request.
type withdrawal struct {
	// request is the one that was found; nil if none was.
	request *Request
	// ended is true when nothing had begun for it, or others go on with it.
	ended bool
}

// withdraw takes a request back by its id. One that is at work stays there.
func (q *queue) withdraw(id string) withdrawal {
	for _, list := range []*[]*Request{&q.waiting, &q.joined} {
		for i, r := range *list {
			if r.ID == id && r.begun {
				return withdrawal{request: r}
			}
			if r.ID == id {
				*list = slices.Delete(*list, i, i+1)
				return withdrawal{request: r, ended: true}
			}
		}
	}
	if q.busy == nil || q.busy.ID != id {
		return withdrawal{}
	}
	return withdrawal{request: q.busy}
}

// outranks reports whether a new request cuts the one at work short.
func outranks(fresh, busy instance.Event) bool {
	switch fresh {
	case instance.DeleteRequested:
		return busy != instance.DeleteRequested
	case instance.StopRequested, instance.RestartRequested:
		return busy == instance.StartRequested || busy == recovering || busy == instance.ResumeRequested || busy == instance.Used
	}
	return false
}

// recovering marks the activity that takes a machine over after a restart. It
// is never requested, so it is no event of package instance.
const recovering instance.Event = "recover"
