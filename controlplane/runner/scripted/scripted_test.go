package scripted_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/scripted"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func prepare(t *testing.T, id string) *runner.Script {
	t.Helper()
	cmd, err := scripted.Runner{}.Prepare(runner.Request{Message: task.Message{MessageID: id}})
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Spec != nil || cmd.Script == nil {
		t.Fatalf("%s prepares %+v", id, cmd)
	}
	if err := cmd.Script.Check(); err != nil {
		t.Errorf("%s: %v", id, err)
	}
	return cmd.Script
}

// short tells a script in one line.
func short(t *testing.T, s *runner.Script) string {
	t.Helper()
	var all []string
	part := func(p task.Part) {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(b))
	}
	for _, p := range s.Reply {
		part(p)
	}
	for _, step := range s.Steps {
		if step.Wait > 0 {
			all = append(all, step.Wait.String())
		}
		if step.Part != nil {
			part(*step.Part)
			if step.Last {
				all[len(all)-1] += "."
			}
			continue
		}
		line := strings.TrimPrefix(string(step.State), "TASK_STATE_")
		if step.Text != "" {
			line += ": " + step.Text
		}
		all = append(all, line)
	}
	return strings.Join(all, " ")
}

func TestScenarios(t *testing.T) {
	const file = `{"raw":"R2VuZXJhdGVkIGZpbGUgY29udGVudAo=","filename":"output.txt","mediaType":"text/plain"}.`
	for prefix, want := range map[string]string{
		"tck-complete-task":           "COMPLETED: Hello from TCK",
		"tck-artifact-text":           `{"text":"Generated text content"}. COMPLETED`,
		"tck-artifact-file":           file + " COMPLETED",
		"tck-artifact-file-url":       `{"url":"https://example.com/output.txt","filename":"output.txt","mediaType":"text/plain"}. COMPLETED`,
		"tck-artifact-data":           `{"data":{"key":"value","count":42}}. COMPLETED`,
		"tck-message-response":        `{"text":"Direct message response"}`,
		"tck-input-required":          "INPUT_REQUIRED: Send a message to this task to go on",
		"tck-reject-task":             "REJECTED: rejected",
		"tck-stream-001":              `WORKING {"text":"Stream hello from TCK"}. COMPLETED`,
		"tck-stream-002":              "COMPLETED",
		"tck-stream-003":              `WORKING {"text":"Stream task lifecycle"}. COMPLETED`,
		"tck-stream-ordering-001":     `WORKING {"text":"Ordered output"}. COMPLETED`,
		"tck-stream-artifact-text":    `WORKING {"text":"Streamed text content"}. COMPLETED`,
		"tck-stream-artifact-file":    "WORKING " + file + " COMPLETED",
		"tck-stream-artifact-chunked": `WORKING {"text":"chunk-1 "} {"text":"chunk-2"}. COMPLETED`,
		"test-resubscribe-message-id": "WORKING 5s COMPLETED",
		"tck-auth-required":           "AUTH_REQUIRED: Authenticate elsewhere, then send a message to this task",
		"tck-fail-task":               "WORKING FAILED: failed",
		"tck-":                        "COMPLETED",
		"tck-artifact":                "COMPLETED",
		"tck-something-else":          "COMPLETED",
		"of-a-follow-up":              "COMPLETED",
	} {
		for _, id := range []string{prefix, prefix + "-0a1b2c3d"} {
			if got := short(t, prepare(t, id)); got != want {
				t.Errorf("%s: %s, want %s", id, got, want)
			}
		}
	}
}

// TestStates: together the scripts reach every state a task can have, but for
// canceled, which clients ask for.
func TestStates(t *testing.T) {
	var reached []task.State
	for _, id := range []string{
		"tck-complete-task", "tck-input-required", "tck-reject-task", "tck-auth-required", "tck-fail-task",
	} {
		for _, s := range prepare(t, id).Steps {
			reached = append(reached, s.State)
		}
	}
	for _, s := range []task.State{
		task.Working, task.Completed, task.Failed, task.Rejected, task.InputRequired, task.AuthRequired,
	} {
		if !slices.Contains(reached, s) {
			t.Errorf("no script reaches %s", s)
		}
	}
}

func TestClaims(t *testing.T) {
	for id, want := range map[string]bool{
		"tck-complete-task-0": true, "tck-": true, "test-resubscribe-message-id-0": true, "test-resubscribe-message-id": true,
		"": false, "tck": false, "TCK-complete-task": false, "x-tck-complete-task": false, "test-resubscribe": false,
	} {
		if got := (scripted.Runner{}).Claims(runner.Request{Message: task.Message{MessageID: id}}); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
}

// TestWait: the kit waits 2 s for an event, twice.
func TestWait(t *testing.T) {
	s := prepare(t, "test-resubscribe-message-id-1")
	if last := s.Steps[len(s.Steps)-1]; last.Wait < 4*time.Second {
		t.Errorf("it works for %s only", last.Wait)
	}
}
