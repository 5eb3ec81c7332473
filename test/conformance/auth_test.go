package conformance

import (
	"bytes"
	"net/http"
	"strings"
)

func authCases() []kase {
	return []kase{
		every("AUTH-SERVER-002", requestsAreAuthenticated),
		every("AUTH-SCOPE-001", scopesAreAsked, needScopes),
		every("AUTH-SCOPE-002", resultsAreTheCallers, needOther),
		every("AUTH-SCOPE-003", strangersSeeNothing, needOther, needCommand),
		both("PUSH-GET-002", strangersSeeNoHooks, needOther),
	}
}

func requestsAreAuthenticated(x *trial) {
	if x.token == "" {
		x.Skipf("this server was given no token: set %s", envToken)
	}
	for _, token := range []string{"", "sbx_wrong", x.token + "x", strings.ToUpper(x.token)} {
		y := x.as(token)
		for _, a := range y.actions("no-such-task") {
			_, r := y.open(a.op, a.params)
			if r == nil {
				x.Fatalf("%s opens a stream without a good token", a.op)
			}
			x.want(r.status == http.StatusUnauthorized && strings.HasPrefix(r.header.Get("WWW-Authenticate"), "Bearer") &&
				strings.Contains(r.header.Get("Content-Type"), "json"), "%s is %d %v", a.op, r.status, r.header)
			x.want(token == "" || !bytes.Contains(r.raw, []byte(token)), "the answer repeats the token")
		}
	}
}

func scopesAreAsked(x *trial) {
	y := x.as(x.reader)
	before := x.total()
	for _, a := range y.actions(x.done()) {
		_, r := y.open(a.op, a.params)
		x.refused(r, forbidden())
	}
	x.want(x.total() != nil && before != nil, "the caller's own list is gone")
}

func resultsAreTheCallers(x *trial) {
	id := x.done()
	y := x.as(x.other)
	y.refused(y.call(opGet, object{"id": id}), taskNotFound())
	if x.form == rpc03() {
		return
	}
	for _, k := range list(y.ok(opList, object{"pageSize": 100}).result, "tasks") {
		x.want(text(k, "id") != id, "somebody else's task is on the list")
	}
}

// strangersSeeNothing compares, on every operation that names a task, somebody
// else's with one that does not exist: the answers are the same to the byte.
func strangersSeeNothing(x *trial) {
	id := x.running()
	y := x.as(x.other)
	// As long as the real id, so that no length tells them apart.
	unknown := "018fc0a2-7777-7aaa-bbbb-ccccddddeeee"
	ask := func(id string) []action {
		to := func() object {
			return y.message("x", func(m object) { m["taskId"], m["messageId"] = id, "the-same" })
		}
		return append(y.actions(id)[2:9], action{opSend, to()}, action{opStream, to()})
	}
	theirs, none := ask(id), ask(unknown)
	for i := range theirs {
		_, r := y.open(theirs[i].op, theirs[i].params)
		_, q := y.open(none[i].op, none[i].params)
		x.refused(r, taskNotFound())
		x.refused(q, taskNotFound())
		if r != nil && q != nil {
			x.want(bytes.Equal(bytes.ReplaceAll(r.raw, []byte(id), []byte(unknown)), q.raw) && r.status == q.status,
				"%s tells the tasks apart: %s and %s", theirs[i].op, r.raw, q.raw)
		}
	}
	k := x.in(rest10()).ok(opGet, object{"id": id}).result
	x.want(text(k, "status", "state") == "TASK_STATE_WORKING", "the stranger changed the task: %v", dig(k, "status"))
	path := "/tasks/%s/artifacts/stdout"
	mine := x.fetch(http.MethodGet, x.agent+strings.Replace(path, "%s", id, 1), nil)
	other := y.fetch(http.MethodGet, x.agent+strings.Replace(path, "%s", id, 1), nil)
	nobodys := y.fetch(http.MethodGet, x.agent+strings.Replace(path, "%s", unknown, 1), nil)
	x.want(mine.status == 200 && other.status == 404 && bytes.Equal(other.raw, nobodys.raw), "artifacts are %d, %d %s, %s",
		mine.status, other.status, other.raw, nobodys.raw)
}

func strangersSeeNoHooks(x *trial) {
	p := hookParams(x.done(), x.address())
	x.ok(opPushCreate, p)
	y := x.as(x.other)
	at := object{"taskId": p["taskId"], "id": p["id"]}
	y.refused(y.call(opPushGet, at), taskNotFound())
	y.refused(y.call(opPushDelete, at), taskNotFound())
	y.refused(y.call(opPushList, object{"taskId": p["taskId"]}), taskNotFound())
	x.ok(opPushGet, at)
}
