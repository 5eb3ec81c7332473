package conformance

import (
	"net/http"
	"strings"
)

func oldCases() []kase {
	return []kase{
		kase{id: "V03-RPC-001", run: oldMethods, forms: []form{rpc03()}},
		kase{id: "V03-REST-001", run: oldPaths, forms: []form{rest03()}},
		old("V03-SHAPE-001", oldShapes, needCommand),
		old("V03-STREAM-001", finalIsLast, needCommand),
		old("V03-CANCEL-001", cancelCancels, needCommand),
		old("V03-EXT-001", oldExtensionHeader),
		old("V03-ERR-001", oldErrors),
		once("V03-CARD-001", oldCard),
		old("V03-PUSH-001", oldPush, needHooks, needCommand),
		old("V03-BOTH-001", versionsShareTasks),
		old("V03-PARTS-001", oldParts),
	}
}

func oldMethods(x *trial) {
	id := x.done()
	k := x.ok(opGet, object{"id": id}).result
	x.want(text(k, "kind") == "task" && text(k, "status", "state") == "completed", "tasks/get gives %.300v", k)
	for _, silent := range []http.Header{nil, headers("A2A-Version", "")} {
		r := x.post(`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"`+id+`"}}`, silent)
		x.want(r.fault != nil && r.fault.code == -32601, "a method of 1.0 is %.300s", r.raw)
	}
	r := x.post(`{"jsonrpc":"2.0","id":7,"method":"tasks/list","params":{}}`)
	x.want(r.fault != nil && r.fault.code == -32601, "tasks/list, which 0.3 has not, is %.300s", r.raw)
	r = x.in(rpc10()).post(`{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"id":"` + id + `"}}`)
	x.want(r.fault != nil && r.fault.code == -32601, "a method of 0.3 in 1.0 is %.300s", r.raw)
}

func oldPaths(x *trial) {
	id := x.done()
	k := x.ok(opGet, object{"id": id}).result
	x.want(text(k, "id") == id, "the task is %.300v", k)
	_, r := x.open(opGet, object{"id": id}, headers("A2A-Version", "1.0"))
	x.refused(r, versionUnsupported())
	nothing := x.raw(http.MethodGet, "/v1/nothing", nil)
	x.want(nothing.status == http.StatusNotFound, "a path that is not there is %d %.200s", nothing.status, nothing.raw)
	silent := x.call(opGet, object{"id": id}, headers("A2A-Version", ""))
	x.want(silent.fault == nil, "without a version it is %.300s", silent.raw)
}

// oldShapes has all that a task is checked against 0.3; answers of 1.0 to the
// same requests are checked against 1.0 elsewhere.
func oldShapes(x *trial) {
	h := x.all(x.follow(opStream, x.command("echo out; echo err >&2", nil)))
	x.want(h.output("stdout") == "out\n", "the output is %q", h.output("stdout"))
	id := text(h.events[0].body, "id")
	for _, r := range []*reply{x.ok(opSend, x.message("x", nil)), x.ok(opGet, object{"id": id})} {
		has := strings.Contains(string(r.raw), `"kind"`)
		x.want(has == (x.form == rpc03()), "kind is there: %v: %.300s", has, r.raw)
		x.want(strings.Contains(string(r.raw), "TASK_STATE_") == (x.form == rest03()), "states are written as in another form: %.300s", r.raw)
	}
}

func finalIsLast(x *trial) {
	h := x.all(x.follow(opStream, x.command("echo out", nil)))
	for i, e := range h.events {
		if e.kind == "statusUpdate" {
			x.want((dig(e.body, "final") == true) == (i == len(h.events)-1), "event %d of %d says final %v", i+1, len(h.events), dig(e.body, "final"))
		}
	}
	x.want(h.closed && h.last().kind == "statusUpdate", "the last event is %+v", h.last())
	id := x.running()
	s := x.follow(opSubscribe, object{"id": id})
	_, err := s.next()
	x.check(err)
	x.ok(opCancel, object{"id": id})
	h = x.all(s)
	x.want(dig(h.last().body, "final") == true && h.last().state() == x.says("TASK_STATE_CANCELED"), "the last event is %+v", h.last())
}

func oldExtensionHeader(x *trial) {
	r := x.call(opSend, x.message("x", nil), headers("A2A-Extensions", ""), headers("X-A2A-Extensions", extRuntime))
	x.want(r.fault == nil, "X-A2A-Extensions is not read: %.300s", r.raw)
	x.want(strings.Contains(r.header.Get("X-A2A-Extensions"), extRuntime), "the echo is %v", r.header)
}

func oldErrors(x *trial) {
	ended := x.done()
	x.refused(x.call(opGet, object{"id": "no-such-task"}), taskNotFound())
	x.refused(x.call(opCancel, object{"id": ended}), notCancelable())
	x.refused(x.call(opSend, object{}), invalid())
	_, r := x.open(opSubscribe, object{"id": ended})
	x.refused(r, unsupported())
	if x.form == rpc03() {
		for body, code := range map[string]int{"{": -32700, "{}": -32600, `{"jsonrpc":"2.0","id":7,"method":"x"}`: -32601} {
			r := x.post(body)
			x.want(r.fault != nil && r.fault.code == code, "%s is %.300s", body, r.raw)
		}
	}
}

func oldCard(x *trial) {
	one := x.in(rest03()).card().body
	f := x.raw(http.MethodGet, "/.well-known/agent.json", nil, headers("A2A-Version", "", "A2A-Extensions", ""))
	two := f.body
	for _, c := range []any{one, two} {
		x.want(strings.HasPrefix(text(c, "protocolVersion"), "0.3") && text(c, "url") == x.agent && text(c, "preferredTransport") == "JSONRPC" &&
			dig(c, "supportedInterfaces") == nil && dig(c, "signatures") == nil && len(list(c, "skills")) > 0, "the card is %.600v", c)
		var transports []string
		for _, i := range list(c, "additionalInterfaces") {
			x.want(text(i, "url") == x.agent, "an interface is %v", i)
			transports = append(transports, text(i, "transport"))
		}
		x.want(sameSet(transports, []string{"JSONRPC", "HTTP+JSON"}), "transports are %v", transports)
		x.want(len(nulls("card", c)) == 0, "the card has %v", nulls("card", c))
	}
}

func oldPush(x *trial) {
	h := x.hook()
	id := text(x.ask(asking, nil), "id")
	x.ok(opPushCreate, object{"taskId": id, "id": "hook", "url": h.url, "token": "a-token"})
	c := x.configOf(x.ok(opPushGet, object{"taskId": id, "id": "hook"}).result)
	x.want(text(c, "url") == h.url && text(c, "id") == "hook", "the configuration is %v", c)
	x.ok(opCancel, object{"id": id})
	got := told(x.wait(h, finished))
	for _, d := range got {
		x.want(text(d.body, "kind") == "task" && text(d.body, "id") == id && d.header.Get("X-A2A-Notification-Token") == "a-token",
			"a delivery is %.300s", d.raw)
		if bad := shapes03(jsonRPC).check("Task", "delivery", d.body); len(bad) > 0 {
			x.Errorf("a delivery is no task of 0.3: %v", bad)
		}
	}
	x.want(got[len(got)-1].state() == "canceled", "the last delivery tells %s", got[len(got)-1].state())
}

func versionsShareTasks(x *trial) {
	id := text(x.ok(opSend, x.message("shared", nil)).task(), "id")
	k := x.in(rest10()).ok(opGet, object{"id": id}).result
	x.want(text(k, "status", "state") == "TASK_STATE_COMPLETED" && partText(dig(k, "history", 0)) == "shared", "1.0 gives %.300v", k)
	back := x.ok(opGet, object{"id": x.done()}).task()
	x.want(text(back, "status", "state") == x.says("TASK_STATE_COMPLETED"), "0.3 gives %.300v", back)
}

// oldParts sends a file and data, which the echo refuses by what they are.
func oldParts(x *trial) {
	name, parts := "content", []any{object{"file": object{"fileWithUri": "https://example.com/x"}}, object{"data": object{"data": object{"a": 1}}}}
	if x.form == rpc03() {
		name, parts = "parts", []any{
			object{"kind": "file", "file": object{"uri": "https://example.com/x"}}, object{"kind": "data", "data": object{"a": 1}},
		}
	}
	for _, p := range parts {
		x.refused(x.call(opSend, x.message("", func(m object) { m[name] = []any{p} })), contentType())
	}
	if x.form == rpc03() {
		for _, broken := range []object{{"kind": "text"}, {"kind": "file", "text": "x"}, {"kind": "file", "file": object{}}, {"kind": "other", "text": "x"}} {
			x.refused(x.call(opSend, x.message("", func(m object) { m[name] = []any{broken} })), invalid())
		}
	}
}
