package command

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Run is one bounded process and what is kept of it. Safe for concurrent use.
type Run struct {
	id      string
	spec    *agentv1.RunSpec // nil: of an earlier agent
	bounds  bounds
	started time.Time
	cancels chan time.Duration
	done    chan struct{} // closed when ended is set

	mu       sync.Mutex
	log      outputLog
	input    inputQueue
	draining bool // no process is left: the log takes what is in the pipes
	attached *Attachment
	ended    *agentv1.Exited
	news     bell // for attachments: output, accepted input, the end
	room     bell // for pumps: the log has been freed
	feed     bell // for the feeder: input has come
}

// bell wakes everybody who waits. The owner's lock guards it.
type bell struct{ ch chan struct{} }

func (b *bell) wait() <-chan struct{} {
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// stdio are the agent's ends of a run's pipes.
type stdio struct {
	in       *os.File // nil: the process reads /dev/null
	out, err *os.File
}

// newRun makes a run that has just been launched.
func newRun(id string, spec *agentv1.RunSpec, b bounds) *Run {
	return &Run{
		id: id, spec: spec, bounds: b,
		started: time.Now(),
		cancels: make(chan time.Duration),
		done:    make(chan struct{}),
		log:     outputLog{limit: b.buffer},
	}
}

// lostRun makes a run of an earlier agent, of which nothing is known but that
// it is over.
func lostRun(id string) *Run {
	r := newRun(id, nil, bounds{})
	r.ended = &agentv1.Exited{
		Cause: agentv1.Exited_CAUSE_LOST, Code: 128 + int32(unix.SIGKILL), Signal: int32(unix.SIGKILL), EndedAt: timestamppb.Now(),
	}
	close(r.done)
	return r
}

// State is what is known of the run now.
func (r *Run) State() *agentv1.RunState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state()
}

func (r *Run) state() *agentv1.RunState {
	s := &agentv1.RunState{
		RunId:         r.id,
		Running:       r.ended == nil,
		LastSeq:       r.log.last,
		AckedSeq:      r.log.acked,
		StdinAccepted: r.input.accepted,
		Exited:        r.ended,
	}
	if r.spec != nil {
		s.StartedAt = timestamppb.New(r.started)
	}
	return s
}

// Done is closed when the run has ended.
func (r *Run) Done() <-chan struct{} { return r.done }

// cancel starts the kill ladder. grace overrides the run's own when set.
func (r *Run) cancel(grace *durationpb.Duration) error {
	d, err := duration("grace", grace, r.bounds.grace, agentv1.MaxKillGrace)
	if err != nil {
		return refuse(Invalid, "CANCEL", r.id, "cannot cancel run: %w", err)
	}
	select {
	case r.cancels <- d:
	case <-r.done:
	}
	return nil
}

// supervise owns the run from launch to end, and every goroutine of it.
func (r *Run) supervise(b box, pipes stdio) {
	var pumps, feeder sync.WaitGroup
	pumps.Go(func() { r.pump(pipes.out, agentv1.Stream_STREAM_STDOUT) })
	pumps.Go(func() { r.pump(pipes.err, agentv1.Stream_STREAM_STDERR) })
	if pipes.in != nil {
		feeder.Go(func() { r.feedPipe(pipes.in) })
	}
	l := newLadder(r.started, r.bounds.timeout, r.bounds.grace)
	status, used := r.climb(&l, b)
	r.mu.Lock()
	r.draining = true
	r.room.ring()
	r.feed.ring()
	r.mu.Unlock()
	if pipes.in != nil {
		_ = pipes.in.Close() // frees a feeder that is blocked in it
	}
	drain(&pumps, pipes)
	feeder.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = r.exitOf(l, status, used)
	r.news.ring()
	close(r.done)
}

// climb runs the kill ladder until the box is empty.
func (r *Run) climb(l *ladder, b box) (procExit, usage) {
	var (
		status procExit
		exited = b.exited()
		timer  = time.NewTimer(time.Until(l.deadline))
	)
	defer timer.Stop()
	for {
		act := doNothing
		select {
		case <-timer.C:
			act = l.due(time.Now())
		case grace := <-r.cancels:
			act = l.cancel(time.Now(), grace)
		case status = <-exited:
			exited = nil
			act = l.mainExited(time.Now(), agentv1.Linger)
		case used := <-b.emptied():
			if exited != nil {
				status = <-exited // a box delivers it before
			}
			l.empty()
			return status, used
		}
		// A failed signal is not the end: the ladder tries again.
		switch act {
		case doTerminate:
			_ = b.terminate()
		case doKill:
			_ = b.kill()
		case doNothing:
		}
		timer.Reset(time.Until(l.deadline))
	}
}

// exitOf says how the run ended. Whatever ended it, a run that we ended never
// looks like one that ended by itself.
func (r *Run) exitOf(l ladder, status procExit, used usage) *agentv1.Exited {
	e := &agentv1.Exited{
		LastSeq:     r.log.last,
		StdoutBytes: r.log.stdout,
		StderrBytes: r.log.stderr,
		EndedAt:     timestamppb.Now(),
		CpuTime:     durationpb.New(used.cpu),
		MemoryPeak:  used.memoryPeak,
	}
	signal := status.signal
	switch {
	case l.reason != reasonItself:
		e.Cause = agentv1.Exited_CAUSE_TIMEOUT
		if l.reason == reasonCancel {
			e.Cause = agentv1.Exited_CAUSE_CANCELED
		}
		if signal == 0 {
			signal = unix.SIGTERM // it obeyed in its own way
		}
	case status.lost:
		e.Cause = agentv1.Exited_CAUSE_LOST
		signal = unix.SIGKILL
	case signal == unix.SIGKILL && used.oomKilled:
		e.Cause = agentv1.Exited_CAUSE_OOM
	case signal != 0:
		e.Cause = agentv1.Exited_CAUSE_SIGNALED
	default:
		e.Cause = agentv1.Exited_CAUSE_EXITED
		e.Code = int32(status.code)
		return e
	}
	e.Signal = int32(signal)
	e.Code = 128 + int32(signal)
	return e
}

// ownedEnds are the child's ends of the pipes, closed once it has them.
type ownedEnds [3]*os.File

func (e ownedEnds) close() {
	for _, f := range e {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (s stdio) close() {
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// makePipes makes the standard streams of a run.
func makePipes(withInput bool) (ours stdio, theirs ownedEnds, err error) {
	defer func() {
		if err != nil {
			ours.close()
			theirs.close()
		}
	}()
	if withInput {
		theirs[0], ours.in, err = os.Pipe()
	} else {
		theirs[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return ours, theirs, err
	}
	var err1, err2 error
	ours.out, theirs[1], err1 = os.Pipe()
	ours.err, theirs[2], err2 = os.Pipe()
	err = errors.Join(err1, err2)
	return ours, theirs, err
}
