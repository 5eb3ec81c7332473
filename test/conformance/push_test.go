package conformance

import (
	"net/http"
	"strings"
)

func pushCases() []kase {
	return []kase{
		both("PUSH-CREATE-001", pushIsCreated, needHooks),
		both("PUSH-CREATE-002", pushStays, needHooks, needCommand),
		both("PUSH-GET-001", pushIsGiven),
		every("PUSH-GET-002", unknownPushIsNotFound),
		both("PUSH-LIST-001", pushIsListed),
		every("PUSH-DEL-001", pushIsDeleted),
		every("PUSH-DEL-002", deletingAgainIsTheSame),
		both("PUSH-DELIVER-001", deliveryAuthenticates, needHooks, needCommand),
		both("PUSH-DELIVER-002", deliveryIsTriedAgain, needHooks, needCommand),
		both("PUSH-DELIVER-003", deliveryIsStreamResponse, needHooks, needCommand),
		every("PUSH-SECRET-001", secretsAreNotTold),
		every("PUSH-SSRF-001", privateAddressesAreRefused),
		once("PUSH-SSRF-002", redirectsAreNotFollowed, needHooks, needCommand),
	}
}

// address is one that a webhook may have. Of a server elsewhere nothing is to
// come: a task that has ended has nothing to tell.
func (x *trial) address() string {
	x.Helper()
	if x.missing[needHooks] != "" {
		return "https://example.com/conformance"
	}
	return x.hook().url
}

func hookParams(task, url string) object {
	return object{"taskId": task, "id": unique("hook"), "url": url}
}

// configOf is the configuration of an answer, wherever the form has it.
func (x *trial) configOf(v any) any {
	if c := dig(v, "pushNotificationConfig"); c != nil {
		return c
	}
	return v
}

func pushIsCreated(x *trial) {
	id, h := x.done(), x.hook()
	r := x.ok(opPushCreate, object{"taskId": id, "url": h.url})
	x.want(r.get("taskId") == id && text(r.result, "id") != "" && r.get("url") == h.url, "the configuration is %.300s", r.raw)
	m := x.message("with a webhook", nil)
	m["configuration"] = object{"taskPushNotificationConfig": object{"id": "mine", "url": h.url}}
	k := x.ok(opSend, m).task()
	c := x.ok(opPushGet, object{"taskId": text(k, "id"), "id": "mine"})
	x.want(c.get("url") == h.url, "the configuration of the message is %.300s", c.raw)
	x.wait(h, finished)
}

func pushStays(x *trial) {
	id, h := x.running(), x.hook()
	p := hookParams(id, h.url)
	x.ok(opPushCreate, p)
	x.ok(opGet, object{"id": id})
	c := x.ok(opPushGet, object{"taskId": id, "id": p["id"]})
	x.want(c.get("url") == h.url, "the configuration is %.300s", c.raw)
	x.ok(opCancel, object{"id": id})
	x.wait(h, finished)
}

func pushIsGiven(x *trial) {
	p := hookParams(x.done(), x.address())
	p["authentication"] = object{"scheme": "Bearer", "credentials": "x"}
	x.ok(opPushCreate, p)
	c := x.ok(opPushGet, object{"taskId": p["taskId"], "id": p["id"]})
	x.want(c.get("url") == p["url"] && c.get("id") == p["id"] && c.get("authentication", "scheme") == "Bearer", "the configuration is %.300s", c.raw)
}

func unknownPushIsNotFound(x *trial) {
	x.refused(x.call(opPushGet, object{"taskId": x.done(), "id": "no-such-configuration"}), taskNotFound())
	x.refused(x.call(opPushGet, object{"taskId": "no-such-task", "id": "x"}), taskNotFound())
}

func pushIsListed(x *trial) {
	id, address := x.done(), x.address()
	empty := x.ok(opPushList, object{"taskId": id})
	x.want(len(list(empty.result, "configs")) == 0 && empty.get("nextPageToken") == "", "the empty list is %.300s", empty.raw)
	want := map[string]bool{}
	for range 3 {
		p := hookParams(id, address)
		x.ok(opPushCreate, p)
		want[text(p, "id")] = true
	}
	token := ""
	for range 3 {
		params := object{"taskId": id, "pageSize": 1}
		if token != "" {
			params["pageToken"] = token
		}
		r := x.ok(opPushList, params)
		c := list(r.result, "configs")
		if len(c) != 1 {
			x.Fatalf("a page of 1 has %d", len(c))
		}
		delete(want, text(c[0], "id"))
		token = text(r.result, "nextPageToken")
	}
	x.want(len(want) == 0 && token == "", "the pages lack %v, the last token is %q", want, token)
}

func pushIsDeleted(x *trial) {
	p := hookParams(x.done(), x.address())
	x.ok(opPushCreate, p)
	x.deletePush(p)
	x.refused(x.call(opPushGet, object{"taskId": p["taskId"], "id": p["id"]}), taskNotFound())
	left := x.in(rest10()).ok(opPushList, object{"taskId": p["taskId"]})
	x.want(len(list(left.result, "configs")) == 0, "there is still %.300s", left.raw)
}

// deletePush deletes a configuration; 0.3 answers null on JSON-RPC.
func (x *trial) deletePush(p object) *reply {
	x.Helper()
	r := x.call(opPushDelete, object{"taskId": p["taskId"], "id": p["id"]})
	x.want(r.fault == nil && r.status == http.StatusOK, "deleting answers %d %.300s", r.status, r.raw)
	return r
}

func deletingAgainIsTheSame(x *trial) {
	p := hookParams(x.done(), x.address())
	x.ok(opPushCreate, p)
	one, two := x.deletePush(p), x.deletePush(p)
	x.want(string(one.raw) == string(two.raw), "deleting answers %s, then %s", one.raw, two.raw)
}

// tellOf runs a command with a webhook and returns what that was told.
func (x *trial) tellOf(h *hook, config object) []delivery {
	x.Helper()
	m := x.command("echo out; echo err >&2", nil)
	if config == nil {
		config = object{}
	}
	config["url"] = h.url
	m["configuration"] = object{"taskPushNotificationConfig": config}
	x.ok(opSend, m)
	return x.wait(h, finished)
}

func deliveryAuthenticates(x *trial) {
	got := x.tellOf(x.hook(), object{"token": "a-token", "authentication": object{"scheme": "Bearer", "credentials": "secret"}})
	for _, d := range got {
		x.want(d.header.Get("Authorization") == "Bearer secret" && d.header.Get("A2A-Notification-Token") == "a-token" &&
			d.header.Get("X-A2A-Notification-Token") == "a-token", "a delivery has %v", d.header)
	}
}

func deliveryIsTriedAgain(x *trial) {
	h := x.hookAt(hookHost, func(n int) int {
		if n < 2 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}, nil)
	m := x.command("echo out", nil)
	m["configuration"] = object{"taskPushNotificationConfig": object{"url": h.url}}
	s := x.all(x.follow(opStream, m))
	x.want(s.closed && s.last().state() == "TASK_STATE_COMPLETED", "the stream ended with %v", s.states())
	got := x.wait(h, finished)
	key := func(i int) string { return got[i].header.Get("Idempotency-Key") }
	x.want(len(got) > 3 && key(0) == key(1) && key(1) == key(2) && key(2) != key(3), "the first deliveries are not one event, tried again")
	x.inTaskOrder(got)
}

// inTaskOrder wants deliveries to tell a task's life in order.
func (x *trial) inTaskOrder(got []delivery) {
	x.Helper()
	order := map[string]int{"TASK_STATE_SUBMITTED": 0, "TASK_STATE_WORKING": 1, "TASK_STATE_COMPLETED": 2}
	before := 0
	var out strings.Builder
	for _, d := range told(got) {
		if s := d.state(); s != "" {
			x.want(order[s] >= before, "%s comes after a later state", s)
			before = order[s]
		}
		if text(d.body, "artifactUpdate", "artifact", "name") == "stdout" {
			out.WriteString(partText(dig(d.body, "artifactUpdate", "artifact")))
		}
	}
	x.want(before == 2 && out.String() == "out\n", "the webhook was told of state %d and output %q", before, out.String())
}

func deliveryIsStreamResponse(x *trial) {
	got := x.tellOf(x.hook(), nil)
	for _, d := range got {
		media := d.header.Get("Content-Type")
		x.want(strings.HasPrefix(media, typeA2A), "a delivery has content type %q", media)
		if bad := shapes10().check("StreamResponse", "delivery", d.body); len(bad) > 0 {
			x.Errorf("a delivery is no StreamResponse: %v", bad)
		}
	}
	x.inTaskOrder(got)
}

func secretsAreNotTold(x *trial) {
	p := hookParams(x.done(), x.address())
	p["token"] = "very-secret-token"
	auth := object{"scheme": "Bearer", "credentials": "very-secret-credentials"}
	if x.form.version == "0.3" {
		auth = object{"schemes": []any{"Bearer"}, "credentials": "very-secret-credentials"}
	}
	p["authentication"] = auth
	for _, r := range []*reply{
		x.ok(opPushCreate, p), x.ok(opPushGet, object{"taskId": p["taskId"], "id": p["id"]}), x.ok(opPushList, object{"taskId": p["taskId"]}),
	} {
		x.want(!strings.Contains(string(r.raw), "very-secret"), "%s tells a secret: %.300s", r.op, r.raw)
	}
}

// privateAddresses are those that no webhook may have.
func privateAddresses() []string {
	return []string{
		"https://169.254.169.254/latest/meta-data", "https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://0.0.0.0/",
		"https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://10.0.0.1/", "https://172.16.0.1/", "https://192.168.0.1/",
		"https://100.64.0.1/", "https://100.100.100.200/", "https://198.18.0.1/", "https://224.0.0.1/", "https://255.255.255.255/",
		"https://[fe80::1]/", "https://[fc00::1]/", "https://[fd00:ec2::254]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/",
		"https://[::]/", "https://[::127.0.0.1]/", "https://168.63.129.16/",
		"ftp://example.com/", "file:///etc/passwd", "https://", "example.com/hook", "//example.com/hook", "https://user:pw@example.com/",
		"https://example.com:0/", "https://example.com/a b", "https://example.com/\r\nX: y", `https://example.com\@127.0.0.1/`,
		"https://127.0.0.1#@example.com/", "https://[fe80::1%25eth0]/", "gopher://127.0.0.1/", "https://exämple.com/", "",
	}
}

func privateAddressesAreRefused(x *trial) {
	id := x.done()
	field := "url"
	if x.form.version == "0.3" {
		field = "pushNotificationConfig.url"
	}
	for _, address := range privateAddresses() {
		r := x.call(opPushCreate, object{"taskId": id, "url": address})
		x.refused(r, invalid())
		x.names(r, field)
	}
	if x.form.version == "1.0" {
		before := x.total()
		m := x.message("x", nil)
		m["configuration"] = object{"taskPushNotificationConfig": object{"url": privateAddresses()[0]}}
		r := x.call(opSend, m)
		x.refused(r, invalid())
		x.names(r, "configuration.taskPushNotificationConfig.url")
		x.want(x.total() == before, "a task was made")
	}
}

func redirectsAreNotFollowed(x *trial) {
	target := x.hookAt("127.0.0.1", func(int) int { return http.StatusOK }, nil)
	redirecting := x.hookAt(hookHost, func(n int) int {
		if n < 2 {
			return http.StatusTemporaryRedirect
		}
		return http.StatusOK
	}, http.Header{"Location": {target.url}})
	x.tellOf(redirecting, nil)
	x.want(len(target.deliveries()) == 0, "a redirect was followed: %d deliveries", len(target.deliveries()))
}
