package conformance

import (
	"net/http"
	"strings"
)

func modelCases() []kase {
	return []kase{
		every("DM-TASK-001", answersHaveTheirForm),
		both("DM-TASK-002", answersHaveTheirForm),
		both("DM-MSG-001", brokenMessagesAreRefused),
		both("DM-MSG-002", rolesAreKnown),
		both("DM-PART-001", partsAreOneThing),
		both("DM-ART-001", artifactsHaveIDs, needCommand),
		both("DM-STATUS-001", answersHaveTheirForm),
		both("DM-SERIAL-001", snakeCaseIsUnderstood),
		both("DM-SERIAL-002", answersHaveTheirForm),
		both("DM-SERIAL-003", answersHaveTheirForm),
		every("DM-SERIAL-004", nothingIsNull),
		every("DM-SERIAL-005", unknownMembersAreIgnored),
	}
}

// answersHaveTheirForm has every answer and event of a task's life checked,
// which the wire client does with all it sees.
func answersHaveTheirForm(x *trial) {
	x.all(x.follow(opStream, x.message("form", nil)))
	id := text(x.ok(opSend, x.message("form", nil)).task(), "id")
	x.ok(opGet, object{"id": id})
	if x.form != rpc03() {
		params := object{"pageSize": 5}
		if x.form.version == "1.0" {
			params["includeArtifacts"] = true
		}
		x.ok(opList, params)
	}
}

func brokenMessagesAreRefused(x *trial) {
	for _, name := range []string{"messageId", "role", "parts"} {
		r := x.call(opSend, x.message("x", func(m object) { delete(m, name) }))
		x.refused(r, invalid())
		x.names(r, "message."+name)
	}
}

func rolesAreKnown(x *trial) {
	for _, role := range []any{"BOGUS", "user", "agent", "ROLE_AGENT", "ROLE_UNSPECIFIED", 1} {
		r := x.call(opSend, x.message("x", func(m object) { m["role"] = role }))
		x.refused(r, invalid())
		x.names(r, "message.role")
	}
}

func partsAreOneThing(x *trial) {
	for _, part := range []object{{}, {"text": "x", "raw": "eA=="}, {"text": "x", "data": object{}}, {"kind": "text"}, {"mediaType": "text/plain"}} {
		r := x.call(opSend, x.message("x", func(m object) { m["parts"] = []any{part} }))
		x.refused(r, invalid())
		x.names(r, "message.parts[0]")
	}
}

func artifactsHaveIDs(x *trial) {
	k := x.run("echo out; echo err >&2", nil)
	seen := map[string]bool{}
	for _, a := range list(k, "artifacts") {
		id := text(a, "artifactId")
		x.want(id != "" && !seen[id] && len(list(a, "parts")) > 0, "an artifact is %v", a)
		seen[id] = true
	}
	x.want(len(seen) == 2, "there are %d artifacts", len(seen))
}

func snakeCaseIsUnderstood(x *trial) {
	m := object{"message": object{
		"message_id": unique("m"), "context_id": unique("c"), "role": "ROLE_USER", "parts": []any{object{"text": "x", "media_type": "text/plain"}},
	}, "configuration": object{"history_length": 0, "return_immediately": false}}
	k := x.ok(opSend, m).task().(object)
	x.want(k["contextId"] == m["message"].(object)["context_id"], "context_id became %v", k["contextId"])
	_, there := k["history"]
	x.want(!there, "history_length was not read")
	id := text(k, "id")
	_, there = x.ok(opGet, object{"id": id, "history_length": 0}).result.(object)["history"]
	x.want(!there, "history_length of GetTask was not read")
	r := x.ok(opList, object{"page_size": 1, "history_length": 0, "include_artifacts": true})
	x.want(r.get("pageSize") == 1.0 && len(list(r.result, "tasks")) == 1, "page_size was not read: %.200s", r.raw)
	if x.form.binding == jsonRPC {
		hook := x.ok(opPushList, object{"task_id": id, "page_size": 1})
		x.want(hook.get("configs") != nil, "task_id was not read: %.200s", hook.raw)
	}
}

// nothingIsNull looks at answers as they are, free members too.
func nothingIsNull(x *trial) {
	id := x.done()
	for _, a := range x.actions(id) {
		if a.op == opSubscribe || a.op == opStream {
			continue // events are checked as they are read
		}
		r := x.call(a.op, a.params)
		if r.form == rpc03() && a.op == opPushDelete {
			continue // null is the answer of 0.3
		}
		x.want(len(nulls("body", r.body)) == 0, "%s has %v: %.300s", a.op, nulls("body", r.body), r.raw)
	}
	card := x.card()
	x.want(len(nulls("card", card.body)) == 0, "the card has %v", nulls("card", card.body))
}

func unknownMembersAreIgnored(x *trial) {
	m := x.message("x", func(m object) {
		m["future"] = object{"a": 1}
		for _, name := range []string{"parts", "content"} {
			if l, ok := m[name].([]any); ok {
				l[0].(object)["future"] = true
			}
		}
	})
	m["future"] = "x"
	m["configuration"] = object{"future": []any{1}, "blocking": true}
	k := x.ok(opSend, m).task()
	x.want(partText(dig(k, "artifacts", 0)) == "x", "the task is %.300v", k)
	if x.form.binding == httpJSON {
		r := x.raw(http.MethodGet, strings.TrimSuffix("/tasks?future=1", ""), nil)
		x.want(r.status == http.StatusOK, "an unknown query parameter is %d", r.status)
	}
}
