package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

func bindingCases() []kase {
	return []kase{
		rpcOnly("JSONRPC-FMT-001", requestsAreRPC),
		rpcOnly("JSONRPC-FMT-002", answersAreJSON),
		rpcOnly("JSONRPC-SVC-001", methodsAreNamed),
		rpcOnly("JSONRPC-SVC-002", parametersAreHeaders),
		rpcOnly("JSONRPC-ERR-001", errorsHaveDetails),
		rpcOnly("JSONRPC-ERR-002", errorsHaveTheirCodes),
		rpcOnly("JSONRPC-ERR-003", errorsHaveDetails),
		rpcOnly("JSONRPC-SSE-001", streamIsEvents),
		rpcOnly("JSONRPC-SSE-002", errorsHaveTheirCodes),
		rpcOnly("JSONRPC-SLASH-001", slashIsTaken),
		rpcOnly("JSONRPC-PARAMS-001", paramsMayBeAbsent),
		once("HTTP_JSON-URL-001", pathsAreThere),
		once("HTTP_JSON-URL-002", verbsAreThose),
		once("HTTP_JSON-SVC-001", answersAreJSON),
		once("HTTP_JSON-SVC-002", parametersAreHeaders),
		once("HTTP_JSON-QP-001", queryIsCamelCase),
		once("HTTP_JSON-ERR-001", errorsHaveDetails),
		once("HTTP_JSON-ERR-002", errorsHaveDetails),
		once("HTTP_JSON-STATUS-001", errorsHaveTheirCodes),
		once("HTTP_JSON-SSE-001", streamIsEvents),
		both("BIND-EQUIV-001", allOperationsAreThere),
		once("BIND-EQUIV-002", bindingsGiveTheSame),
		once("BIND-EQUIV-003", bindingsErrTheSame),
		both("BIND-EQUIV-004", requestsAreAuthenticated),
		once("BIND-FIELD-001", protocolsAreDeclared),
	}
}

func rpcOnly(id string, run func(*trial), needs ...need) kase {
	return kase{id: id, run: run, needs: needs, forms: []form{rpc10()}}
}

// post sends a body of JSON-RPC as it is.
func (x *trial) post(body string, more ...http.Header) *reply {
	x.Helper()
	return x.raw(http.MethodPost, "", []byte(body), more...)
}

func requestsAreRPC(x *trial) {
	for body, code := range map[string]int{
		"": -32700, "{": -32700, "nonsense": -32700, "7": -32600, "null": -32600, "[]": -32600, `[{"jsonrpc":"2.0"}]`: -32600, "{}": -32600,
		`{"jsonrpc":"2.0","method":"GetTask"}`:                                      -32600,
		`{"jsonrpc":"1.0","id":7,"method":"GetTask"}`:                               -32600,
		`{"jsonrpc":"2.0","id":{},"method":"GetTask"}`:                              -32600,
		`{"jsonrpc":"2.0","id":7}`:                                                  -32600,
		`{"jsonrpc":"2.0","id":7,"method":7}`:                                       -32600,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":[]}`:                   -32602,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":7}}`:             -32602,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"a","id":"b"}}`:  -32700,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"x"},"id":8}`:    -32700,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":` + deep() + `}`:       -32700,
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"GetTask\",\"params\":\"\xff\"}": -32700,
		`{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"\ud800"}}`:      -32700,
	} {
		r := x.post(body)
		x.want(r.fault != nil && r.fault.code == code && r.status == http.StatusOK, "%.100s is %d %.300s, want %d", body, r.status, r.raw, code)
	}
	for _, id := range []string{`7`, `"a"`, `-3`, `"` + strings.Repeat("x", 100) + `"`} {
		r := x.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"GetTask","params":{"id":"x"}}`)
		var m map[string]json.RawMessage
		x.check(json.Unmarshal(r.raw, &m))
		x.want(string(m["id"]) == id, "the id is %s, was %s", m["id"], id)
	}
}

func deep() string { return strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200) }

// answersAreJSON asks for what there is not, in every way, and relies on the
// wire client, which takes nothing but JSON.
func answersAreJSON(x *trial) {
	base := x.in(rest10())
	for _, c := range []struct {
		method, path, body string
		header             http.Header
		status             int
	}{
		{http.MethodGet, "/nothing", "", nil, 404},
		{http.MethodGet, "/tasks/x:verb", "", nil, 404},
		{http.MethodGet, "//tasks", "", nil, 404},
		{http.MethodGet, "/tasks/../tasks", "", nil, 404},
		{http.MethodGet, "", "", nil, 405},
		{http.MethodPut, "", "", nil, 405},
		{http.MethodPut, "/message:send", "{}", nil, 405},
		{http.MethodGet, "/message:send", "", nil, 405},
		{http.MethodDelete, "/tasks/x", "", nil, 405},
		{http.MethodPatch, "/tasks/x", "", nil, 405},
		{http.MethodGet, "/tasks/x:cancel", "", nil, 405},
		{http.MethodPost, cardPath, "{}", nil, 405},
		{http.MethodPost, "/message:send", "", nil, 400},
		{http.MethodPost, "/message:send", "{", nil, 400},
		{http.MethodPost, "/message:send", "{}", headers("Content-Type", "text/plain"), 400},
		{http.MethodPost, "/message:send", "{}", headers("Content-Type", "application/x-www-form-urlencoded"), 400},
		{http.MethodPost, "/message:stream", "{", headers("Accept", "text/event-stream"), 400},
		{http.MethodGet, "/tasks/no-such-task", "", headers("Accept", "text/html"), 404},
	} {
		var body []byte
		if c.body != "" {
			body = []byte(c.body)
		}
		r := base.raw(c.method, c.path, body, c.header)
		x.want(r.status == c.status, "%s %s is %d %.200s, want %d", c.method, c.path, r.status, r.raw, c.status)
	}
	if x.form.binding == jsonRPC {
		r := x.post(`{}`, headers("Content-Type", "text/plain"))
		x.want(r.fault != nil && r.fault.code == -32005, "text/plain is %.300s", r.raw)
		return
	}
	for _, h := range []http.Header{headers("Content-Type", typeA2A), headers("Accept", typeA2A)} {
		r := x.call(opSend, x.message("x", nil), h)
		x.want(r.status == 200 && r.header.Get("Content-Type") == typeA2A, "%v is answered in %q", h, r.header.Get("Content-Type"))
		r = x.call(opSend, object{}, h)
		x.want(r.status == 400 && r.header.Get("Content-Type") == typeA2A, "an error to %v is in %q", h, r.header.Get("Content-Type"))
	}
	unknown := *x.target
	unknown.agent = x.url + "/agents/018fc0a2-7777-7aaa-bbbb-ccccddddeeee"
	r := x.on(&unknown).raw(http.MethodGet, cardPath, nil)
	x.want(r.status == 404, "an unknown instance is %d", r.status)
}

func methodsAreNamed(x *trial) {
	for _, name := range []string{"sendMessage", "send_message", "message/send", "tasks/get", "a2a.SendMessage", "SendMessage ", "", "x"} {
		r := x.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{}}`, name))
		x.want(r.fault != nil && (r.fault.code == -32601 || name == "" && r.fault.code == -32600), "method %q is %.300s", name, r.raw)
	}
}

// parametersAreHeaders sends service parameters where they do not belong.
func parametersAreHeaders(x *trial) {
	m := x.message("x", func(m object) { m["extensions"] = []any{extRuntime} })
	m["metadata"] = object{"A2A-Extensions": extRuntime, "A2A-Version": "1.0"}
	x.refused(x.call(opSend, m, headers("A2A-Extensions", "")), extensionRequired())
	x.ok(opSend, x.message("x", nil), headers("a2a-extensions", extRuntime)) // names are in any case
}

// errorsHaveDetails is held by the wire client for every error; here are many.
func errorsHaveDetails(x *trial) {
	ended := x.done()
	for want, r := range map[known]*reply{
		taskNotFound():       x.call(opGet, object{"id": "no-such-task"}),
		notCancelable():      x.call(opCancel, object{"id": ended}),
		unsupported():        x.call(opSend, x.message("x", func(m object) { m["taskId"] = ended })),
		contentType():        x.call(opSend, x.message("x", func(m object) { m["parts"] = []any{object{"url": "https://example.com"}} })),
		extensionRequired():  x.call(opGet, object{"id": ended}, headers("A2A-Extensions", "")),
		versionUnsupported(): x.call(opGet, object{"id": ended}, headers("A2A-Version", "9.9")),
		invalid():            x.call(opSend, object{}),
	} {
		x.refused(r, want)
	}
}

func errorsHaveTheirCodes(x *trial) { errorsHaveDetails(x) }

func streamIsEvents(x *trial) {
	s := x.follow(opStream, x.message("x", nil))
	x.want(s.header.Get("Content-Type") == "text/event-stream" && s.header.Get("Cache-Control") == "no-store", "the stream has %v", s.header)
	h := x.all(s)
	x.want(h.closed && len(h.events) > 2, "the stream has %d events", len(h.events))
}

func slashIsTaken(x *trial) {
	id := x.done()
	at := *x.target
	at.agent += "/"
	k := x.on(&at).ok(opGet, object{"id": id}).task()
	x.want(text(k, "id") == id, "with a slash the task is %v", k)
	x.ok(opGet, object{"id": id})
}

func paramsMayBeAbsent(x *trial) {
	for method, want := range map[string]int{"ListTasks": 0, "GetExtendedAgentCard": -32004, "GetTask": -32001} {
		for _, params := range []string{``, `,"params":null`, `,"params":{}`} {
			r := x.post(`{"jsonrpc":"2.0","id":7,"method":"` + method + `"` + params + `}`)
			got := 0
			if r.fault != nil {
				got = r.fault.code
			}
			if method == "GetExtendedAgentCard" && r.fault == nil {
				continue // this server has one
			}
			x.want(got == want, "%s%s is %.300s", method, params, r.raw)
		}
	}
}

func pathsAreThere(x *trial) {
	for _, path := range []string{"/message:send", "/messages:send"} {
		body, err := json.Marshal(x.message("x", nil))
		x.check(err)
		r := x.raw(http.MethodPost, path, body)
		x.want(r.status == 200 && text(r.body, "task", "id") != "", "%s is %d %.200s", path, r.status, r.raw)
	}
	allOperationsAreThere(x)
}

func verbsAreThose(x *trial) {
	for path, want := range map[string][]string{
		"": {"POST"}, "/message:send": {"POST"}, "/message:stream": {"POST"}, "/tasks": {"GET"}, "/tasks/x": {"GET"}, "/tasks/x:cancel": {"POST"},
		"/tasks/x:subscribe": {"GET", "POST"}, "/tasks/x/pushNotificationConfigs": {"GET", "POST"},
		"/tasks/x/pushNotificationConfigs/y": {"DELETE", "GET"}, cardPath: {"GET", "HEAD"}, "/extendedAgentCard": {"GET"},
	} {
		r := x.raw(http.MethodPut, path, nil)
		x.want(r.status == 405 && sameSet(splitURIs(r.header.Values("Allow")), want), "PUT %s is %d, Allow %q, want %q", path, r.status,
			r.header.Values("Allow"), want)
	}
}

func queryIsCamelCase(x *trial) {
	r := x.ok(opList, object{"pageSize": 2, "includeArtifacts": true, "historyLength": 0, "status": "TASK_STATE_COMPLETED"})
	x.want(r.get("pageSize") == 2.0, "pageSize is %v", r.get("pageSize"))
	for _, k := range list(r.result, "tasks") {
		x.want(dig(k, "artifacts") != nil && dig(k, "history") == nil, "the parameters were not read: %.300v", k)
	}
}

func allOperationsAreThere(x *trial) {
	for _, a := range x.actions("no-such-task") {
		s, r := x.open(a.op, a.params)
		if s != nil {
			x.all(s)
			continue
		}
		x.want(r.fault == nil || slices.Contains([]string{"TASK_NOT_FOUND", "PUSH_NOTIFICATION_NOT_SUPPORTED"}, reasonOf(r)), "%s is %.300s", a.op, r.raw)
	}
	r := x.call(opExtended, nil)
	x.want(r.fault == nil || reasonOf(r) == "UNSUPPORTED_OPERATION", "%s is %.300s", opExtended, r.raw)
}

func reasonOf(r *reply) string { reason, _ := r.fault.info(); return reason }

func bindingsGiveTheSame(x *trial) {
	id := x.done()
	one, two := x.in(rpc10()).ok(opGet, object{"id": id}).result, x.in(rest10()).ok(opGet, object{"id": id}).result
	x.want(fmt.Sprint(one) == fmt.Sprint(two), "JSON-RPC gives %v, HTTP+JSON %v", one, two)
	a, b := x.in(rpc10()).ok(opList, object{"pageSize": 5}).result, x.in(rest10()).ok(opList, object{"pageSize": 5}).result
	x.want(fmt.Sprint(a) == fmt.Sprint(b), "the lists differ: %.300v and %.300v", a, b)
}

func bindingsErrTheSame(x *trial) {
	ended := x.done()
	for _, a := range []action{{opGet, object{"id": "x"}}, {opCancel, object{"id": ended}}, {opSubscribe, object{"id": ended}}, {opSend, object{}}} {
		_, one := x.in(rpc10()).open(a.op, a.params)
		_, two := x.in(rest10()).open(a.op, a.params)
		x.want(one != nil && two != nil && reasonOf(one) == reasonOf(two) && one.fault.message == two.fault.message &&
			fmt.Sprint(one.fault.details) == fmt.Sprint(two.fault.details), "%s differs: %+v and %+v", a.op, one, two)
	}
}
