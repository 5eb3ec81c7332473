package supervise

import (
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// queue decides what an instance does next. It is a plain value: no lock, no
// clock, no I/O. At most one activity works at a time. A request for what is
// at work already shares its end; others that arrive meanwhile wait, except
// that stop and delete cut a start short.
type queue struct {
	// busy is the request at work, "" when idle.
	busy    instance.Event
	waiting []*Request
	// joined ask for what is at work already; they share its end.
	joined []*Request
}

// verdict is what the queue says to a request.
type verdict struct {
	answer instance.Answer
	// next is the phase after the request, when it may begin at once.
	next instance.Phase
	// begin is true when the caller must start the activity now.
	begin bool
	// interrupt is true when the activity at work must be cancelled first.
	interrupt bool
	reason    error
}

// offer gives a request to an instance in phase p.
func (q *queue) offer(p instance.Phase, r *Request) verdict {
	next, answer, err := instance.Next(p, r.Event)
	if q.busy == "" && p == instance.Deleting && r.Event == instance.DeleteRequested {
		answer, next = instance.Accepted, p // an earlier delete failed: try again
	}
	switch {
	case answer == instance.Denied && q.busy == "":
		return verdict{answer: answer, next: p, reason: err}
	case answer == instance.Ignored && q.busy == "":
		return verdict{answer: answer, next: p}
	case q.busy == r.Event && (answer == instance.Ignored || r.Event == instance.DeleteRequested):
		q.joined = append(q.joined, r)
		return verdict{answer: instance.Accepted, next: p}
	case q.busy == "":
		q.busy = r.Event
		return verdict{answer: answer, next: next, begin: true}
	}
	if q.busy == instance.DeleteRequested {
		// Nothing that waits behind a delete can ever be done.
		_, _, err := instance.Next(instance.Deleting, r.Event)
		return verdict{answer: instance.Denied, next: p, reason: err}
	}
	q.waiting = append(q.waiting, r)
	return verdict{answer: instance.Accepted, next: p, interrupt: outranks(r.Event, q.busy)}
}

// shared returns the requests that end with the activity at work.
func (q *queue) shared() []*Request {
	all := q.joined
	q.joined = nil
	return all
}

// done says that the activity at work has ended, and takes the next request:
// a delete before all others, then in order of arrival.
func (q *queue) done() *Request {
	q.busy = ""
	if len(q.waiting) == 0 {
		return nil
	}
	at := 0
	for i, r := range q.waiting {
		if r.Event == instance.DeleteRequested {
			at = i
			break
		}
	}
	r := q.waiting[at]
	q.waiting = append(q.waiting[:at:at], q.waiting[at+1:]...)
	return r
}

// outranks reports whether a new request cuts the one at work short. An empty
// event at work is a recovery, which is as interruptible as a start.
func outranks(fresh, busy instance.Event) bool {
	interruptible := busy == instance.StartRequested || busy == recovering || busy == instance.ResumeRequested
	switch fresh {
	case instance.DeleteRequested:
		return busy != instance.DeleteRequested
	case instance.StopRequested:
		return interruptible
	default:
		return false
	}
}

// recovering marks the activity that takes a machine over after a restart. It
// is never requested, so it is no event of package instance.
const recovering instance.Event = "recover"
