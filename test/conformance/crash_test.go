package conformance

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

func crashCases() []kase {
	return []kase{
		rough(once("STREAM-CRASH-001", runningTaskIsFollowed, needKill, needCommand)),
		rough(once("STREAM-CRASH-002", waitingTaskIsFollowed, needKill, needCommand)),
		rough(both("STREAM-CRASH-003", brokenStreamGoesOn, needKill, needCommand)),
		rough(once("PUSH-CRASH-001", retriesSurvive, needKill, needHooks, needCommand)),
		rough(once("PUSH-CREATE-002", pushOutlivesServer, needKill, needHooks, needCommand)),
	}
}

// slowly counts to fifteen within some seconds, so that a server can die in
// between.
const slowly = `i=1; while [ $i -le 15 ]; do echo "tick $i"; i=$((i+1)); sleep 0.2; done`

func slowTicks() string { return strings.Join(strings.SplitAfter(ticks(), "\n")[:15], "") }

// crash kills the server and starts it again.
func (x *trial) restart() {
	x.Helper()
	x.check(x.process.Kill())
	x.check(x.process.Launch(x.deadline()))
}

func runningTaskIsFollowed(x *trial) {
	id := text(x.start(x.command(slowly, nil)), "id")
	x.until(id, func(t any) bool { return strings.Contains(output(t, "stdout"), "tick 3\n") })
	x.restart()
	s, r := x.open(opSubscribe, object{"id": id})
	if r != nil { // it has ended meanwhile
		x.refused(r, unsupported())
		x.want(output(x.settled(id), "stdout") == slowTicks(), "the output is %q", output(x.settled(id), "stdout"))
		return
	}
	h := x.all(s)
	x.want(h.events[0].kind == "task" && strings.HasPrefix(output(h.events[0].body, "stdout"), "tick 1\ntick 2\ntick 3\n"),
		"the snapshot has %q", output(h.events[0].body, "stdout"))
	x.want(h.closed && h.output("stdout") == slowTicks() && h.last().state() == "TASK_STATE_COMPLETED", "the stream has %q and ends with %v",
		h.output("stdout"), h.states())
}

func waitingTaskIsFollowed(x *trial) {
	k := x.ask(asking, nil)
	id, before := text(k, "id"), text(question(k), "prompt_id")
	x.restart()
	s := x.follow(opSubscribe, object{"id": id})
	first, err := s.next()
	x.check(err)
	x.want(first.kind == "task", "the first event is %s", first.kind)
	// The command asks again, under a new id: the old one had no live binding.
	again := x.until(id, func(t any) bool {
		q := text(question(t), "prompt_id")
		return q != "" && q != before || ended(text(t, "status", "state"))
	})
	x.ok(opSend, now(x.reply(again, text(question(again), "prompt_id"), line1("y"))), withPrompts())
	h := x.all(s)
	x.want(h.closed && h.last().state() == "TASK_STATE_COMPLETED" && strings.Contains(output(x.settled(id), "stdout"), "got <y>"),
		"the stream ends with %v", h.states())
}

func brokenStreamGoesOn(x *trial) {
	s := x.follow(opStream, x.command(slowly, nil))
	var h heard
	part := x.read(s, func(e event) bool {
		h.events = append(h.events, e)
		return strings.Contains(h.output("stdout"), "tick 2\n")
	})
	x.want(!part.closed, "the stream ended early: %v", part.states())
	id := text(h.events[0].body, "id")
	x.check(x.process.Kill())
	for { // what was on its way
		e, err := s.next()
		if err != nil {
			x.want(!errors.Is(err, io.EOF), "the dead server's stream ended in order")
			break
		}
		h.events = append(h.events, e)
	}
	x.check(x.process.Launch(x.deadline()))
	rest := x.all(x.follow(opSubscribe, object{"id": id}, headers("Last-Event-ID", h.last().id)))
	seen := map[string]bool{}
	for _, e := range h.events {
		seen[e.id] = true
	}
	for i, e := range rest.events {
		x.want(i == 0 || !seen[e.id], "event %s came twice", e.id)
		if e.kind != "task" {
			h.events = append(h.events, e)
		}
	}
	x.want(rest.closed && h.output("stdout") == slowTicks(), "the output is %q", h.output("stdout"))
}

func retriesSurvive(x *trial) {
	h := x.hookAt(hookHost, func(n int) int {
		if n < 3 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}, nil)
	m := x.command("echo out", nil)
	m["configuration"] = object{"taskPushNotificationConfig": object{"url": h.url}}
	x.ok(opSend, m)
	x.wait(h, func(got []delivery) bool { return len(got) > 0 })
	x.restart()
	x.inTaskOrder(x.wait(h, finished))
}

func pushOutlivesServer(x *trial) {
	id, h := text(x.ask(asking, nil), "id"), x.hook()
	p := hookParams(id, h.url)
	x.ok(opPushCreate, p)
	x.restart()
	c := x.ok(opPushGet, object{"taskId": id, "id": p["id"]})
	x.want(c.get("url") == h.url, "the configuration is %.300s", c.raw)
	x.ok(opCancel, object{"id": id})
	x.wait(h, finished)
}
