package engine

import (
	"fmt"
	"slices"
	"unicode/utf8"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// draft is what one transaction will store: it turns output of the guest into
// chunks of artifacts and the progress that goes with them. Pure.
type draft struct {
	p         task.Progress
	chunks    []task.Chunk
	limit     uint64 // bytes of output kept for the task
	artifacts [2]string
	raw       []bool // of each chunk: whether it is no text
	last      [2]int // of each stream: the number of chunks up to its last; 0 for none
}

// add takes the next output of the guest.
func (d *draft) add(c *agentv1.Output) error {
	i, err := streamIndex(c.GetStream())
	if err != nil {
		return err
	}
	data, room := c.GetData(), d.room()
	over := !d.p.Overflow && uint64(len(data)) > room
	if !d.p.Overflow {
		start := d.p.Received[i] - uint64(len(d.p.Carry[i]))
		whole, rest := split(d.p.Carry[i], data[:min(room, uint64(len(data)))])
		d.append(i, start, whole)
		if over { // nothing more will come, and text stays text up to the limit
			d.append(i, start+uint64(len(whole)), rest)
			rest = nil
		}
		d.p.Carry[i] = rest
	}
	d.p.AfterSeq = c.GetSeq()
	d.p.Received[i] += uint64(len(data))
	if over {
		d.p.Overflow = true
		d.release(1 - i)
	}
	return nil
}

// room is how many bytes may still be stored.
func (d *draft) room() uint64 {
	used := d.p.Received[task.Stdout] + d.p.Received[task.Stderr]
	if d.p.Overflow || used >= d.limit {
		return 0
	}
	return d.limit - used
}

// release appends the bytes of a stream that waited for the rest of their
// character.
func (d *draft) release(stream int) {
	carry := d.p.Carry[stream]
	d.append(stream, d.p.Received[stream]-uint64(len(carry)), carry)
	d.p.Carry[stream] = nil
}

// minText is the least text, in bytes, that stands apart from other bytes beside
// it in what a guest sent at once. It bounds how many events a piece makes:
// about two for every so many bytes; a program's binary makes one in seven KiB.
const minText = 128

// append adds the bytes of a stream from start on, text apart from other bytes:
// one of these does not take the text around it away from who reads it.
func (d *draft) append(stream int, start uint64, data []byte) {
	if utf8.Valid(data) { // nearly always
		d.join(stream, start, data, false)
		return
	}
	// What lies before from has been added; at is behind a byte that is no text.
	from := 0
	for at := 0; at < len(data); at++ {
		n := textLen(data[at:])
		if n >= minText {
			d.join(stream, start+uint64(from), data[from:at], true)
			d.join(stream, start+uint64(at), data[at:at+n], false)
			from = at + n
		}
		at += n
	}
	d.join(stream, start+uint64(from), data[from:], true)
}

// textLen is how many bytes are text before the first that is none.
func textLen(data []byte) (n int) {
	for n < len(data) {
		if data[n] < utf8.RuneSelf {
			n++
			continue
		}
		r, size := utf8.DecodeRune(data[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

// maxApart is how many chunks of one draft keep the order in which the pieces
// of both streams came, and text apart from few other bytes. A guest that sends
// single bytes by turns would else have a row stored for each.
const maxApart = 64

// join adds bytes that are all text or, raw, begin or end with such as are
// none. They join the last chunk if they continue it, so that a program that
// writes much in small pieces does not make an event of each. Text and other
// bytes stay apart, and no chunk becomes larger than a guest may send one.
// Behind maxApart chunks it is the last one of the stream that they join.
func (d *draft) join(stream int, start uint64, data []byte, raw bool) {
	if len(data) == 0 {
		return
	}
	id, at := d.artifacts[stream], d.last[stream]-1
	if at >= 0 && d.joins(&d.chunks[at], at, start, data, raw) {
		d.chunks[at].Data = append(d.chunks[at].Data, data...)
		d.raw[at] = d.raw[at] || raw
		return
	}
	// Clipped, so that what joins it is not written into the guest's message.
	d.chunks = append(d.chunks, task.Chunk{ArtifactID: id, Offset: start, Data: slices.Clip(data)})
	d.raw, d.last[stream] = append(d.raw, raw), len(d.chunks)
}

// joins reports whether bytes join the chunk c at that index, the last one of
// their stream.
func (d *draft) joins(c *task.Chunk, at int, start uint64, data []byte, raw bool) bool {
	switch {
	case c.Offset+uint64(len(c.Data)) != start || len(c.Data)+len(data) > agentv1.MaxChunk:
		return false
	case len(d.chunks) < maxApart:
		return at == len(d.chunks)-1 && d.raw[at] == raw
	}
	return d.raw[at] == raw || len(data) < minText || raw && len(c.Data) < minText
}

func streamIndex(s agentv1.Stream) (int, error) {
	switch s {
	case agentv1.Stream_STREAM_STDOUT:
		return task.Stdout, nil
	case agentv1.Stream_STREAM_STDERR:
		return task.Stderr, nil
	case agentv1.Stream_STREAM_UNSPECIFIED:
	}
	return 0, fmt.Errorf("cannot take output of stream %d", s)
}

// split joins what was held back with new bytes and holds back the first
// bytes of a character whose rest is missing.
func split(carry, data []byte) (whole, rest []byte) {
	all := data
	if len(carry) > 0 {
		all = slices.Concat(carry, data)
	}
	for n := 1; n < utf8.UTFMax && n <= len(all); n++ {
		tail := all[len(all)-n:]
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		if tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail) {
			return all[:len(all)-n], slices.Clone(tail)
		}
		break
	}
	return all, nil
}
