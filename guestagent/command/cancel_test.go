package command_test

import (
	"context"
	"io"
	"os"
	"strings"
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
		id := start(t, table, sh("echo $$; kill -STOP $$"))
		f := attach(t, table, id, 0, nil, io.Discard)
		f.stdout = writer(func(pid []byte) error {
			if err := stopped(t.Context(), strings.TrimSpace(string(pid))); err != nil {
				return err
			}
			return table.Cancel(id, durationpb.New(longest))
		})
		e, err := f.follow()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetSignal() != 15 {
			t.Errorf("exited: %v", e)
		}
	})
}

// stopped waits until a process is.
func stopped(ctx context.Context, pid string) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return err
		}
		if strings.Contains(string(stat), ") T ") {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }
