package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unicode/utf8"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// output stores the output of one run, exactly once.
type output struct {
	w *worker
	p task.Progress // as stored
}

// take is the sink of FollowRun: the guest forgets the chunk once it returns
// nil, so by then it is stored.
func (o *output) take(ctx context.Context, c *agentv1.Output) error {
	p := o.p
	if c.GetSeq() <= p.AfterSeq {
		return nil // stored before
	}
	i, err := streamIndex(c.GetStream())
	if err != nil {
		return err
	}
	data := c.GetData()
	p.AfterSeq = c.GetSeq()
	room := o.room()
	p.Received[i] += uint64(len(data))
	over := !p.Overflow && uint64(len(data)) > room
	var chunks []task.Chunk
	if !p.Overflow {
		start := o.p.Received[i] - uint64(len(o.p.Carry[i]))
		var whole []byte
		whole, p.Carry[i] = split(o.p.Carry[i], data[:min(room, uint64(len(data)))], over)
		chunks = o.chunk(chunks, i, start, whole)
	}
	if over {
		p.Overflow = true
		other := 1 - i
		chunks = o.chunk(chunks, other, p.Received[other]-uint64(len(p.Carry[other])), p.Carry[other])
		p.Carry[other] = nil
	}
	if err := o.store(ctx, chunks, p); err != nil {
		return err
	}
	if over {
		o.w.kill()
	}
	return nil
}

// room is how many bytes may still be stored.
func (o *output) room() uint64 {
	used := o.p.Received[task.Stdout] + o.p.Received[task.Stderr]
	if o.p.Overflow || used >= o.w.e.cfg.OutputLimit {
		return 0
	}
	return o.w.e.cfg.OutputLimit - used
}

func (o *output) chunk(chunks []task.Chunk, stream int, start uint64, data []byte) []task.Chunk {
	if len(data) == 0 {
		return chunks
	}
	return append(chunks, task.Chunk{ArtifactID: o.w.run.Artifacts[stream], Offset: start, Data: data})
}

func (o *output) store(ctx context.Context, chunks []task.Chunk, p task.Progress) error {
	// A write is short, and one that was cut off might have happened or not.
	ctx = context.WithoutCancel(ctx)
	if err := o.w.e.cfg.Journal.Output(ctx, o.w.run.TaskID, chunks, p); err != nil {
		return err
	}
	o.p = p
	if len(chunks) > 0 {
		o.w.notify()
	}
	return nil
}

// flush stores the bytes that waited for the rest of their character.
func (o *output) flush(ctx context.Context) error {
	p := o.p
	var chunks []task.Chunk
	for i := range p.Carry {
		chunks = o.chunk(chunks, i, p.Received[i]-uint64(len(p.Carry[i])), p.Carry[i])
		p.Carry[i] = nil
	}
	if len(chunks) == 0 {
		return nil
	}
	return o.store(ctx, chunks, p)
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
// bytes of a character whose rest is missing, unless nothing more will come.
func split(carry, data []byte, last bool) (whole, rest []byte) {
	all := make([]byte, 0, len(carry)+len(data))
	all = append(append(all, carry...), data...)
	if last {
		return all, nil
	}
	for n := 1; n < utf8.UTFMax && n <= len(all); n++ {
		tail := all[len(all)-n:]
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		if tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail) {
			return all[:len(all)-n], tail
		}
		break
	}
	return all, nil
}

// ends describes the complete artifacts of a run. They are read back from the
// store, so that the digests are of what a client can get.
func (w *worker) ends(ctx context.Context) ([]task.Chunk, error) {
	var ends []task.Chunk
	for i, id := range w.run.Artifacts {
		if i > 0 && id == w.run.Artifacts[0] {
			continue
		}
		sum := sha256.New()
		var size uint64
		for {
			data, err := w.e.cfg.Reader.ReadArtifact(ctx, w.run.TaskID, id, size)
			if err != nil {
				return nil, err
			}
			if len(data) == 0 {
				break
			}
			sum.Write(data)
			size += uint64(len(data))
		}
		if size > 0 {
			ends = append(ends, task.Chunk{ArtifactID: id, Last: true, Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))})
		}
	}
	return ends, nil
}
