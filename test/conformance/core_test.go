package conformance

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

func coreCases() []kase {
	return []kase{
		every("CORE-SEND-001", sendAnswers),
		every("CORE-SEND-002", endedTaskTakesNoMessage),
		every("CORE-SEND-003", strangeMediaIsRefused),
		every("CORE-STREAM-001", streamOpens),
		every("CORE-STREAM-003", streamBeginsAndCloses),
		every("CORE-GET-001", getGivesTask),
		every("CORE-GET-002", getOfUnknown),
		every("CORE-CANCEL-001", cancelCancels, needCommand),
		every("CORE-CANCEL-002", cancelOfEnded),
		every("CORE-CANCEL-003", cancelOfUnknown),
		both("CORE-EXECUTION-MODE-001", sendWaits, needCommand),
		both("CORE-EXECUTION-MODE-002", sendReturnsAtOnce, needCommand),
		both("CORE-ERR-001", errorsSayWhat),
		both("CORE-ERR-002", brokenMakesNothing),
		both("CORE-CAP-001", pushIsOff, needNarrow),
		both("CORE-CAP-003", extendedCardIsOff),
		both("CORE-CAP-004", runtimeIsRequired),
		both("CORE-HIST-001", historyOfGet),
		both("CORE-HIST-002", historyIsBounded),
		both("CORE-HIST-003", historyOfSend),
		both("CORE-HIST-004", historyIsKept),
		both("CORE-HIST-005", historyIsInOrder, needCommand),
		both("CORE-HIST-006", historyIsTrue),
	}
}

// done makes a task that has ended and returns its id.
func (x *trial) done() string {
	x.Helper()
	y := x.in(rest10())
	return text(x.settled(text(y.ok(opSend, y.message("done", nil)).task(), "id")), "id")
}

// running makes a task that works until it is canceled, and returns its id.
func (x *trial) running() string {
	x.Helper()
	id := text(x.start(x.in(rest10()).command("echo working; sleep 300", nil)), "id")
	x.until(id, func(t any) bool { return output(t, "stdout") != "" })
	return id
}

// says is a state as the trial's form writes it.
func (x *trial) says(state string) string {
	switch {
	case x.form == rpc03():
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(state, "TASK_STATE_")), "_", "-")
	case x.form == rest03() && state == "TASK_STATE_CANCELED":
		return "TASK_STATE_CANCELLED"
	}
	return state
}

func sendAnswers(x *trial) {
	r := x.ok(opSend, x.message("hello", nil))
	x.want(text(r.task(), "id") != "" || r.get("message") != nil, "the answer is %.300s", r.raw)
}

func endedTaskTakesNoMessage(x *trial) {
	id := x.done()
	more := func() object { return x.message("more", func(m object) { m["taskId"] = id }) }
	x.refused(x.call(opSend, more()), unsupported())
	_, r := x.open(opStream, more())
	x.refused(r, unsupported())
}

// strangeMediaIsRefused sends parts that the echo, which takes text, cannot.
func strangeMediaIsRefused(x *trial) {
	parts := []any{object{"raw": "AAEC", "mediaType": "application/x-strange"}}
	name := "parts"
	switch x.form {
	case rpc03():
		parts = []any{object{"kind": "file", "file": object{"bytes": "AAEC", "mimeType": "application/x-strange"}}}
	case rest03():
		name = "content"
		parts = []any{object{"file": object{"fileWithBytes": "AAEC", "mimeType": "application/x-strange"}}}
	}
	x.refused(x.call(opSend, x.message("", func(m object) { m[name] = parts })), contentType())
}

func streamOpens(x *trial) {
	h := x.all(x.follow(opStream, x.message("hello", nil)))
	x.want(h.closed && len(h.events) > 1, "the stream has %d events", len(h.events))
}

func streamBeginsAndCloses(x *trial) {
	h := x.all(x.follow(opStream, x.message("hello", nil)))
	for i, e := range h.events {
		x.want((e.kind == "task") == (i == 0), "event %d is %s", i, e.kind)
	}
	x.want(h.closed && h.last().state() == x.says("TASK_STATE_COMPLETED"), "the stream ends with %v", h.states())
	x.want(h.output("stdout") == "hello", "the output is %q", h.output("stdout"))
}

func getGivesTask(x *trial) {
	id := x.done()
	k := x.ok(opGet, object{"id": id}).task()
	x.want(text(k, "id") == id && text(k, "status", "state") == x.says("TASK_STATE_COMPLETED") && output(k, "stdout") == "done",
		"the task is %.400v", k)
}

// unknownIDs are ids that nobody's task has.
func unknownIDs() []string {
	return []string{"no-such-task", "018fc0a2-7777-7aaa-bbbb-ccccddddeeee", strings.Repeat("x", 256), "../tasks", "ümlaut", "a b"}
}

func getOfUnknown(x *trial) {
	for _, id := range unknownIDs() {
		if x.form.binding == httpJSON && strings.Contains(id, "/") {
			continue // is another path there
		}
		x.refused(x.call(opGet, object{"id": id}), taskNotFound())
	}
}

func cancelCancels(x *trial) {
	id := x.running()
	k := x.ok(opCancel, object{"id": id}).task()
	x.want(text(k, "id") == id && text(k, "status", "state") == x.says("TASK_STATE_CANCELED"), "the task is %.300v", k)
}

func cancelOfEnded(x *trial) {
	x.refused(x.call(opCancel, object{"id": x.done()}), notCancelable())
}

func cancelOfUnknown(x *trial) {
	x.refused(x.call(opCancel, object{"id": "no-such-task"}), taskNotFound())
}

func sendWaits(x *trial) {
	k := x.ok(opSend, x.command("sleep 0.5; echo waited", nil)).task()
	x.want(text(k, "status", "state") == "TASK_STATE_COMPLETED" && output(k, "stdout") == "waited\n", "the task is %v", dig(k, "status"))
	r := x.ok(opSend, x.command(asking, textLine()), withPrompts())
	x.Cleanup(func() { x.end(text(r.task(), "id")) })
	x.want(text(r.task(), "status", "state") == "TASK_STATE_INPUT_REQUIRED", "the task is %v", dig(r.task(), "status"))
}

func sendReturnsAtOnce(x *trial) {
	k := x.ok(opSend, now(x.command("sleep 300", nil))).task()
	x.Cleanup(func() { x.end(text(k, "id")) })
	s := text(k, "status", "state")
	x.want(s == "TASK_STATE_SUBMITTED" || s == "TASK_STATE_WORKING", "the task is %s", s)
}

func errorsSayWhat(x *trial) {
	for field, params := range map[string]object{
		"message":                     {},
		"message.messageId":           x.message("x", func(m object) { delete(m, "messageId") }),
		"message.role":                x.message("x", func(m object) { m["role"] = "ROLE_NOBODY" }),
		"message.parts":               x.message("x", func(m object) { m["parts"] = []any{} }),
		"message.parts[0].raw":        x.message("x", func(m object) { m["parts"] = []any{object{"raw": "!"}} }),
		"configuration.historyLength": {"message": x.message("x", nil)["message"], "configuration": object{"historyLength": -1}},
	} {
		r := x.call(opSend, params)
		x.refused(r, invalid())
		x.names(r, field)
	}
	r := x.call(opList, object{"pageSize": 101})
	x.refused(r, invalid())
	x.names(r, "pageSize")
}

func brokenMakesNothing(x *trial) {
	before := x.total()
	for _, op := range []string{opSend, opStream} {
		for _, parts := range []any{nil, []any{}, []any{object{}}, "x", []any{object{"text": "x", "url": "https://example.com"}}} {
			_, r := x.open(op, x.message("x", func(m object) { m["parts"] = parts }))
			x.refused(r, invalid())
		}
	}
	x.want(x.total() == before, "there are %v tasks, before %v", x.total(), before)
}

func pushIsOff(x *trial) {
	y := x.on(x.narrow)
	x.want(dig(y.card().body, "capabilities", "pushNotifications") != true, "the card declares push notifications")
	id := y.done()
	y.refused(y.call(opPushCreate, object{"taskId": id, "url": "https://example.com/hook"}), pushUnsupported())
	y.refused(y.call(opPushGet, object{"taskId": id, "id": "x"}), pushUnsupported())
	y.refused(y.call(opPushList, object{"taskId": id}), pushUnsupported())
	y.refused(y.call(opPushDelete, object{"taskId": id, "id": "x"}), pushUnsupported())
	m := y.message("x", nil)
	m["configuration"] = object{"taskPushNotificationConfig": object{"url": "https://example.com/hook"}}
	y.refused(y.call(opSend, m), pushUnsupported())
}

func extendedCardIsOff(x *trial) {
	if dig(x.card().body, "capabilities", "extendedAgentCard") == true {
		x.Skipf("this server has extended cards")
	}
	x.refused(x.call(opExtended, nil), unsupported())
}

// conversation makes a task with three messages and returns it.
func (x *trial) conversation() any {
	x.Helper()
	k := x.ask(asking, nil)
	y := x.in(rest10())
	y.ok(opSend, y.reply(k, text(question(k), "prompt_id"), line1("y")), withPrompts())
	return x.settled(text(k, "id"))
}

func historyOfGet(x *trial) {
	k := x.ok(opGet, object{"id": x.done(), "historyLength": 0}).result
	_, there := k.(object)["history"]
	x.want(!there, "history is %v", dig(k, "history"))
}

func historyIsBounded(x *trial) {
	id := x.done()
	for _, most := range []int{0, 1, 2, 100} {
		x.want(len(list(x.ok(opGet, object{"id": id, "historyLength": most}).result, "history")) <= most, "there are more than %d messages", most)
		tasks := list(x.ok(opList, object{"historyLength": most, "pageSize": 5}).result, "tasks")
		for _, k := range tasks {
			x.want(len(list(k, "history")) <= most, "a task of the list has more than %d messages", most)
		}
	}
	r := x.call(opGet, object{"id": id, "historyLength": -1})
	x.refused(r, invalid())
	x.names(r, "historyLength")
}

func historyOfSend(x *trial) {
	m := x.message("x", nil)
	m["configuration"] = object{"historyLength": 0}
	_, there := x.ok(opSend, m).task().(object)["history"]
	x.want(!there, "there is history")
}

func historyIsKept(x *trial) {
	h := list(x.ok(opGet, object{"id": x.done()}).result, "history")
	x.want(len(h) > 0, "there is no history")
}

func historyIsInOrder(x *trial) {
	k := x.conversation()
	var roles []string
	for _, m := range list(x.ok(opGet, object{"id": text(k, "id")}).result, "history") {
		roles = append(roles, text(m, "role"))
	}
	x.want(len(roles) >= 2 && roles[0] == "ROLE_USER" && !slices.ContainsFunc(roles, func(r string) bool { return r == "" }), "roles are %v", roles)
	last := list(x.ok(opGet, object{"id": text(k, "id"), "historyLength": 1}).result, "history")
	all := list(x.ok(opGet, object{"id": text(k, "id")}).result, "history")
	x.want(len(last) == 1 && text(last[0], "messageId") == text(all[len(all)-1], "messageId"), "the most recent message is %v, of %v", last, all)
}

func historyIsTrue(x *trial) {
	m := x.message("to be kept: ümlaut", func(m object) { m["metadata"] = object{"key": object{"a": []any{1.0, "b", true}}} })
	k := x.ok(opSend, m).task()
	sent := m["message"].(object)
	got := dig(k, "history", 0)
	x.want(text(got, "messageId") == sent["messageId"] && partText(got) == "to be kept: ümlaut" && dig(got, "metadata", "key", "a", 1) == "b" &&
		text(got, "role") == "ROLE_USER", "history has %v", got)
}

// fetched is an answer that belongs to no binding.
type fetched struct {
	status int
	header http.Header
	raw    []byte
}

// since is for lists.
func since(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
