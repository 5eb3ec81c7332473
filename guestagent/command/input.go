package command

import (
	"errors"
	"fmt"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// errWindow marks input beyond what the host may have in flight.
var errWindow = errors.New("more input in flight than allowed")

// inputQueue holds input between the host and the pipe. It is a plain value
// without locks or I/O.
type inputQueue struct {
	accepted uint64 // bytes the pipe has taken
	queued   []byte
	ended    bool // the host has said where the input ends
}

// end is the position after all input that has come.
func (q *inputQueue) end() uint64 { return q.accepted + uint64(len(q.queued)) }

// push takes data at a position of the whole input. What came before is
// dropped, so a repeat is harmless.
func (q *inputQueue) push(offset uint64, data []byte, eof bool) error {
	if len(data) > agentv1.MaxChunk {
		return fmt.Errorf("%d bytes of input in one piece, at most %d", len(data), agentv1.MaxChunk)
	}
	end := q.end()
	if offset > end {
		return fmt.Errorf("a gap in the input: %d bytes have come, the next piece is at %d", end, offset)
	}
	last := offset + uint64(len(data))
	if last < offset {
		return fmt.Errorf("input offset %d is out of range", offset)
	}
	if last > end && q.ended {
		return fmt.Errorf("input after its end at %d", end)
	}
	if eof && last < end {
		return fmt.Errorf("end of input at %d, but %d bytes have come", last, end)
	}
	if last > end {
		fresh := data[end-offset:]
		if len(q.queued)+len(fresh) > agentv1.StdinWindow {
			return fmt.Errorf("%w: at most %d bytes beyond what has been accepted (now %d)", errWindow, agentv1.StdinWindow, q.accepted)
		}
		q.queued = append(q.queued, fresh...)
	}
	q.ended = q.ended || eof
	return nil
}

// front is the input to write next, at most MaxChunk bytes. It stays valid
// until take.
func (q *inputQueue) front() []byte {
	return q.queued[:min(len(q.queued), agentv1.MaxChunk)]
}

// take notes that the pipe has taken n bytes of front.
func (q *inputQueue) take(n int) {
	q.accepted += uint64(n)
	rest := copy(q.queued, q.queued[n:])
	q.queued = q.queued[:rest]
	if rest == 0 {
		q.queued = nil // an idle run keeps no window
	}
}

// finished says whether all input is in the pipe and no more will come.
func (q *inputQueue) finished() bool { return q.ended && len(q.queued) == 0 }
