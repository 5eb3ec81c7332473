package a2a_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/prompt"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// TestIdempotentReplyAfterDeath finds what a process left that died with a
// reply to a prompt in its hands: before it was delivered, while it was on its
// way, and after.
func TestIdempotentReplyAfterDeath(t *testing.T) {
	fakeNode(t, askOnce)
	r := onceRig(t, func(_ *a2a.Config, c *engine.Config) { c.PromptQuiet = 50 * time.Millisecond })
	header := with(map[string]string{"A2A-Extensions": strings.Join(
		[]string{extensions.Runtime, extensions.AdapterCommand, extensions.HITLPrompt, extensions.Idempotency}, ", ")})
	send := func(body string) answer { return r.do(http.MethodPost, "/agents/"+idA+"/message:send", body, header) }
	reply := func(id, taskID, promptID string) string {
		return strings.Replace(replyMessage(taskID, promptID, `{"text":"y"}`), `"r1"`, `"`+id+`"`, 1)
	}
	left := func(id, body string) {
		t.Helper()
		_, hash, err := idempotency.Fingerprint([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.db.Idempotency().Reserve(t.Context(), idempotency.Key{Principal: "alice", Instance: idA, MessageID: id},
			idempotency.Reservation{Hash: hash, TaskID: "018fc0a2-7777-7aaa-8bbb-0000000000ff"}, time.Now(),
			idempotency.Bounds{TTL: time.Hour, Entries: 10}); err != nil {
			t.Fatal(err)
		}
	}
	completed := func(what string, a answer, taskID, replay string) {
		t.Helper()
		if a.path("task", "id") != taskID || a.path("task", "status", "state") != "TASK_STATE_COMPLETED" || a.header.Get(replayed) != replay {
			t.Errorf("%s: %d %s, replayed %q", what, a.status, a.body, a.header.Get(replayed))
		}
	}

	taskID, e := r.asks()
	body := reply(msgA, taskID, e.PromptID)
	left(msgA, body)
	ref := prompt.Ref{PromptID: e.PromptID, TaskID: taskID, InstanceID: idA}
	rec, err := r.db.Run(t.Context(), taskID)
	if err != nil {
		t.Fatal(err)
	}
	ref.RunID = rec.RunID
	ref.ContextID, _ = r.do(http.MethodGet, "/agents/"+idA+"/tasks/"+taskID, "", good).json["contextId"].(string)
	if err := r.db.Claim(t.Context(), task.System(), ref, []byte("y\n"), [2]uint64{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it passes, so it is not kept
		if a := send(body); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || a.header.Get(replayed) != "" {
			t.Errorf("on its way: %d %s", a.status, a.body)
		}
	}
	if err := r.db.Restore(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	completed("before it was delivered", send(body), taskID, "")
	completed("and again", send(body), taskID, "true")

	taskID, e = r.asks()
	body = reply(msgB, taskID, e.PromptID)
	first := r.sendHITL(body)
	left(msgB, body)
	completed("after it was delivered", send(body), taskID, "true")
	if again := send(body); string(again.body) != string(first.body) {
		t.Errorf("the answer is %s, was %s", again.body, first.body)
	}
	// Somebody else's reply to the same prompt is not taken for it.
	other := reply("018fc0a2-7777-7aaa-8bbb-00000000000c", taskID, e.PromptID)
	left("018fc0a2-7777-7aaa-8bbb-00000000000c", other)
	wantNotCurrent(t, "another reply", send(other))
}
