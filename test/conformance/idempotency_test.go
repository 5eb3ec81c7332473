package conformance

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/http"
)

func idempotencyCases() []kase {
	return []kase{
		every("IDEM-OPTIN-001", withoutItAreTwoTasks),
		both("IDEM-REPLAY-001", sameAnswerAgain),
		both("IDEM-ATONCE-001", atOnceIsOneTask),
		both("IDEM-OTHER-001", otherContentIsRefused),
		both("IDEM-SCOPE-001", idsAreOfPrincipals, needOther),
		rough(both("IDEM-RESTART-001", rememberedOverRestart, needKill)),
	}
}

func withIdempotency() http.Header { return headers("A2A-Extensions", extRuntime+", "+extIdem) }

// uuid makes one of version 4.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // does not fail
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (x *trial) keyed(id, content string) object {
	return x.message(content, func(m object) { m["messageId"] = id })
}

func withoutItAreTwoTasks(x *trial) {
	id := uuid()
	one, two := x.ok(opSend, x.keyed(id, "twice")), x.ok(opSend, x.keyed(id, "twice"))
	x.want(text(one.task(), "id") != text(two.task(), "id"), "both are task %s", text(one.task(), "id"))
}

func sameAnswerAgain(x *trial) {
	id := uuid()
	one := x.ok(opSend, x.keyed(id, "once"), withIdempotency())
	two := x.ok(opSend, x.keyed(id, "once"), withIdempotency())
	x.want(bytes.Equal(one.raw, two.raw), "the first answer is %s, the second %s", one.raw, two.raw)
	x.want(one.header.Get("Idempotent-Replayed") == "" && two.header.Get("Idempotent-Replayed") == "true",
		"Idempotent-Replayed is %q, then %q", one.header.Get("Idempotent-Replayed"), two.header.Get("Idempotent-Replayed"))
}

func atOnceIsOneTask(x *trial) {
	id := uuid()
	const times = 4
	answers := make(chan *reply, times)
	for range times {
		go func() { answers <- x.quiet(opSend, x.keyed(id, "at once"), withIdempotency()) }()
	}
	ids := map[string]bool{}
	for range times {
		if r := <-answers; r == nil || r.fault != nil {
			x.Errorf("an answer is %+v", r)
		} else {
			ids[text(r.task(), "id")] = true
		}
	}
	x.want(len(ids) == 1, "there are tasks %v", ids)
}

func otherContentIsRefused(x *trial) {
	id := uuid()
	one := x.ok(opSend, x.keyed(id, "this"), withIdempotency())
	r := x.call(opSend, x.keyed(id, "that"), withIdempotency())
	x.refused(r, known{"IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_PAYLOAD", -32422, 422, "FAILED_PRECONDITION", true, true})
	if r.fault != nil && len(r.fault.details) > 0 {
		m := dig(r.fault.details[0], "metadata")
		x.want(len(text(m, "original_request_hash")) == 64 && len(text(m, "submitted_request_hash")) == 64 &&
			text(m, "original_request_hash") != text(m, "submitted_request_hash") && text(m, "message_id") == id, "the metadata is %v", m)
	}
	again := x.ok(opSend, x.keyed(id, "this"), withIdempotency())
	x.want(bytes.Equal(one.raw, again.raw), "the first message's answer has changed")
}

func idsAreOfPrincipals(x *trial) {
	id := uuid()
	one := x.ok(opSend, x.keyed(id, "mine"), withIdempotency())
	two := x.as(x.other).ok(opSend, x.keyed(id, "yours"), withIdempotency())
	x.want(text(one.task(), "id") != text(two.task(), "id"), "two principals share task %s", text(one.task(), "id"))
}

func rememberedOverRestart(x *trial) {
	id := uuid()
	one := x.ok(opSend, x.keyed(id, "remember"), withIdempotency())
	x.restart()
	two := x.ok(opSend, x.keyed(id, "remember"), withIdempotency())
	x.want(bytes.Equal(one.raw, two.raw), "before the restart the answer is %s, after it %s", one.raw, two.raw)
}
