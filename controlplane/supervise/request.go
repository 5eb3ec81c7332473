package supervise

import (
	"context"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// The codes of faults that say what became of a request.
const (
	CodeCanceled      = "operation.canceled"
	CodeNotCancelable = "operation.not_cancelable"
	CodeState         = "instance.state"
	CodeBusy          = "instance.busy"
)

// Step is one mark in the journal of a request.
type Step struct {
	Name string
	// Mark is a converge.Mark.
	Mark string
	// Percent of the whole that is behind it.
	Percent int
	// Cause is why it failed.
	Cause error
}

// Tracker follows one request to its end. Implementations must be quick.
type Tracker interface {
	// Step keeps a mark before what comes after it is begun. An error says
	// that it is not kept; then nothing more is begun.
	Step(ctx context.Context, s Step) error
	// End is called once; err is nil or an *instance.Fault in its chain.
	End(ctx context.Context, err error)
}

// Request is something asked of one instance.
type Request struct {
	// ID is that of the operation; empty for what nobody follows.
	ID    string
	Event instance.Event
	// Force cuts the power at once, without asking the guest to end in order.
	Force bool
	// Why is stored with the phase it leads to.
	Why string
	// Cancel is true for one of an earlier process whose end was asked for.
	Cancel bool
	// Track may be nil.
	Track Tracker

	// canceled is set once its end has been asked for. Only the goroutine of
	// Run touches it.
	canceled bool
	// begun is set once it has cut another one short and where that leads is
	// stored: nothing can take it back. overtaken is set on one that came to its
	// end although another had cut it short. Only the goroutine of Run touches them.
	begun, overtaken bool
	// working is what is being done for it now: of a restart, for example, the
	// stop or the start.
	working instance.Event
	// hurried is closed when a guest must not be waited for any more.
	hurried chan struct{}
}

func (r *Request) note() Note { return Note{Operation: r.ID} }

func (r *Request) end(ctx context.Context, err error) {
	if r.Track != nil {
		r.Track.End(ctx, err)
	}
}

func (r *Request) mark(ctx context.Context, s Step) error {
	if r.Track == nil {
		return nil
	}
	return r.Track.Step(ctx, s)
}

// step marks the beginning of a step.
func (r *Request) step(ctx context.Context, name string, percent int) error {
	return r.mark(ctx, Step{Name: name, Mark: string(converge.Began), Percent: percent})
}

// did marks the end of a step. What has been done stays done when that cannot
// be kept, so there is nothing to return.
func (r *Request) did(ctx context.Context, name string, percent int) {
	_ = r.mark(ctx, Step{Name: name, Mark: string(converge.Did), Percent: percent}) // its tracker logs it
}
