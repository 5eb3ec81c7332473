package push_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const (
	senderEnv = "SANDBOX_TEST_PUSH_DB"
	hookEnv   = "SANDBOX_TEST_PUSH_URL"
)

// sent is how many chunks the sender's task has.
const sent = 120

// send takes up what is in the database, makes the task if there is none, and
// appends to it until it is complete; then it waits until all is delivered.
func send(ctx context.Context, path, url string) error {
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	f := &tasks{db: db, changed: map[string]chan struct{}{}}
	s := push.New(ctx, push.Config{
		Store: db.Webhooks(), Log: db, Tasks: f, Format: format, Guard: loopback(),
		Limits: push.Limits{FirstRetry: time.Millisecond, MaxRetry: 4 * time.Millisecond, MaxTries: 1 << 20},
	})
	if err := s.Start(ctx); err != nil {
		return err
	}
	if _, err := db.Task(ctx, task.System(), "t", task.View{Inline: -1}); err != nil {
		if err := f.create(ctx, "t", "alice"); err != nil {
			return err
		}
	}
	if _, err := s.Create(ctx, task.System(), "t", push.Registration{ID: "h", Version: "1.0", URL: url}, 0); err != nil {
		return err
	}
	fmt.Println("started")
	run, err := db.Run(ctx, "t")
	if err != nil {
		return err
	}
	if run.State == task.Submitted {
		if err := f.move(ctx, "t", task.Working); err != nil {
			return err
		}
	}
	for p := run.Progress; p.AfterSeq < sent; {
		if err := f.output(ctx, "t", &p, fmt.Sprint("chunk ", p.AfterSeq)); err != nil {
			return err
		}
	}
	if !run.State.Terminal() {
		if err := f.move(ctx, "t", task.Completed); err != nil {
			return err
		}
	}
	<-ctx.Done() // until it is killed
	return nil
}

// TestKill kills the sender in the middle of deliveries, again and again: every
// event arrives, the first time each in its order.
func TestKill(t *testing.T) {
	hook := newReceiver(t, func(n int, _ wire) int {
		if n%5 == 0 {
			return http.StatusBadGateway
		}
		return 200
	})
	path := filepath.Join(t.TempDir(), "db")
	var next uint64 = 1
	var kills, repeats int
	var last request
	for !last.State.Terminal() {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$") //nolint:gosec // itself
		cmd.Env = append(os.Environ(), senderEnv+"="+path, hookEnv+"="+hook.url)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "started") {
			t.Fatalf("the sender says %q, %v", line, err)
		}
		for taken := 0; taken < 17+kills && !last.State.Terminal(); {
			q := hook.next(t)
			if q.status != 200 {
				continue
			}
			taken++
			last = q
			switch {
			case q.Seq > next:
				t.Fatalf("event %d arrives, but %d has not", q.Seq, next)
			case q.Seq < next:
				repeats++
			default:
				next++
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		kills++
		for _, q := range hook.all() { // what was on its way
			if q.status == 200 && q.Seq == next {
				next++
				last = q
			}
		}
	}
	if kills < 3 || next != sent+4 {
		t.Errorf("%d events arrived in %d lives", next-1, kills)
	}
	t.Logf("%d events, %d kills, %d repeats", next-1, kills, repeats)
}
