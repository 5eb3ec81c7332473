package command

import (
	"fmt"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// chunkCost is what the log charges for a chunk beside its bytes, so that a
// process that writes single bytes cannot grow the agent either.
const chunkCost = 96

// chunk is one piece of output in the order it was read.
type chunk struct {
	seq    uint64
	stream agentv1.Stream
	offset uint64 // of data in its stream
	data   []byte
}

// outputLog keeps the output of one run from the pipe until the host has
// acknowledged it. It is a plain value without locks or I/O.
//
// The newest chunk grows until it has been shown to somebody; from then on it
// is fixed, so that a sequence number names the same bytes for ever.
type outputLog struct {
	limit  int // cost of what may be kept
	chunks []chunk
	cost   int
	last   uint64 // newest seq
	acked  uint64 // all up to it are freed
	shown  uint64 // all up to it have been handed out
	stdout uint64 // bytes so far
	stderr uint64
}

// room says whether n more bytes may be appended. An empty log takes any
// chunk, so a small limit cannot block for ever.
func (l *outputLog) room(n int) bool {
	return l.cost == 0 || l.cost+n+chunkCost <= l.limit
}

// append adds data, which it copies, as the newest output.
func (l *outputLog) append(stream agentv1.Stream, data []byte) {
	if len(data) == 0 {
		return
	}
	total := &l.stdout
	if stream == agentv1.Stream_STREAM_STDERR {
		total = &l.stderr
	}
	offset := *total
	*total += uint64(len(data))
	if n := len(l.chunks); n > 0 {
		tail := &l.chunks[n-1]
		if tail.seq > l.shown && tail.stream == stream && len(tail.data)+len(data) <= agentv1.MaxChunk {
			tail.data = append(tail.data, data...)
			l.cost += len(data)
			return
		}
	}
	for len(data) > 0 {
		n := min(len(data), agentv1.MaxChunk)
		l.last++
		l.chunks = append(l.chunks, chunk{seq: l.last, stream: stream, offset: offset, data: append([]byte(nil), data[:n]...)})
		l.cost += n + chunkCost
		offset += uint64(n)
		data = data[n:]
	}
}

// after returns the chunk that follows seq, if there is one, and fixes it.
// What has been acknowledged meanwhile is passed over.
func (l *outputLog) after(seq uint64) (chunk, bool) {
	seq = max(seq, l.acked)
	if seq >= l.last {
		return chunk{}, false
	}
	c := l.chunks[seq-l.acked]
	l.shown = max(l.shown, c.seq)
	return c, true
}

// ack frees everything up to seq and says whether it freed anything.
func (l *outputLog) ack(seq uint64) (bool, error) {
	if seq > l.shown {
		return false, fmt.Errorf("sequence number %d was never delivered, the newest that was is %d", seq, l.shown)
	}
	if seq <= l.acked {
		return false, nil
	}
	n := int(seq - l.acked)
	for _, c := range l.chunks[:n] {
		l.cost -= len(c.data) + chunkCost
	}
	rest := copy(l.chunks, l.chunks[n:])
	clear(l.chunks[rest:])
	l.chunks = l.chunks[:rest]
	l.acked = seq
	return true, nil
}

// drained says whether the host has everything.
func (l *outputLog) drained() bool { return l.acked == l.last }
