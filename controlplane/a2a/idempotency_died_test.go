package a2a_test

import (
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
)

// TestIdempotentAfterDeath finds what a process left that died before it
// answered: a reservation, with or without its task.
func TestIdempotentAfterDeath(t *testing.T) {
	r := onceRig(t, nil)
	script, ran := count(t)
	left := func(id, taskID string) {
		t.Helper()
		_, hash, err := idempotency.Fingerprint([]byte(onceMessage(id, script)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.db.Idempotency().Reserve(t.Context(), idempotency.Key{Principal: "alice", Instance: idA, MessageID: id},
			idempotency.Reservation{Hash: hash, TaskID: taskID}, time.Now(), idempotency.Bounds{TTL: time.Hour, Entries: 10}); err != nil {
			t.Fatal(err)
		}
	}
	made := r.send(script) // stands for the task that was made
	id, _ := made.path("task", "id").(string)
	left(msgA, id)
	a := r.once("/message:send", onceMessage(msgA, script))
	if a.path("task", "id") != id || a.header.Get(replayed) != "true" || ran() != 1 {
		t.Errorf("its task was made: %d %s, ran %d times", a.status, a.body, ran())
	}
	const chosen = "018fc0a2-7777-7aaa-8bbb-0000000000ff"
	left(msgB, chosen)
	a = r.once("/message:send", onceMessage(msgB, script))
	if a.path("task", "id") != chosen || a.header.Get(replayed) != "" || ran() != 2 {
		t.Errorf("no task was made: %d %s, ran %d times", a.status, a.body, ran())
	}
	same(t, "and again", a, r.once("/message:send", onceMessage(msgB, script)))
}
