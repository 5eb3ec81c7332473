package push

import (
	"context"
	"errors"
	"net/url"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/share"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// worker delivers the log of one task to one webhook, in order.
type worker struct {
	s     *Service
	hook  Hook
	p     Progress
	saved uint64 // the cursor in the store
	rec   task.Record
	owner share.Owner // of the task
	stop  context.CancelFunc
	done  chan struct{}

	troubles int // failures of ours in a row: the store's, not the webhook's
}

// next says what a worker does after a turn.
type next int

const (
	again next = iota // there may be more
	rest              // wait for the log or for time to pass
	end
)

// lookAgain is the pause after which the log of a task that nobody seems to
// work on is read once more.
const lookAgain = 15 * time.Second

// work delivers until the webhook has everything, or is given up, or ctx ends.
func (w *worker) work(ctx context.Context) {
	defer w.keep(context.WithoutCancel(ctx))
	if wait := w.p.NotBefore.Sub(w.s.cfg.Now()); wait > 0 && w.p.Failures > 0 {
		w.sleep(ctx, min(wait, w.s.cfg.Limits.MaxRetry), nil) // a clock may have jumped
	}
	for ctx.Err() == nil {
		changed := w.s.cfg.Tasks.Changed(w.hook.TaskID)
		n, pause := w.turn(ctx, changed == nil)
		switch {
		case n == end:
			return
		case n == again:
			continue
		case pause > 0: // a failure: what else happens meanwhile changes nothing
			w.sleep(ctx, pause, nil)
		case changed != nil:
			w.sleep(ctx, 0, changed)
		default:
			w.sleep(ctx, lookAgain, nil)
		}
	}
}

// sleep waits for a time, or for changed, or for ctx. No time: for ever.
func (w *worker) sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	var after <-chan time.Time
	if d > 0 {
		after = w.s.cfg.After(d)
	}
	select {
	case <-after:
	case <-changed:
	case <-ctx.Done():
	}
}

// turn delivers some events while it holds a place at the gate, and no longer:
// what waits holds neither a place nor memory. idle says that nobody works on
// the task, so that a log without more has perhaps ended.
func (w *worker) turn(ctx context.Context, idle bool) (next, time.Duration) {
	if w.p.State != Active {
		return w.finish(ctx) // it could not be stored before
	}
	if w.rec.ID == "" || idle {
		rec, err := w.s.cfg.Log.Task(ctx, task.System(), w.hook.TaskID, task.View{Inline: -1})
		if errors.Is(err, task.ErrNotFound) {
			return end, 0 // and the webhook with it
		}
		if err != nil {
			return w.trouble(ctx, "read the task", err)
		}
		w.rec = rec
	}
	leave := w.s.gate.Enter(ctx, w.owner)
	if leave == nil {
		return end, 0
	}
	defer leave()
	events, err := w.s.cfg.Log.Events(ctx, task.System(), w.hook.TaskID, w.p.Delivered)
	if err != nil {
		return w.trouble(ctx, "read the task's events", err)
	}
	began := w.s.cfg.Now()
	for _, e := range events {
		if n, pause := w.deliver(ctx, e); n != again {
			return n, pause
		}
		if w.s.cfg.Now().Sub(began) >= w.s.cfg.Limits.Timeout {
			break // a slow webhook, which must not keep its place from others
		}
	}
	// The events were told, or skipped, before the cursor is stored: that way
	// round a crash repeats some and loses none.
	if n, pause := w.save(ctx); n != again {
		return n, pause
	}
	switch {
	case len(events) > 0:
		return again, 0
	case idle && w.rec.Status.State.Terminal():
		w.p.State = Done
		return w.finish(ctx)
	}
	return rest, 0
}

// deliver tries one event once.
func (w *worker) deliver(ctx context.Context, e task.Event) (next, time.Duration) {
	body, err := w.s.cfg.Format(ctx, w.hook.Version, w.rec, e)
	if err != nil {
		return w.failed(ctx, e.Seq, &failure{cause: "not formatted", err: err})
	}
	if len(body.Data) > 0 {
		if f := w.s.post.try(ctx, w.hook, e.Seq, body); f != nil {
			return w.failed(ctx, e.Seq, f)
		}
	}
	w.p = Progress{State: Active, Delivered: e.Seq}
	switch {
	case last(e):
		w.p.State = Done
		return w.finish(ctx)
	case e.Status != nil: // changes of status are few, and worth not repeating
		return w.save(ctx)
	}
	return again, 0
}

// failed counts a failed try and says when the next is, if there is one.
func (w *worker) failed(ctx context.Context, seq uint64, f *failure) (next, time.Duration) {
	if ctx.Err() != nil {
		return end, 0 // our own end is no failure of the webhook
	}
	now, l := w.s.cfg.Now(), w.s.cfg.Limits
	if w.p.Failures++; w.p.Failures == 1 {
		w.p.FailingSince = now
	}
	w.p.Cause = f.cause
	log := w.s.cfg.Logger.With("task", w.hook.TaskID, "webhook", w.hook.ID, "host", hostOf(w.hook.URL), "event", seq,
		"failures", w.p.Failures, "cause", f.cause)
	if f.final || w.p.Failures >= l.MaxTries || now.Sub(w.p.FailingSince) >= l.MaxAge {
		w.p.State = GaveUp
		log.WarnContext(ctx, "webhook given up", "since", w.p.FailingSince, "error", f.err)
		return w.finish(ctx)
	}
	pause := max(backoff(l.FirstRetry, l.MaxRetry, w.p.Failures, w.s.cfg.Jitter()), min(f.after, l.MaxRetry))
	w.p.NotBefore = now.Add(pause)
	log.DebugContext(ctx, "webhook failed", "retry_in", pause, "error", f.err)
	if n, trouble := w.save(ctx); n != again {
		return n, max(pause, trouble)
	}
	return rest, pause
}

// backoff is the pause after the n-th failure: doubled with each up to limit,
// and then between half of that and all of it.
func backoff(first, limit time.Duration, n int, jitter float64) time.Duration {
	d := first
	for range n - 1 {
		if d *= 2; d >= limit || d <= 0 {
			d = limit
			break
		}
	}
	d = min(d, limit)
	return d/2 + time.Duration(jitter*float64(d-d/2))
}

// hostOf is the part of an address that may be logged: paths and queries can
// hold secrets.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// save stores the progress.
func (w *worker) save(ctx context.Context) (next, time.Duration) {
	if w.p.Delivered == w.saved && w.p.Failures == 0 && w.p.State == Active {
		w.troubles = 0
		return again, 0
	}
	switch err := w.s.cfg.Store.Save(ctx, w.hook.Serial, w.p); {
	case errors.Is(err, ErrGone):
		return end, 0
	case err != nil:
		return w.trouble(ctx, "store the progress of a webhook", err)
	}
	w.saved, w.troubles = w.p.Delivered, 0
	return again, 0
}

// finish stores that the worker has no more to do, however long that takes:
// it is what a restart would else do all over again.
func (w *worker) finish(ctx context.Context) (next, time.Duration) {
	n, pause := w.save(ctx)
	if n == rest {
		return rest, pause
	}
	return end, 0
}

// keep stores what was delivered but not stored when the worker is stopped.
func (w *worker) keep(ctx context.Context) {
	if w.p.Delivered <= w.saved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := w.s.cfg.Store.Save(ctx, w.hook.Serial, w.p); err != nil && !errors.Is(err, ErrGone) {
		w.s.cfg.Logger.ErrorContext(ctx, "cannot store the progress of a webhook", "task", w.hook.TaskID, "error", err)
	}
}

// trouble is a failure on our side: it does not count against the webhook.
func (w *worker) trouble(ctx context.Context, what string, err error) (next, time.Duration) {
	if ctx.Err() != nil {
		return end, 0
	}
	w.troubles++
	w.s.cfg.Logger.ErrorContext(ctx, "cannot "+what, "task", w.hook.TaskID, "error", err)
	return rest, backoff(w.s.cfg.Limits.FirstRetry, w.s.cfg.Limits.MaxRetry, w.troubles, w.s.cfg.Jitter())
}
