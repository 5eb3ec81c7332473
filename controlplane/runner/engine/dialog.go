package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const (
	// maxPrompts bounds what one task may ask.
	maxPrompts = 256
	// primed is how much of each stream's stored output a detector is given
	// when a run is taken up again, in bytes.
	primed = 4 << 10
	// retryPrompt is the pause before the store is asked again.
	retryPrompt = time.Second
)

// dialog is the input of one run: it raises what the run's output asks and
// feeds the run the replies. It lives as long as this process follows the run,
// which makes it the live binding that a reply needs.
//
// What it changes of the task, it changes with mu held.
type dialog struct {
	w    *worker
	ctx  context.Context //nolint:containedctx // the life of the binding, not of a call
	poke chan struct{}   // holds a token when check has something to look at
	done chan struct{}

	mu       sync.Mutex
	detector prompt.Detector
	deadline time.Time // the command's own
	asked    int
	seen     [2]uint64 // output stored, by stream
	log      []byte    // the whole input: every answer, in order
	given    int       // how much of log may have left for the guest
	wake     chan struct{}
	live     bool  // attached to the very run
	over     error // set once nobody follows any more: why
	guest    Guest
	cur      *question
}

// question is the prompt the task waits with, or whose answer is on its way.
type question struct {
	prompt.Record
	envelope prompt.Envelope
	schema   *prompt.Schema
	stream   int
	asked    *task.Message
	reply    *task.Message
	stale    bool      // its line has been written over
	delivery *delivery // of the answer; nil while open
}

// delivery is an answer on its way.
type delivery struct {
	done chan struct{} // closed when err is final
	err  error
}

func newDelivery() *delivery { return &delivery{done: make(chan struct{})} }

func (y *delivery) end(err error) {
	y.err = err
	close(y.done)
}

// newDialog makes the dialog of a run, nil for a run that takes no replies.
// What was asked and answered before, and the end of the output, come from the
// store.
func newDialog(ctx context.Context, w *worker) (*dialog, error) {
	if !w.spec.GetStdin() || w.run.Stdin != nil || w.e.cfg.Prompts == nil {
		return nil, nil //nolint:nilnil // none is an answer
	}
	past, err := w.e.cfg.Prompts.Dialogue(ctx, w.run.TaskID)
	if err != nil {
		return nil, err
	}
	d := &dialog{
		w: w, ctx: ctx, poke: make(chan struct{}, 1), done: make(chan struct{}), wake: make(chan struct{}),
		detector: prompt.Detector{Quiet: w.e.cfg.PromptQuiet}, asked: past.Asked, log: past.Input, seen: w.run.Progress.Received,
		deadline: w.rec.Status.Timestamp.Add(w.spec.GetTimeout().AsDuration()),
	}
	if past.Asked > 0 {
		d.deadline = past.Deadline
	}
	if c := past.Claimed; c != nil {
		// Its bytes may be with the guest, which would take others at their
		// place for a repetition: only the same can follow.
		d.cur = &question{Record: *c, asked: w.rec.Status.Message, reply: storedReply(*c), delivery: newDelivery()}
		d.log = append(d.log, c.Answer...)
	}
	d.given = len(d.log)
	if err := d.prime(ctx, past.Seen); err != nil {
		return nil, err
	}
	go d.run()
	return d, nil
}

// converse begins the dialog of a run that takes replies and returns what ends
// it. fctx is the life of following the run, ctx that of the worker.
func (w *worker) converse(ctx, fctx context.Context) (*dialog, func()) {
	fctx, stop := context.WithCancel(fctx)
	var d *dialog
	err := w.retry(fctx, "read what was asked", func() (err error) {
		d, err = newDialog(fctx, w)
		return err
	})
	if err != nil || d == nil {
		return nil, stop
	}
	w.mu.Lock()
	w.dialog = d
	w.mu.Unlock()
	return d, func() {
		why := prompt.ErrNotCurrent
		if ctx.Err() != nil {
			why = ErrClosed
		}
		d.close(why)
		stop()
		<-d.done
	}
}

// talk returns the dialog of the run, nil if it takes no replies now.
func (w *worker) talk() *dialog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dialog
}

// storedReply is a message like the one that brought a claimed answer.
func storedReply(r prompt.Record) *task.Message {
	return &task.Message{
		MessageID: r.PromptID, TaskID: r.TaskID, ContextID: r.ContextID, Role: task.User,
		Parts: []task.Part{task.TextPart(strings.TrimSuffix(string(r.Answer), "\n"))},
	}
}

// prime gives the detector the stored output behind the newest answer.
func (d *dialog) prime(ctx context.Context, seen [2]uint64) error {
	p, ids := d.w.run.Progress, d.w.run.Artifacts
	if p.Overflow || ids[task.Stdout] == ids[task.Stderr] {
		return nil
	}
	now := d.w.e.cfg.Now()
	for _, i := range []int{task.Stderr, task.Stdout} {
		stored := p.Received[i] - uint64(len(p.Carry[i]))
		from := max(seen[i], stored-min(stored, primed))
		for from < stored {
			data, err := d.w.e.cfg.Reader.ReadArtifact(ctx, task.System(), d.w.run.TaskID, ids[i], from)
			if errors.Is(err, task.ErrNotFound) || err == nil && len(data) == 0 {
				break
			}
			if err != nil {
				return err
			}
			d.detector.Write(i, data, now)
			from += uint64(len(data))
		}
		d.detector.Write(i, p.Carry[i], now)
	}
	return nil
}

// run looks at the output whenever it may have become a question.
func (d *dialog) run() {
	defer close(d.done)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.poke:
		case <-timer.C:
		}
		if wait, ok := d.check(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

func (d *dialog) look() {
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// check raises a question that is due, and takes back one that is past. It
// returns when to look again if nothing happens before.
func (d *dialog) check() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.w.e.cfg.Now()
	if d.over != nil || !d.live || d.cur != nil && !d.cur.stale {
		return 0, false
	}
	var err error
	q, found := d.detector.Question(now)
	due, later := d.detector.Due(now)
	switch {
	case d.cur != nil: // stale
		err = d.withdraw()
	case found && d.asked < maxPrompts && d.deadline.After(now.Add(time.Second)):
		err = d.raise(q, now)
	case later:
		return due.Sub(now), true
	case d.w.rec.Status.State == task.InputRequired:
		// It waited with a prompt of an earlier binding, and asks no more.
		err = d.withdraw()
	}
	if err != nil && d.ctx.Err() == nil {
		d.w.e.cfg.Log.WarnContext(d.ctx, "cannot change what a task asks, trying again", "task", d.w.run.TaskID, "error", err)
		return retryPrompt, true
	}
	if d.cur == nil {
		due, later = d.detector.Due(now)
		return due.Sub(now), later
	}
	return 0, false
}

// raise moves the task to input-required with a new prompt.
func (d *dialog) raise(found prompt.Question, now time.Time) error {
	e, err := prompt.NewText(found.Text, d.deadline)
	if err != nil {
		return err
	}
	if err := e.CheckTextLine(now); err != nil {
		return fmt.Errorf("cannot ask what a command asks: %w", err)
	}
	schema, err := prompt.Compile(e.ResponseSchema)
	if err != nil {
		return fmt.Errorf("cannot ask what a command asks: %w", err)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cannot encode prompt: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("cannot make message id: %w", err)
	}
	w := d.w
	msg := &task.Message{
		MessageID: id.String(), ContextID: w.rec.ContextID, TaskID: w.rec.ID, Role: task.Agent,
		Parts: []task.Part{task.TextPart(found.Text)}, Metadata: task.Metadata{prompt.URI: raw}, Extensions: []string{prompt.URI},
	}
	r := prompt.Record{
		Ref: prompt.Ref{
			PromptID: e.PromptID, TaskID: w.rec.ID, ContextID: w.rec.ContextID, InstanceID: w.run.InstanceID, RunID: w.run.RunID,
		},
		State: prompt.Open, Envelope: raw, Deadline: e.Deadline, Start: uint64(len(d.log)),
	}
	err = w.change(context.WithoutCancel(d.ctx), task.Transition{Status: task.Status{State: task.InputRequired, Message: msg}},
		func(ctx context.Context, t task.Transition) (task.Record, error) {
			return w.e.cfg.Prompts.Raise(ctx, t, r)
		})
	if err != nil {
		return err
	}
	d.asked++
	d.cur = &question{Record: r, envelope: e, schema: schema, stream: found.Stream, asked: msg}
	return nil
}

// withdraw moves the task on without an answer.
func (d *dialog) withdraw() error {
	if err := d.w.tryMove(context.WithoutCancel(d.ctx), task.Transition{Status: task.Status{State: task.Working}}); err != nil {
		return err
	}
	d.cur = nil
	return nil
}

// read takes output that has been stored, behind a sequence number. More of
// the line that asks means that nobody waits for the answer any more.
func (d *dialog) read(batch []*agentv1.Output, after uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.w.e.cfg.Now()
	for _, c := range batch {
		i, err := streamIndex(c.GetStream())
		if err != nil || c.GetSeq() <= after {
			continue
		}
		d.seen[i] += uint64(len(c.GetData()))
		d.detector.Write(i, c.GetData(), now)
		if q := d.cur; q != nil && q.delivery == nil && q.stream == i {
			q.stale = true
		}
	}
	d.look()
}

// took notes up to where the guest has taken the input. The first time on an
// attachment it says that there is one.
func (d *dialog) took(offset uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if offset > uint64(len(d.log)) {
		return &instance.Fault{
			Blame: instance.Guest, Code: agentlink.CodeProtocol,
			Err: fmt.Errorf("agent says that it has taken %d bytes of input, but there are %d", offset, len(d.log)),
		}
	}
	if !d.live {
		d.live = true
		d.detector.Touch(d.w.e.cfg.Now())
		d.look()
	}
	q := d.cur
	if q == nil || q.delivery == nil || offset < q.Start+uint64(len(q.Answer)) {
		return nil
	}
	return d.answered(q)
}

// answered moves the task on: the guest has taken the whole answer.
func (d *dialog) answered(q *question) error {
	var turns []task.Message
	if q.reply != nil && q.asked != nil {
		turns = []task.Message{*q.asked, *q.reply}
	}
	w := d.w
	err := w.change(context.WithoutCancel(d.ctx), task.Transition{Status: task.Status{State: task.Working}},
		func(ctx context.Context, t task.Transition) (task.Record, error) {
			return w.e.cfg.Prompts.Answered(ctx, q.Ref, t, turns)
		})
	if err != nil && !errors.Is(err, prompt.ErrNotCurrent) { // that: a write that seemed to fail did not
		return err
	}
	d.cur = nil
	q.delivery.end(nil)
	d.look()
	return nil
}

// attach begins the binding to the run of a guest. It is live once the guest
// has said so.
func (d *dialog) attach(g Guest) *feed {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.guest = g
	return &feed{d: d, stop: make(chan struct{})}
}

func (d *dialog) detach() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live, d.guest = false, nil
}

// close ends the dialog for good. Who waits for a delivery learns why.
func (d *dialog) close(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live, d.over = false, why
	if q := d.cur; q != nil && q.delivery != nil {
		q.delivery.end(why)
	}
	d.cur = nil
}
