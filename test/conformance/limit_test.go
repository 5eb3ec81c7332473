package conformance

import (
	"net/http"
	"strings"
)

func limitCases() []kase {
	return []kase{
		every("LIMIT-BODY-001", largeBodyIsRefused, needNarrow),
		both("LIMIT-STREAMS-001", streamsAreBounded, needNarrow, needCommand),
		both("LIMIT-TASKS-001", tasksAreBounded, needNarrow, needCommand),
		both("LIMIT-WAIT-001", waitIsBounded, needNarrow, needCommand),
		once("LIMIT-OUTPUT-001", outputIsBounded, needNarrow, needCommand),
	}
}

func largeBodyIsRefused(x *trial) {
	y := x.on(x.narrow)
	for _, op := range []string{opSend, opStream} {
		_, r := y.open(op, y.message(strings.Repeat("x", narrowBody+1), nil))
		y.refused(r, tooLarge())
	}
	y.ok(opSend, y.message("small", nil))
}

func streamsAreBounded(x *trial) {
	y := x.on(x.narrow)
	id := y.running()
	one, two := y.follow(opSubscribe, object{"id": id}), y.follow(opSubscribe, object{"id": id})
	for _, s := range []*stream{one, two} {
		_, err := s.next()
		y.check(err)
	}
	_, r := y.open(opSubscribe, object{"id": id})
	y.refused(r, busy())
	if r != nil {
		y.want(r.header.Get("Retry-After") != "", "there is no Retry-After: %v", r.header)
	}
	one.close()
	ctx := y.deadline()
	for ctx.Err() == nil {
		s, _ := y.open(opSubscribe, object{"id": id})
		if s != nil {
			return // there was room again
		}
	}
	y.Errorf("a closed stream makes no room")
}

func tasksAreBounded(x *trial) {
	y := x.on(x.narrow)
	for range 3 {
		y.running()
	}
	before := y.total()
	r := y.call(opSend, y.message("one too many", nil))
	y.refused(r, busy())
	y.want(r.header.Get("Retry-After") != "", "there is no Retry-After: %v", r.header)
	y.want(y.total() == before, "the task was made")
}

func waitIsBounded(x *trial) {
	y := x.on(x.narrow)
	k := y.ok(opSend, y.command("echo working; sleep 300", nil)).task()
	y.Cleanup(func() { y.end(text(k, "id")) })
	s := text(k, "status", "state")
	y.want(s == "TASK_STATE_WORKING" || s == "TASK_STATE_SUBMITTED", "the task is %s", s)
}

func outputIsBounded(x *trial) {
	y := x.on(x.narrow)
	k := y.run(`while :; do echo "too much too much too much too much"; done`, nil)
	y.want(text(k, "status", "state") == "TASK_STATE_FAILED" && text(outcomeOf(k), "reason") == "output_limit", "the task is %v, %v",
		dig(k, "status"), outcomeOf(k))
	n := len(output(k, "stdout"))
	y.want(n > 0 && n <= 65536, "%d bytes are kept", n)
	f := y.fetch(http.MethodGet, y.agent+"/tasks/"+text(k, "id")+"/artifacts/stdout", nil)
	y.want(f.status == 200 && len(f.raw) == n, "the artifact is %d with %d bytes, inline are %d", f.status, len(f.raw), n)
}
