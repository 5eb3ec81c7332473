package conformance

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func promptCases() []kase {
	return []kase{
		both("ADAPTER-INPUT-001", outputIsNoQuestion, needCommand),
		both("ADAPTER-INPUT-002", inputModeNeedsActivation),
		every("ADAPTER-INPUT-003", promptIsRaised, needCommand),
		both("ADAPTER-INPUT-004", answerReachesCommand, needCommand),
		both("ADAPTER-INPUT-005", badTextIsRefused, needCommand),
		both("ADAPTER-INPUT-006", replyMustMatch, needCommand),
		both("ADAPTER-INPUT-007", promptIsClaimedOnce, needCommand),
		both("ADAPTER-INPUT-008", laterPromptIsAnother, needCommand),
		once("ADAPTER-INPUT-009", timeoutGoesOnWaiting, needCommand),
		rough(once("ADAPTER-INPUT-010", promptFromBeforeIsRefused, needCommand, needKill)),
		both("HITL-CF-1", promptIsUnknown, needCommand),
		both("HITL-CF-2", replyMovesOnOnce, needCommand),
		both("HITL-CF-3", invalidThenValid, needCommand),
		both("HITL-CF-5", envelopeIsClosed, needCommand),
		both("HITL-CF-6", promptIsThereAgain, needCommand),
		every("HITL-CF-7", roundTrip, needCommand),
	}
}

// withPrompts activates hitl-prompt/v1.
func withPrompts() http.Header { return headers("A2A-Extensions", extRuntime+", "+extPrompt) }

const asking = `printf 'Continue? [y/N] '; IFS= read -r a; echo "got <$a>"`

func textLine() object { return object{"input_mode": "text-line"} }

// ask runs a command until it asks, and returns its task.
func (x *trial) ask(script string, change object) any {
	x.Helper()
	y := x.in(rest10())
	if change == nil {
		change = textLine()
	}
	k := x.settled(text(x.start(y.command(script, change), withPrompts()), "id"))
	if text(k, "status", "state") != "TASK_STATE_INPUT_REQUIRED" {
		x.Fatalf("the task does not ask: %.500v", k)
	}
	return k
}

// question is the envelope of the prompt a task waits with.
func question(task any) any { return dig(task, "status", "message", "metadata", extPrompt) }

// reply is a message that answers a prompt.
func (x *trial) reply(task any, promptID string, payload any) object {
	return x.message("an answer", func(m object) {
		m["taskId"] = text(task, "id")
		m["metadata"] = object{"hitl_response_for": object{"prompt_id": promptID, "payload": payload}}
	})
}

func line1(s string) object { return object{"text": s} }

func outputIsNoQuestion(x *trial) {
	k := x.run(`printf 'Continue? [y/N] '; sleep 1.5`, nil, withPrompts())
	x.want(text(k, "status", "state") == "TASK_STATE_COMPLETED", "the task is %v", dig(k, "status"))
}

func inputModeNeedsActivation(x *trial) {
	x.broken("input_mode", textLine(), object{"input_mode": "other"}, object{"input_mode": 1})
}

var promptIDForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func promptIsRaised(x *trial) {
	h := x.all(x.follow(opStream, x.command(asking, textLine()), withPrompts()))
	id := text(h.events[0].body, "id")
	x.Cleanup(func() { x.end(id) })
	state := map[form]string{rpc03(): "input-required"}[x.form]
	if state == "" {
		state = "TASK_STATE_INPUT_REQUIRED"
	}
	last := h.last()
	q := question(last.body)
	x.want(last.state() == state && h.closed, "the stream ends with %s", last.state())
	x.want(promptIDForm.MatchString(text(q, "prompt_id")) && strings.Contains(text(q, "prompt"), "Continue? [y/N]") &&
		dig(q, "response_schema", "type") == "object" && text(q, "deadline") != "", "the envelope is %v", q)
}

func answerReachesCommand(x *trial) {
	k := x.ask(`printf 'Continue? [y/N] '; od -An -c -N5`, nil)
	r := x.ok(opSend, x.reply(k, text(question(k), "prompt_id"), line1("ab c")), withPrompts())
	done := x.settled(text(r.task(), "id"))
	seen := strings.Join(strings.Fields(strings.ReplaceAll(output(done, "stdout"), "Continue? [y/N]", "")), " ")
	x.want(text(done, "status", "state") == "TASK_STATE_COMPLETED" && seen == `a b c \n`, "the command saw %q", seen)
}

func badTextIsRefused(x *trial) {
	k := x.ask(asking, nil)
	id := text(question(k), "prompt_id")
	for _, payload := range []any{
		line1(strings.Repeat("x", 4097)), line1(strings.Repeat("ü", 2049)), line1("a\nb"), line1("\x1b[2J"), line1("\x00"), line1("\u0085"),
		object{}, object{"text": 1}, object{"text": "y", "more": 1}, "y", []any{"y"}, 7,
	} {
		r := x.call(opSend, x.reply(k, id, payload), withPrompts())
		x.refused(r, badResponse())
		errs := false
		if r.fault != nil {
			for _, d := range r.fault.details {
				errs = errs || len(list(d, "validation_errors")) > 0
			}
		}
		x.want(errs, "%.60v: there are no validation_errors: %.300s", payload, r.raw)
	}
	again := x.until(text(k, "id"), func(any) bool { return true })
	x.want(text(question(again), "prompt_id") == id, "the task does not wait any more: %v", dig(again, "status"))
	most := strings.Repeat("x", 4096)
	x.ok(opSend, x.reply(k, id, line1(most)), withPrompts())
	done := x.settled(text(k, "id"))
	x.want(strings.Contains(output(done, "stdout"), "got <"+most+">"), "4096 bytes did not arrive: %.100v", dig(done, "status"))
}

func replyMustMatch(x *trial) {
	k, other := x.ask(asking, nil), x.ask(asking, nil)
	id := text(question(k), "prompt_id")
	x.refused(x.call(opSend, x.reply(other, id, line1("y")), withPrompts()), noLongerAsked())
	wrong := x.reply(k, id, line1("y"))
	wrong["message"].(object)["contextId"] = text(other, "contextId")
	r := x.call(opSend, wrong, withPrompts())
	x.refused(r, invalid())
	x.names(r, "message.contextId")
	unknown := x.reply(object{"id": "no-such-task"}, id, line1("y"))
	x.refused(x.call(opSend, unknown, withPrompts()), taskNotFound())
	plain := x.message("y", func(m object) { m["taskId"] = text(k, "id") })
	x.refused(x.call(opSend, plain, withPrompts()), invalid())
	x.ok(opSend, x.reply(k, id, line1("y")), withPrompts())
	done := x.settled(text(k, "id"))
	x.want(strings.Contains(output(done, "stdout"), "got <y>"), "stdout is %q", output(done, "stdout"))
}

func promptIsClaimedOnce(x *trial) {
	k := x.ask(asking, nil)
	id := text(question(k), "prompt_id")
	const times = 6
	replies := make(chan *reply, times)
	for range times {
		go func() { replies <- x.quiet(opSend, x.reply(k, id, line1("y")), withPrompts()) }()
	}
	taken := 0
	for range times {
		switch r := <-replies; {
		case r == nil:
			x.Errorf("a reply was not answered")
		case r.fault == nil:
			taken++
		default:
			x.refused(r, noLongerAsked())
		}
	}
	x.want(taken == 1, "%d replies were taken", taken)
	done := x.settled(text(k, "id"))
	x.want(strings.Count(output(done, "stdout"), "got <y>") == 1, "stdout is %q", output(done, "stdout"))
	x.refused(x.call(opSend, x.message("y", func(m object) { m["taskId"] = text(k, "id") })), unsupported())
}

func laterPromptIsAnother(x *trial) {
	k := x.ask(asking+"; "+asking, nil)
	first := text(question(k), "prompt_id")
	x.ok(opSend, x.reply(k, first, line1("one")), withPrompts())
	var second string
	x.until(text(k, "id"), func(t any) bool {
		second = text(question(t), "prompt_id")
		return second != "" && second != first || ended(text(t, "status", "state"))
	})
	x.want(second != "" && second != first, "the second prompt is %q, the first %q", second, first)
	x.refused(x.call(opSend, x.reply(k, first, line1("late")), withPrompts()), noLongerAsked())
	x.ok(opSend, x.reply(k, second, line1("two")), withPrompts())
	done := x.settled(text(k, "id"))
	x.want(strings.Contains(output(done, "stdout"), "got <one>") && strings.Contains(output(done, "stdout"), "got <two>") &&
		!strings.Contains(output(done, "stdout"), "late"), "stdout is %q", output(done, "stdout"))
}

func timeoutGoesOnWaiting(x *trial) {
	k := x.ask(asking, object{"input_mode": "text-line", "timeout_seconds": x.seconds(3)})
	done := x.until(text(k, "id"), func(t any) bool { return ended(text(t, "status", "state")) })
	x.want(text(outcomeOf(done), "reason") == "timeout", "the task is %v, %v", dig(done, "status"), outcomeOf(done))
	r := x.call(opSend, x.reply(k, text(question(k), "prompt_id"), line1("y")), withPrompts())
	x.want(r.fault != nil, "a reply after the timeout is taken: %.300s", r.raw)
}

func promptFromBeforeIsRefused(x *trial) {
	k := x.ask(asking, nil)
	before := text(question(k), "prompt_id")
	x.restart()
	x.refused(x.call(opSend, x.reply(k, before, line1("y")), withPrompts()), noLongerAsked())
}

func promptIsUnknown(x *trial) {
	k := x.ask(asking, nil)
	x.refused(x.call(opSend, x.reply(k, "6ba7b810-9dad-41d1-80b4-00c04fd430c8", line1("y")), withPrompts()), noLongerAsked())
	again := x.until(text(k, "id"), func(any) bool { return true })
	x.want(text(question(again), "prompt_id") == text(question(k), "prompt_id"), "the prompt is %v, was %v", question(again), question(k))
}

func replyMovesOnOnce(x *trial) {
	k := x.ask(asking+"; sleep 300", nil)
	id := text(question(k), "prompt_id")
	r := x.ok(opSend, now(x.reply(k, id, line1("y"))), withPrompts())
	x.want(text(r.task(), "status", "state") == "TASK_STATE_WORKING", "the task is %v", dig(r.task(), "status"))
	x.refused(x.call(opSend, x.reply(k, id, line1("y")), withPrompts()), noLongerAsked())
}

func invalidThenValid(x *trial) {
	k := x.ask(asking, nil)
	id := text(question(k), "prompt_id")
	x.refused(x.call(opSend, x.reply(k, id, object{"answer": "y"}), withPrompts()), badResponse())
	x.ok(opSend, x.reply(k, id, line1("y")), withPrompts())
	x.want(text(x.settled(text(k, "id")), "status", "state") == "TASK_STATE_COMPLETED", "the task does not complete")
}

func envelopeIsClosed(x *trial) {
	q, _ := question(x.ask(asking, nil)).(object)
	for name := range q {
		x.want(slices.Contains([]string{"prompt_id", "prompt", "response_schema", "deadline", "allowed_responders"}, name), "there is a member %s", name)
	}
	x.want(timeForm.MatchString(text(q, "deadline")), "the deadline is %v", q["deadline"])
}

func promptIsThereAgain(x *trial) {
	k := x.ask(asking, nil)
	s := x.follow(opSubscribe, object{"id": text(k, "id")}, withPrompts())
	first, err := s.next()
	x.check(err)
	s.close()
	second, err := x.follow(opSubscribe, object{"id": text(k, "id")}, withPrompts()).next()
	x.check(err)
	for _, e := range []event{first, second} {
		q := question(e.body)
		x.want(text(q, "prompt_id") == text(question(k), "prompt_id") && dig(q, "response_schema", "type") == "object", "the prompt is %v", q)
	}
}

func roundTrip(x *trial) {
	h := x.all(x.follow(opStream, x.command(asking, textLine()), withPrompts()))
	id := text(h.events[0].body, "id")
	x.Cleanup(func() { x.end(id) })
	params := x.reply(object{"id": id}, text(question(h.last().body), "prompt_id"), line1("yes"))
	x.ok(opSend, params, withPrompts())
	done := x.settled(id)
	x.want(text(done, "status", "state") == "TASK_STATE_COMPLETED" && strings.Contains(output(done, "stdout"), "got <yes>"),
		"the task is %v, its output %q", dig(done, "status"), output(done, "stdout"))
}
