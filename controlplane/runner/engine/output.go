package engine

import (
	"context"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// output stores the output of one run, exactly once.
type output struct {
	w *worker
	p task.Progress // as stored
	d *dialog       // looks for questions in it; nil: nobody does
}

// take is the sink of FollowRun: the guest forgets the batch once it returns
// nil, so by then it is stored, and how far it goes with it.
func (o *output) take(ctx context.Context, batch []*agentv1.Output) error {
	d := o.draft()
	for _, c := range batch {
		if c.GetSeq() <= d.p.AfterSeq {
			continue // stored before
		}
		if err := d.add(c); err != nil {
			return err
		}
	}
	if d.p.AfterSeq == o.p.AfterSeq {
		return nil
	}
	over, before := d.p.Overflow && !o.p.Overflow, o.p.AfterSeq
	if err := o.store(ctx, d); err != nil {
		return err
	}
	if o.d != nil {
		o.d.read(batch, before)
	}
	if over {
		o.w.kill()
	}
	return nil
}

func (o *output) draft() *draft {
	return &draft{p: o.p, limit: o.w.e.cfg.OutputLimit, artifacts: o.w.run.Artifacts}
}

func (o *output) store(ctx context.Context, d *draft) error {
	// A write is short, and one that was cut off might have happened or not.
	ctx = context.WithoutCancel(ctx)
	if err := o.w.e.cfg.Journal.Output(ctx, o.w.run.TaskID, d.chunks, d.p); err != nil {
		return err
	}
	o.p = d.p
	for _, c := range d.chunks {
		o.w.digests.add(c)
	}
	if len(d.chunks) > 0 {
		o.w.notify()
	}
	return nil
}

// flush stores the bytes that waited for the rest of their character.
func (o *output) flush(ctx context.Context) error {
	d := o.draft()
	for i := range d.p.Carry {
		d.release(i)
	}
	if len(d.chunks) == 0 {
		return nil
	}
	return o.store(ctx, d)
}
