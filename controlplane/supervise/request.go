package supervise

import (
	"context"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/converge"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// CodeCanceled is the code of the fault of a request that was cut short.
const CodeCanceled = "operation.canceled"

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
	Why   string
	Track Tracker
}

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
