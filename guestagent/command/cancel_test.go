package command_test

import (
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
)

// longest is the longest grace there is: what misses the first signal is there
// until it is over.
const longest = time.Minute

// A cancel reaches also those that are being born just then.
func TestCancelReachesTheNewborn(t *testing.T) {
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		for range 10 {
			id := start(t, table, sh("i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait"))
			asked := time.Now()
			if err := table.Cancel(id, durationpb.New(longest)); err != nil {
				t.Fatal(err)
			}
			e, err := attach(t, table, id, 0, io.Discard, io.Discard).follow()
			if err != nil {
				t.Fatal(err)
			}
			if e.GetSignal() != 15 || time.Since(asked) >= longest {
				t.Fatalf("exited: %v after %s", e, time.Since(asked))
			}
		}
	})
}

// A process that is stopped takes the signal too.
func TestCancelReachesTheStopped(t *testing.T) {
	onEachContainment(t, func(t *testing.T, table *command.Table) {
		id := start(t, table, sh("echo up; kill -STOP $$"))
		f := attach(t, table, id, 0, nil, io.Discard)
		f.stdout = writer(func([]byte) error { return table.Cancel(id, durationpb.New(longest)) })
		e, err := f.follow()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetSignal() != 15 {
			t.Errorf("exited: %v", e)
		}
	})
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }
