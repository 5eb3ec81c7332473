package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// forgetful is a journal whose last write of output says that it failed, and did
// not: so it may be when a disk is in trouble.
type forgetful struct {
	task.Journal
	once sync.Once
}

func (j *forgetful) Output(ctx context.Context, id string, chunks []task.Chunk, p task.Progress) error {
	err := j.Journal.Output(ctx, id, chunks, p)
	if len(chunks) == 1 && string(chunks[0].Data) == "\xc3" {
		j.once.Do(func() { err = errors.New("boom") })
	}
	return err
}

// TestOutputThatSeemedNotStored: what waits for the rest of its character is
// stored once, and the task ends.
func TestOutputThatSeemedNotStored(t *testing.T) {
	r := newRig(t, func(c *engine.Config) { c.Journal = &forgetful{Journal: c.Journal} })
	rec := r.end(r.submit(`printf 'a\303'`).ID)
	if rec.Status.State != task.Completed {
		t.Errorf("it ended %s", rec.Status.State)
	}
	checkLog(t, r.db, rec)
}
