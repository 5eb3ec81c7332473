package conformance

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// serial makes names of this run unique.
var serial atomic.Int64

func unique(prefix string) string {
	return fmt.Sprintf("%s-%x-%d", prefix, time.Now().UnixNano(), serial.Add(1))
}

// message is a message of text in the trial's form. change may be nil.
func (x *trial) message(content string, change func(object)) object {
	m := object{"messageId": unique("m"), "role": "ROLE_USER", "parts": []any{object{"text": content}}}
	switch x.form {
	case rpc03():
		m["kind"], m["role"] = "message", "user"
		m["parts"] = []any{object{"kind": "text", "text": content}}
	case rest03():
		delete(m, "parts")
		m["content"] = []any{object{"text": content}}
	}
	if change != nil {
		change(m)
	}
	params := object{"message": m}
	if x.form.version == "0.3" {
		params["configuration"] = object{"blocking": true}
	}
	return params
}

// envelope is that of adapter-command/v1 for the suite's script.
func envelope(change object) object {
	e := object{
		"adapter": "sandbox-agent-runner", "mode": "plan",
		"command": []any{
			"node", ".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs", "--request", ".aiwg/ops/runs/conformance.sh",
		},
	}
	for name, v := range change {
		if e[name] = v; v == nil {
			delete(e, name)
		}
	}
	return e
}

// command is a message whose text the machine's shell carries out.
func (x *trial) command(script string, change object) object {
	return x.message(script, func(m object) { m["metadata"] = object{extAdapter: envelope(change)} })
}

func now(params object) object {
	params["configuration"] = object{"returnImmediately": true}
	return params
}

// start sends without waiting and returns the task.
func (x *trial) start(params object, more ...http.Header) any {
	x.Helper()
	y := x.in(rest10())
	t := y.ok(opSend, now(params), more...).task()
	x.Cleanup(func() { x.end(text(t, "id")) })
	return t
}

// run sends a command, waits for it and returns its task. It speaks 1.0.
func (x *trial) run(script string, change object, more ...http.Header) any {
	x.Helper()
	f := x.form
	f.version = "1.0"
	y := x.in(f)
	r := y.ok(opSend, y.command(script, change), more...)
	return x.settled(text(r.task(), "id"))
}

// settled waits until a task has ended or waits for somebody.
func (x *trial) settled(id string) any {
	x.Helper()
	return x.until(id, func(t any) bool { s := text(t, "status", "state"); return ended(s) || waits(s) })
}

// until follows a task until what holds of it.
func (x *trial) until(id string, what func(task any) bool) any {
	x.Helper()
	y := x.in(rest10())
	ctx := y.deadline()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		t := y.ok(opGet, object{"id": id}).result
		if what(t) {
			return t
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			x.Fatalf("the task is still %s: %.600v", text(t, "status", "state"), t)
		}
	}
}

// end cancels a task that a case has left, whatever became of it.
func (x *trial) end(id string) {
	e := exchange{form: rest10(), agent: x.agent, token: x.token, op: opCancel, params: object{"id": id}}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.Context()), patience)
	defer cancel()
	req, err := e.request(ctx)
	if err != nil {
		return
	}
	if resp, err := x.client.Do(req); err == nil {
		resp.Body.Close()
	}
}

// seconds is a time in which a machine of the target does what one of the host
// driver does in n seconds.
func (x *trial) seconds(n int) int {
	if x.name == "host" {
		return n
	}
	return 10 * n
}

func ended(state string) bool {
	return slices.Contains([]string{"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"}, state)
}

func waits(state string) bool {
	return state == "TASK_STATE_INPUT_REQUIRED" || state == "TASK_STATE_AUTH_REQUIRED"
}
