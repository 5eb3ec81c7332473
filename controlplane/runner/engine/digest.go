package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"slices"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// digests are of the artifacts of one run, as far as this process has stored
// them from their beginning.
type digests map[string]*digest

type digest struct {
	sum  hash.Hash
	size uint64
}

// add takes a chunk that has been stored. One that does not follow means that
// somebody else has stored what lies before it; then the size stays behind.
func (d digests) add(c task.Chunk) {
	g := d[c.ArtifactID]
	if g == nil {
		g = &digest{sum: sha256.New()}
		d[c.ArtifactID] = g
	}
	if c.Offset == g.size {
		g.sum.Write(c.Data)
		g.size += uint64(len(c.Data))
	}
}

// ends describes the complete artifacts of a run.
func (w *worker) ends(ctx context.Context) ([]task.Chunk, error) {
	return w.endsOf(ctx, w.run.Artifacts[:]...)
}

// endsOf describes artifacts that are as long as they get. What this process
// has not stored as a whole is read back from the store.
func (w *worker) endsOf(ctx context.Context, ids ...string) ([]task.Chunk, error) {
	var ends []task.Chunk
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			continue
		}
		size, complete, err := w.e.cfg.Reader.ArtifactSize(ctx, task.System(), w.run.TaskID, id)
		if complete || errors.Is(err, task.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		g := w.digests[id]
		if g == nil || g.size != size {
			if g, err = w.readBack(ctx, id); err != nil {
				return nil, err
			}
		}
		ends = append(ends, task.Chunk{ArtifactID: id, Last: true, Size: g.size, SHA256: hex.EncodeToString(g.sum.Sum(nil))})
	}
	return ends, nil
}

func (w *worker) readBack(ctx context.Context, id string) (*digest, error) {
	g := &digest{sum: sha256.New()}
	for {
		data, err := w.e.cfg.Reader.ReadArtifact(ctx, task.System(), w.run.TaskID, id, g.size)
		if err != nil {
			return nil, err
		}
		if len(data) == 0 {
			return g, nil
		}
		g.sum.Write(data)
		g.size += uint64(len(data))
	}
}
