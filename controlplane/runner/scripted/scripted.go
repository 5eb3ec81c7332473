// Package scripted is the runner of conformance kits: the id of a message says
// through which states the task is to go, as the scenarios of the A2A TCK have
// it. A real agent cannot be made to do that from outside.
//
// It is pure, as every runner is, and its scripts go through the same tasks,
// log, streams and webhooks as commands. It is for tests: a daemon that offers
// it says so to everybody.
package scripted

import (
	"encoding/json"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Name is the name of the runner.
const Name = "scripted"

// Prefixes of the ids of the messages that are claimed.
const (
	prefix      = "tck-"
	resubscribe = "test-resubscribe-message-id"
)

// longWait is how long the task to subscribe to anew works: twice what the kit
// waits for an event of a stream (2 s), and some.
const longWait = 5 * time.Second

// Runner is the scripted runner.
type Runner struct{}

// Name implements runner.Runner.
func (Runner) Name() string { return Name }

// Claims implements runner.Runner.
func (Runner) Claims(req runner.Request) bool {
	id := req.Message.MessageID
	return strings.HasPrefix(id, prefix) || strings.HasPrefix(id, resubscribe)
}

// Prepare implements runner.Runner. What the message says has no say. A message
// with an id of another form, which continues a task, completes it.
func (Runner) Prepare(req runner.Request) (*runner.Command, error) {
	return &runner.Command{Script: find(req.Message.MessageID)}, nil
}

// find returns the script of the longest prefix that an id has.
func find(id string) *runner.Script {
	best := scenario{script: steps(runner.Status(task.Completed, ""))}
	for _, s := range scenarios() {
		if strings.HasPrefix(id, s.prefix) && len(s.prefix) > len(best.prefix) {
			best = s
		}
	}
	return &best.script
}

// scenario is what a message with an id of that prefix makes of its task.
type scenario struct {
	prefix string
	script runner.Script
}

func steps(all ...runner.Step) runner.Script { return runner.Script{Steps: all} }

// scenarios are those of the kit (its core_operations.feature and
// streaming.feature), and below them those for the states it does not reach.
func scenarios() []scenario {
	done := runner.Status(task.Completed, "")
	working := runner.Status(task.Working, "")
	later := done
	later.Wait = longWait
	text := func(s string) runner.Step { return runner.Whole("text", task.TextPart(s)) }
	return []scenario{
		{"tck-complete-task", steps(runner.Status(task.Completed, "Hello from TCK"))},
		{"tck-artifact-text", steps(text("Generated text content"), done)},
		{"tck-artifact-file", steps(file(), done)},
		{"tck-artifact-file-url", steps(fileURL(), done)},
		{"tck-artifact-data", steps(data(), done)},
		{"tck-message-response", runner.Script{Reply: []task.Part{task.TextPart("Direct message response")}}},
		{"tck-input-required", steps(runner.Status(task.InputRequired, "Send a message to this task to go on"))},
		{"tck-reject-task", steps(runner.Status(task.Rejected, "rejected"))},
		{"tck-stream-001", steps(working, text("Stream hello from TCK"), done)},
		{"tck-stream-002", steps(done)},
		{"tck-stream-003", steps(working, text("Stream task lifecycle"), done)},
		{"tck-stream-ordering-001", steps(working, text("Ordered output"), done)},
		{"tck-stream-artifact-text", steps(working, text("Streamed text content"), done)},
		{"tck-stream-artifact-file", steps(working, file(), done)},
		{"tck-stream-artifact-chunked", steps(working, chunk("chunk-1 ", false), chunk("chunk-2", true), done)},
		{resubscribe, steps(working, later)},

		{"tck-auth-required", steps(runner.Status(task.AuthRequired, "Authenticate elsewhere, then send a message to this task"))},
		{"tck-fail-task", steps(working, runner.Status(task.Failed, "failed"))},
	}
}

func chunk(s string, last bool) runner.Step {
	p := task.TextPart(s)
	return runner.Step{Artifact: "chunked", Part: &p, Last: last}
}

const (
	fileName = "output.txt"
	fileType = "text/plain"
)

func file() runner.Step {
	return runner.Whole("file", task.Part{Raw: []byte("Generated file content\n"), Filename: fileName, MediaType: fileType})
}

func fileURL() runner.Step {
	url := "https://example.com/" + fileName
	return runner.Whole("file", task.Part{URL: &url, Filename: fileName, MediaType: fileType})
}

func data() runner.Step {
	return runner.Whole("data", task.Part{Data: json.RawMessage(`{"key":"value","count":42}`)})
}
