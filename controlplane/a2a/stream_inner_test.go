package a2a

import (
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestStreamEnds: of a snapshot that ends before the newest change of status,
// a question that has been answered since does not end the stream.
func TestStreamEnds(t *testing.T) {
	for _, c := range []struct {
		state      task.State
		seq        uint64
		untilInput bool
		version    version
		ends, skip bool
	}{
		{task.Working, 5, true, v10, false, false},
		{task.Completed, 12, false, v10, true, false},
		{task.InputRequired, 5, true, v10, false, true},
		{task.InputRequired, 5, false, v10, false, false},
		{task.InputRequired, 9, true, v10, true, false}, // it still waits
		{task.InputRequired, 12, true, v10, true, false},
		{task.InputRequired, 12, false, v10, false, false},
		{task.AuthRequired, 5, true, v10, false, false},
		{task.AuthRequired, 5, true, v03, false, true},
		{task.AuthRequired, 9, true, v03, true, false},
	} {
		fd := &feed{first: task.Record{LastSeq: 3, StatusSeq: 9}, after: 3, untilInput: c.untilInput}
		e := task.Event{Seq: c.seq, Status: &task.StatusEvent{Status: task.Status{State: c.state}}}
		ends, skip := (&call{version: c.version}).ends(fd, e)
		if ends != c.ends || skip != c.skip {
			t.Errorf("%s at %d: ends %v, skipped %v, want %v, %v", c.state, c.seq, ends, skip, c.ends, c.skip)
		}
	}
	if ends, skip := (&call{}).ends(&feed{}, task.Event{Chunk: &task.Chunk{}}); ends || skip {
		t.Error("output ends a stream")
	}
}
