package conformance

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
)

func adapterCases() []kase {
	return []kase{
		every("ADAPTER-ABSENT-001", absentEnvelopeIsEcho),
		every("ADAPTER-ENVELOPE-001", brokenEnvelopeNamesTheRule),
		both("ADAPTER-ENVELOPE-002", unsafeIsNeverEcho),
		both("ADAPTER-MODE-001", modeIsExposed, needCommand),
		both("ADAPTER-COMMAND-001", oneCommandShape),
		both("ADAPTER-PATH-001", pathStaysInside),
		both("ADAPTER-TIMEOUT-001", timeoutIsBounded),
		once("ADAPTER-TIMEOUT-002", timeoutEndsAll, needCommand),
		every("ADAPTER-EXIT-001", exitZeroCompletes, needCommand),
		both("ADAPTER-EXIT-002", otherExitFails, needCommand),
		both("ADAPTER-EXIT-003", dispatchFails, needCommand),
		both("ADAPTER-OUTPUT-001", outputIsWhole, needCommand),
		both("ADAPTER-OUTPUT-002", outputIsStreamed, needCommand),
		both("ADAPTER-OUTPUT-003", textIsText, needCommand),
		both("ADAPTER-CANCEL-001", cancelEndsAll, needCommand),
		once("ADAPTER-EXAMPLE-001", exampleOfTheSpecification),
	}
}

func absentEnvelopeIsEcho(x *trial) {
	const what = "ümlaut, $(not a shell); 'quoted'"
	k := x.ok(opSend, x.message(what, nil)).task()
	x.want(partText(dig(k, "artifacts", 0)) == what, "the echo is %.300v", k)
}

// total counts the tasks there are.
func (x *trial) total() any {
	x.Helper()
	return x.in(rest10()).ok(opList, object{"pageSize": 1}).get("totalSize")
}

const envelopeAt = `message.metadata["` + extAdapter + `"]`

// broken sends commands whose envelopes break one rule each, and wants it to be
// named and no task to be made.
func (x *trial) broken(field string, changes ...object) {
	x.Helper()
	before := x.total()
	for _, change := range changes {
		for _, op := range []string{opSend, opStream} {
			s, r := x.open(op, x.command("echo must not run", change))
			if s != nil {
				h := x.all(s)
				x.Errorf("%s with %v makes a task: %v", op, change, h.states())
				continue
			}
			x.refused(r, invalid())
			at := envelopeAt
			if field != "" {
				at += "." + field
			}
			x.names(r, at)
		}
	}
	x.want(x.total() == before, "there are %v tasks, before %v", x.total(), before)
}

func brokenEnvelopeNamesTheRule(x *trial) {
	x.broken("adapter", object{"adapter": "other"}, object{"adapter": nil}, object{"adapter": 7})
	x.broken("command", object{"command": nil})
	x.broken("timeout_seconds", object{"timeout_seconds": "300"})
	x.broken("working_dir", object{"working_dir": "/etc"}, object{"working_dir": "relative"}, object{"working_dir": 7})
	x.broken(`"shell"`, object{"shell": true})
}

func unsafeIsNeverEcho(x *trial) {
	before := x.total()
	for _, metadata := range []object{
		{extAdapter: nil}, {extAdapter: "x"}, {extAdapter: []any{}}, {extAdapter: true}, {extAdapter: object{}},
		{strings.Replace(extAdapter, "v1", "v2", 1): envelope(nil)},
		{strings.ToUpper(extAdapter): envelope(nil)},
		{"adapter-command/v1": envelope(nil)},
		{extAdapter + "/": envelope(nil)},
	} {
		r := x.call(opSend, x.message("echo", func(m object) { m["metadata"] = metadata }))
		x.want(r.fault != nil, "%v is carried out: %.300s", metadata, r.raw)
	}
	beside := x.message("echo", nil)
	beside["metadata"] = object{extAdapter: envelope(nil)}
	r := x.call(opSend, beside)
	x.want(r.fault != nil, "an envelope beside the message is carried out: %.300s", r.raw)
	x.want(x.total() == before, "there are %v tasks, before %v", x.total(), before)
}

func modeIsExposed(x *trial) {
	for _, mode := range []string{"plan", "assess"} {
		k := x.run(`printf %s "$AIWG_A2A_ADAPTER_MODE"`, object{"mode": mode})
		x.want(output(k, "stdout") == mode, "mode %s is seen as %q", mode, output(k, "stdout"))
	}
	x.broken("mode", object{"mode": "run"}, object{"mode": ""}, object{"mode": "Plan"}, object{"mode": nil}, object{"mode": 1})
}

const (
	runnerPath  = ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs"
	requestPath = ".aiwg/ops/runs/conformance.sh"
)

func argv(words ...any) object { return object{"command": words} }

func oneCommandShape(x *trial) {
	x.broken("command",
		object{"command": []any{}}, object{"command": "node"}, argv("node"), argv("node", runnerPath, "--request"),
		argv("node", runnerPath, "--request", requestPath, "more"))
	x.broken("command[0]", argv("sh", runnerPath, "--request", requestPath), argv("/usr/bin/node", runnerPath, "--request", requestPath),
		argv("node ", runnerPath, "--request", requestPath))
	x.broken("command[1]", argv("node", "other.mjs", "--request", requestPath), argv("node", "./"+runnerPath, "--request", requestPath))
	x.broken("command[2]", argv("node", runnerPath, "--eval", requestPath), argv("node", runnerPath, "-request", requestPath))
}

func pathStaysInside(x *trial) {
	const in = ".aiwg/ops/runs/"
	var all []object
	for _, path := range []string{
		"", "/etc/passwd", "request.json", ".aiwg/ops/other/x", in, in + ".", in + "..", in + "../../../etc/passwd", in + "a/../../x",
		in + "//x", in + "a//b", in + "./x", in + "x/", in + `..\..\x`, in + `a\b`, in + "a\x00b", in + "a\nb", in + "%2e%2e/x", in + "..%2fx",
		in + "％2e", in + "․․/x", "." + in, "./" + in + "x", strings.Repeat("a", 5000), in + "\u202e", ".aiwg/ops/runsx/y",
		".aiwg/ops/adapters/sandbox-agent-runner/../x",
	} {
		all = append(all, argv("node", runnerPath, "--request", path))
	}
	x.broken("command[3]", all...)
}

func timeoutIsBounded(x *trial) {
	x.broken("timeout_seconds",
		object{"timeout_seconds": 0}, object{"timeout_seconds": -1}, object{"timeout_seconds": 901}, object{"timeout_seconds": 1.5},
		object{"timeout_seconds": true}, object{"timeout_seconds": 1e9})
	for _, fits := range []int{1, 900} {
		r := x.call(opSend, now(x.command("true", object{"timeout_seconds": fits})))
		x.want(r.fault == nil, "%d seconds are refused: %.300s", fits, r.raw)
	}
}

// outcomeOf is how a command ended, as its task says.
func outcomeOf(task any) any { return dig(task, "metadata", extAdapter) }

var pidForm = regexp.MustCompile(`(?m)^pid (\d+)$`)

// forking starts a process of its own and stays.
const forking = `sleep 300 & echo "pid $!"; sleep 300`

// gone wants the process that forking started to have ended.
func (x *trial) gone(task any) {
	x.Helper()
	m := pidForm.FindStringSubmatch(output(task, "stdout"))
	if m == nil {
		x.Fatalf("the output has no pid: %q", output(task, "stdout"))
	}
	probe := fmt.Sprintf(`i=0; while [ -e /proc/%s ] && [ $i -lt 50 ]; do i=$((i+1)); sleep 0.1; done; [ -e /proc/%s ] && echo alive || echo gone`, m[1], m[1])
	k := x.run(probe, nil)
	x.want(output(k, "stdout") == "gone\n", "a process of the command is %q", output(k, "stdout"))
}

func timeoutEndsAll(x *trial) {
	k := x.run(forking, object{"timeout_seconds": x.seconds(2)})
	x.want(text(k, "status", "state") == "TASK_STATE_FAILED" && text(outcomeOf(k), "fail_kind") == "application" &&
		text(outcomeOf(k), "reason") == "timeout", "the task is %v, %v", dig(k, "status"), outcomeOf(k))
	x.gone(k)
}

func exitZeroCompletes(x *trial) {
	k := x.run("exit 0", nil)
	x.want(text(k, "status", "state") == "TASK_STATE_COMPLETED" && dig(outcomeOf(k), "exit_code") == 0.0 &&
		dig(outcomeOf(k), "fail_kind") == nil, "the task is %v, %v", dig(k, "status"), outcomeOf(k))
}

func otherExitFails(x *trial) {
	codes := []int{3, 1, 255}
	if x.once {
		codes = codes[:1]
	}
	for _, code := range codes {
		k := x.run("exit "+itoa(code), nil)
		x.want(text(k, "status", "state") == "TASK_STATE_FAILED" && text(outcomeOf(k), "fail_kind") == "application" &&
			dig(outcomeOf(k), "exit_code") == float64(code) && strings.Contains(partText(dig(k, "status", "message")), itoa(code)),
			"exit %d: the task is %v, %v", code, dig(k, "status"), outcomeOf(k))
	}
}

func dispatchFails(x *trial) {
	absent := strings.TrimSuffix(x.workspace(), "/") + "/there-is-no-such-directory"
	k := x.run("true", object{"working_dir": absent})
	x.want(text(k, "status", "state") == "TASK_STATE_FAILED" && text(outcomeOf(k), "fail_kind") == "infrastructure",
		"the task is %v, %v", dig(k, "status"), outcomeOf(k))
}

// workspace is where the machine's commands work.
func (x *trial) workspace() string {
	x.Helper()
	return strings.TrimSuffix(output(x.run("pwd", nil), "stdout"), "\n")
}

func outputIsWhole(x *trial) {
	k := x.run(`printf 'out\n'; printf 'err\n' >&2; printf 'no end'`, nil)
	x.want(output(k, "stdout") == "out\nno end" && output(k, "stderr") == "err\n",
		"stdout is %q, stderr %q", output(k, "stdout"), output(k, "stderr"))
	const lines = 50000
	k = x.run(fmt.Sprintf("seq %d", lines), nil)
	got := strings.Split(output(k, "stdout"), "\n")
	x.want(len(got) == lines+1 && got[lines-1] == itoa(lines), "there are %d lines", len(got))
	x.want(dig(outcomeOf(k), "stdout_bytes") == float64(len(output(k, "stdout"))), "the task says %v, there are %d bytes",
		outcomeOf(k), len(output(k, "stdout")))
}

func outputIsStreamed(x *trial) {
	// It ends only when it is canceled, so what is read was sent before.
	s := x.follow(opStream, x.command(`echo first; echo other >&2; sleep 300`, nil))
	var h heard
	h = x.read(s, func(e event) bool {
		h.events = append(h.events, e)
		return h.output("stdout") == "first\n" && h.output("stderr") == "other\n"
	})
	id := text(h.events[0].body, "id")
	x.Cleanup(func() { x.end(id) })
	x.want(!h.closed, "the stream ended before the output came: %v", h.states())
}

func textIsText(x *trial) {
	// A character of four bytes, cut by pauses, and bytes that are none.
	s := x.follow(opStream, x.command(`printf '\360\237'; sleep 0.3; printf '\230\200'; printf 'x\377\376y' >&2`, nil))
	h := x.all(s)
	id := text(h.events[0].body, "id")
	k := x.settled(id)
	x.want(output(k, "stdout") == "😀" && h.output("stdout") == "😀", "the character is %q, streamed %q", output(k, "stdout"), h.output("stdout"))
	var raw []byte
	for _, a := range list(k, "artifacts") {
		for _, p := range list(a, "parts") {
			if text(a, "name") != "stderr" {
				continue
			}
			if enc, is := dig(p, "raw").(string); is {
				b, err := base64.StdEncoding.DecodeString(enc)
				x.check(err)
				raw = append(raw, b...)
			}
			raw = append(raw, text(p, "text")...)
		}
	}
	x.want(string(raw) == "x\377\376y", "the bytes are %q", raw)
}

func cancelEndsAll(x *trial) {
	id := text(x.start(x.in(rest10()).command(forking, nil)), "id")
	x.until(id, func(t any) bool { return pidForm.MatchString(output(t, "stdout")) })
	k := x.ok(opCancel, object{"id": id}).task()
	x.want(text(k, "status", "state") == "TASK_STATE_CANCELED", "the task is %v", dig(k, "status"))
	x.gone(x.settled(id))
}

func exampleOfTheSpecification(x *trial) {
	body := `{"message":{"role":"user","parts":[{"kind":"text","text":"echo plain"}],"metadata":{"` + extAdapter + `":{` +
		`"adapter":"sandbox-agent-runner","mode":"plan","command":["node","` + runnerPath + `","--request","` + requestPath + `"],` +
		`"timeout_seconds":300}}}}`
	y := x.in(rest03())
	r := y.raw("POST", "/messages:send", []byte(body), headers("A2A-Version", ""))
	x.want(r.status == 200 && text(r.body, "task", "id") != "", "the answer is %d %.300s", r.status, r.raw)
}
