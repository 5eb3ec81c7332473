package e2e

import (
	"context"
	"net/http"
	"os"
	"testing"
)

// waits says that it runs, and ends when it may.
const waits = `
echo ran >>ran
until test -e go; do sleep 0.05; done
echo done
`

// asksAndWaits is waits with a question before.
const asksAndWaits = `
printf 'Continue? [y/N] '
read -r a
echo "$a" >>answers
until test -e go; do sleep 0.05; done
echo "answer $a"
`

// Ids of messages that are to be carried out once.
const (
	onceA = "018fc0a2-7777-7aaa-8bbb-00000000000a"
	onceB = "018fc0a2-7777-7aaa-8bbb-00000000000b"
)

// cutOff sends a message and kills the daemon once the machine has come so far
// with it: the message is carried out, and its sender has no answer.
func (h *hosted) cutOff(t *testing.T, body string, far func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		r, err := h.agent.try(ctx, http.MethodPost, "/message:send", body, header(extAdapter, extPrompt, extIdempotency))
		if err == nil {
			t.Errorf("the message was answered %d %s", r.status, r.body)
		}
		answered <- err
	}()
	eventually(t, far, func() string { return "the message is carried out" })
	check(t, h.Kill())
	<-answered
	check(t, h.Launch(deadline(t)))
}

// again sends the message twice more. The first time it is answered by the end
// of its task, which is let go meanwhile; the second time the same.
func (h *hosted) again(t *testing.T, body string) reply {
	t.Helper()
	c := h.agent
	first := make(chan reply, 1)
	ctx := deadline(t)
	go func() {
		r, err := c.try(ctx, http.MethodPost, "/message:send", body, header(extAdapter, extPrompt, extIdempotency))
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	check(t, os.WriteFile(h.in("go"), nil, 0o600))
	one := <-first
	if one.status != http.StatusOK || text(one.json, "task", "status", "state") != "TASK_STATE_COMPLETED" || one.header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("after the restart: %d %s, replayed %q", one.status, one.body, one.header.Get("Idempotent-Replayed"))
	}
	two := c.send(body, header(extAdapter, extPrompt, extIdempotency))
	if two.status != one.status || two.body != one.body || two.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("and then: %d %s\nwant %s", two.status, two.body, one.body)
	}
	if n := c.tasks(); n != 1 {
		t.Errorf("there are %d tasks, want one", n)
	}
	return one
}

// TestCrashBeforeAnswer kills the daemon between the reservation of a message
// that is to be carried out once and its answer.
func TestCrashBeforeAnswer(t *testing.T) {
	h := host(t, waits)
	body := adapterMessage(onceA, "", "")
	h.cutOff(t, body, func() bool { return h.read(t, "ran") != "" })
	r := h.again(t, body)
	if got := output(r.at("task"), "stdout"); got != "done\n" {
		t.Errorf("output is %q", got)
	}
	if got := h.read(t, "ran"); got != "ran\n" {
		t.Errorf("it ran %q", got)
	}
}

// TestCrashBeforeAnswerOfReply is TestCrashBeforeAnswer for a reply to a
// prompt: sent again, it is no second answer, and not refused as one.
func TestCrashBeforeAnswerOfReply(t *testing.T) {
	h := host(t, asksAndWaits)
	taskID, promptID := h.agent.ask("m1")
	body := answerTo(taskID, promptID, onceB, "y", "")
	h.cutOff(t, body, func() bool {
		return h.read(t, "answers") != "" && text(h.agent.task(taskID), "status", "state") == "TASK_STATE_WORKING"
	})
	r := h.again(t, body)
	if id := text(r.json, "task", "id"); id != taskID {
		t.Errorf("the answer is task %s, want %s", id, taskID)
	}
	if got := h.read(t, "answers"); got != "y\n" {
		t.Errorf("the command got %q", got)
	}
	// Another reply to the same prompt is refused as ever.
	r = h.agent.send(answerTo(taskID, promptID, onceA, "y", ""), header(extPrompt, extIdempotency))
	if r.status != http.StatusConflict {
		t.Errorf("another reply: %d %s", r.status, r.body)
	}
}
