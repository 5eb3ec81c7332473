package conformance

import "strings"

func contextCases() []kase {
	return []kase{
		every("CORE-MULTI-001", contextIsMade),
		every("CORE-MULTI-001a", madeContextIsTold),
		every("CORE-MULTI-002", contextIsKept),
		every("CORE-MULTI-002a", badContextIsRefused),
		both("CORE-MULTI-003", taskIDsAreUnique),
		every("CORE-MULTI-004", unknownTaskTakesNoMessage),
		both("CORE-MULTI-005", contextIsInferred, needCommand),
		every("CORE-MULTI-006", mismatchIsRefused),
	}
}

func contextIsMade(x *trial) {
	x.want(text(x.ok(opSend, x.message("x", nil)).task(), "contextId") != "", "no context was made")
}

func madeContextIsTold(x *trial) {
	h := x.all(x.follow(opStream, x.message("x", nil)))
	made := text(h.events[0].body, "contextId")
	x.want(made != "", "the task has no context")
	for _, e := range h.events[1:] {
		x.want(text(e.body, "contextId") == made, "an event is of context %v, the task of %s", dig(e.body, "contextId"), made)
	}
}

func contextIsKept(x *trial) {
	want := unique("context")
	k := x.ok(opSend, x.message("x", func(m object) { m["contextId"] = want })).task()
	x.want(text(k, "contextId") == want, "the context is %v, want %s", dig(k, "contextId"), want)
}

func badContextIsRefused(x *trial) {
	for _, bad := range []any{strings.Repeat("x", 257), "a\nb", 7, []any{"a"}} {
		r := x.call(opSend, x.message("x", func(m object) { m["contextId"] = bad }))
		x.refused(r, invalid())
		x.names(r, "message.contextId")
	}
}

func taskIDsAreUnique(x *trial) {
	seen := map[string]bool{}
	for range 4 {
		id := text(x.ok(opSend, x.message("x", nil)).task(), "id")
		x.want(id != "" && !seen[id], "the id is %q once more", id)
		seen[id] = true
	}
}

func unknownTaskTakesNoMessage(x *trial) {
	before := x.total()
	for _, op := range []string{opSend, opStream} {
		_, r := x.open(op, x.message("x", func(m object) { m["taskId"] = "018fc0a2-7777-7aaa-bbbb-ccccddddeeee" }))
		x.refused(r, taskNotFound())
	}
	x.want(x.total() == before, "there are %v tasks, before %v", x.total(), before)
}

func contextIsInferred(x *trial) {
	k := x.ask(asking, nil)
	r := x.ok(opSend, x.reply(k, text(question(k), "prompt_id"), line1("y")), withPrompts())
	x.want(text(r.task(), "contextId") == text(k, "contextId"), "the context is %v", dig(r.task(), "contextId"))
	for _, m := range list(x.settled(text(k, "id")), "history") {
		x.want(text(m, "contextId") == "" || text(m, "contextId") == text(k, "contextId"), "a message is of context %v", dig(m, "contextId"))
	}
}

func mismatchIsRefused(x *trial) {
	id := x.done()
	r := x.call(opSend, x.message("x", func(m object) { m["taskId"], m["contextId"] = id, unique("other") }))
	x.refused(r, invalid())
	x.names(r, "message.contextId")
}
