package supervise

import (
	"context"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Submit hands a request over. It fails only when the instance is gone or ctx
// ends; what becomes of the request its tracker learns.
func (s *Supervisor) Submit(ctx context.Context, r *Request) error {
	select {
	case s.requests <- r:
	case <-s.gone:
		return notFound(s.Record())
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-s.gone:
		// Run may have looked for the last time before the request was there.
		s.refuseLate(context.WithoutCancel(ctx))
	default:
	}
	return nil
}

// refuseLate ends the requests that came when nobody took them any more.
// It is called after gone has been closed, and after every request that may
// have come too late: between the two none is missed. When the daemon is
// stopping they are left for the next one.
func (s *Supervisor) refuseLate(ctx context.Context) {
	for s.removed {
		select {
		case r := <-s.requests:
			s.refuse(ctx, r)
		default:
			return
		}
	}
}

// refuseWaiting ends the requests that wait for an instance that is no more.
// There was one when they came.
func (s *Supervisor) refuseWaiting(ctx context.Context) {
	for r := s.queue.next(); r != nil; r = s.queue.next() {
		if r.Event == instance.DeleteRequested {
			r.end(ctx, nil)
			continue
		}
		r.end(ctx, cutShortFault(r, true))
	}
}

// refuse ends a request to an instance that is no more, which is just what
// some ask for.
func (s *Supervisor) refuse(ctx context.Context, r *Request) {
	if r.Event == instance.DeleteRequested {
		r.end(ctx, nil)
		return
	}
	r.end(ctx, notFound(s.Record()))
}

// endShared ends the request whose activity is done, and those that asked for
// the same meanwhile.
func (s *Supervisor) endShared(ctx context.Context, res result) {
	res.request.end(ctx, res.err)
	for _, r := range s.queue.done() {
		r.end(ctx, res.err)
	}
}
