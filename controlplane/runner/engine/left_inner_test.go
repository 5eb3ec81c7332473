package engine

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestClockThatIsSetBackLengthensNothing: a command is not followed for longer
// than it may run, whatever is done to the clock meanwhile.
func TestClockThatIsSetBackLengthensNothing(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	w := &worker{
		e:    &Engine{cfg: Config{Now: func() time.Time { return now }}},
		spec: agentv1.RunSpec{Timeout: durationpb.New(time.Minute), KillGrace: durationpb.New(time.Second)},
	}
	for ago, want := range map[time.Duration]time.Duration{
		0: 61 * time.Second, 20 * time.Second: 41 * time.Second, 90 * time.Second: -29 * time.Second, -24 * time.Hour: 61 * time.Second,
	} {
		w.rec.Status.Timestamp = task.Stamp(now.Add(-ago))
		if got := w.left(nil); got != want {
			t.Errorf("begun %v ago it may take %v, want %v", ago, got, want)
		}
		if got := w.left(&dialog{deadline: now.Add(time.Minute - ago)}); got != want {
			t.Errorf("with a dialog, begun %v ago it may take %v, want %v", ago, got, want)
		}
	}
}
