package conformance

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func streamCases() []kase {
	return []kase{
		every("STREAM-ORDER-001", eventsAreInOrder, needCommand),
		both("STREAM-ORDER-002", allStreamsGetAll, needCommand),
		both("STREAM-ORDER-003", allStreamsGetAll, needCommand),
		both("STREAM-ORDER-004", closedStreamDisturbsNobody, needCommand),
		every("STREAM-SUB-001", subscribeBeginsWithTask, needCommand),
		both("STREAM-SUB-002", subscribeEndsWithTask, needCommand),
		every("STREAM-SUB-003", subscribeToEnded),
		every("STREAM-SUB-004", subscribeToUnknown),
		kase{id: "STREAM-VERB-001", run: subscribeTakesBothVerbs, forms: []form{rest10(), rest03()}, needs: []need{needCommand}},
		every("STREAM-ERROR-001", errorsAreNoStreams),
		every("STREAM-RESUME-001", resumeLosesNothing, needCommand),
		every("STREAM-RESUME-002", strangeEventIDIsRefused),
	}
}

const counting = `i=1; while [ $i -le 40 ]; do echo "tick $i"; i=$((i+1)); sleep 0.01; done`

func ticks() string {
	var b strings.Builder
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&b, "tick %d\n", i)
	}
	return b.String()
}

func eventsAreInOrder(x *trial) {
	h := x.all(x.follow(opStream, x.command(counting, nil)))
	before := uint64(0)
	for i, e := range h.events {
		n, err := strconv.ParseUint(e.id, 10, 64)
		x.want(err == nil && (i == 0 || n > before), "event %d has id %q, the one before %d", i, e.id, before)
		before = n
	}
	x.want(h.output("stdout") == ticks(), "the output is %.200q", h.output("stdout"))
	x.want(h.last().kind == "statusUpdate" && h.last().state() == x.says("TASK_STATE_COMPLETED"), "the last event is %+v", h.last())
}

// same reports whether two streams had the same events.
func same(a, b []event) bool {
	return slices.EqualFunc(a, b, func(p, q event) bool {
		return p.id == q.id && p.kind == q.kind && fmt.Sprint(p.body) == fmt.Sprint(q.body)
	})
}

// gate is a command that waits for an answer and then counts, so that streams
// can be opened before anything happens.
const gate = `printf 'Go on? [y/N] '; IFS= read -r a; ` + counting

func allStreamsGetAll(x *trial) {
	k := x.ask(gate, nil)
	var open []*stream
	for range 3 {
		s := x.follow(opSubscribe, object{"id": text(k, "id")})
		_, err := s.next()
		x.check(err)
		open = append(open, s)
	}
	x.ok(opSend, now(x.reply(k, text(question(k), "prompt_id"), line1("y"))), withPrompts())
	first := x.all(open[0])
	x.want(first.closed && strings.HasSuffix(first.output("stdout"), ticks()), "the first stream has %.200q", first.output("stdout"))
	for i, s := range open[1:] {
		h := x.all(s)
		x.want(same(first.events, h.events), "stream %d has %d events, the first %d, or others", i+2, len(h.events), len(first.events))
	}
}

func closedStreamDisturbsNobody(x *trial) {
	k := x.ask(gate, nil)
	one, two := x.follow(opSubscribe, object{"id": text(k, "id")}), x.follow(opSubscribe, object{"id": text(k, "id")})
	_, err := one.next()
	x.check(err)
	one.close()
	x.ok(opSend, now(x.reply(k, text(question(k), "prompt_id"), line1("y"))), withPrompts())
	h := x.all(two)
	x.want(h.closed && strings.HasSuffix(h.output("stdout"), ticks()) && h.last().state() == "TASK_STATE_COMPLETED",
		"the other stream has %v, %.200q", h.states(), h.output("stdout"))
}

func subscribeBeginsWithTask(x *trial) {
	id := x.running()
	e, err := x.follow(opSubscribe, object{"id": id}).next()
	x.check(err)
	x.want(e.kind == "task" && text(e.body, "id") == id && e.state() == x.says("TASK_STATE_WORKING") &&
		output(e.body, "stdout") == "working\n", "the first event is %+v", e)
}

func subscribeEndsWithTask(x *trial) {
	k := x.ask(asking, nil)
	s := x.follow(opSubscribe, object{"id": text(k, "id")})
	first, err := s.next()
	x.check(err)
	x.want(first.state() == "TASK_STATE_INPUT_REQUIRED", "the task is %s", first.state())
	x.ok(opSend, now(x.reply(k, text(question(k), "prompt_id"), line1("y"))), withPrompts())
	h := x.all(s)
	x.want(h.closed && h.last().state() == "TASK_STATE_COMPLETED", "the stream ends with %v", h.states())
}

func subscribeToEnded(x *trial) {
	_, r := x.open(opSubscribe, object{"id": x.done()})
	x.refused(r, unsupported())
}

func subscribeToUnknown(x *trial) {
	_, r := x.open(opSubscribe, object{"id": "no-such-task"})
	x.refused(r, taskNotFound())
}

func subscribeTakesBothVerbs(x *trial) {
	id := x.running()
	path := "/tasks/" + id + ":subscribe"
	if x.form.version == "0.3" {
		path = "/v1" + path
	}
	var firsts []event
	for name, send := range map[string]struct {
		method string
		body   []byte
		header http.Header
	}{
		"GET": {http.MethodGet, nil, nil}, "POST without a body": {http.MethodPost, nil, nil}, "POST {}": {http.MethodPost, []byte("{}"), nil},
		"POST with an empty body": {http.MethodPost, []byte{}, headers("Content-Length", "0")},
	} {
		e := x.exchange(opSubscribe, nil, []http.Header{headers("Accept", "text/event-stream"), send.header})
		ctx, cancel := context.WithTimeout(x.Context(), patience)
		x.Cleanup(cancel)
		req, err := e.raw(ctx, send.method, x.agent+path, send.body)
		x.check(err)
		s, r := x.begin(e, req, cancel)
		if s == nil {
			x.Errorf("%s answers %d %.300s", name, r.status, r.raw)
			continue
		}
		first, err := s.next()
		x.check(err)
		firsts = append(firsts, first)
		s.close()
	}
	for _, f := range firsts {
		x.want(same([]event{f}, firsts[:1]), "the first events differ: %+v and %+v", f, firsts[0])
	}
}

func errorsAreNoStreams(x *trial) {
	ended := x.done()
	for _, c := range []struct {
		op     string
		params object
		header http.Header
		want   known
	}{
		{opStream, x.message("x", nil), headers("A2A-Extensions", ""), extensionRequired()},
		{opStream, x.message("x", func(m object) { m["taskId"] = ended }), nil, unsupported()},
		{opStream, x.message("x", func(m object) { m["taskId"] = "no-such-task" }), nil, taskNotFound()},
		{opStream, object{}, nil, invalid()},
		{opSubscribe, object{"id": ended}, nil, unsupported()},
		{opSubscribe, object{"id": "no-such-task"}, nil, taskNotFound()},
		{opSubscribe, object{"id": ended}, headers("A2A-Extensions", ""), extensionRequired()},
	} {
		s, r := x.open(c.op, c.params, c.header)
		if s != nil {
			x.Errorf("%s %v opens a stream", c.op, c.params)
			continue
		}
		x.refused(r, c.want)
	}
}

// resumeLosesNothing breaks streams off after every few events and goes on.
func resumeLosesNothing(x *trial) {
	s := x.follow(opStream, x.command(counting, nil))
	var all heard
	part := x.read(s, func(event) bool { return true }) // one event
	id := text(part.events[0].body, "id")
	all.events = append(all.events, part.events...)
	for range 200 {
		s.close()
		s = x.follow(opSubscribe, object{"id": id}, headers("Last-Event-ID", all.last().id))
		n := 0
		part = x.read(s, func(event) bool { n++; return n == 6 })
		for _, e := range part.events {
			if e.kind != "task" { // a snapshot of what is known already
				all.events = append(all.events, e)
			}
		}
		if part.closed {
			break
		}
	}
	x.want(part.closed && all.output("stdout") == ticks(), "the output is %.300q", all.output("stdout"))
	seen := map[string]bool{}
	for _, e := range all.events {
		x.want(!seen[e.id], "event %s came twice", e.id)
		seen[e.id] = true
	}
	whole := x.all(x.follow(opSubscribe, object{"id": id}, headers("Last-Event-ID", all.events[0].id)))
	x.want(same(whole.events[1:], all.events[1:]), "what is read at once differs from what was read in parts: %d and %d events",
		len(whole.events)-1, len(all.events)-1)
}

func strangeEventIDIsRefused(x *trial) {
	id := x.done()
	for _, last := range []string{"x", "-1", "999999999", "1.5", "18446744073709551616"} {
		_, r := x.open(opSubscribe, object{"id": id}, headers("Last-Event-ID", last))
		x.refused(r, invalid())
		x.names(r, "Last-Event-ID")
	}
}
