package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// askTwice asks without the end of a line. Were an answer to come twice, the
// second question would be answered by it, and never be seen.
const askTwice = `
printf 'Continue? [y/N] '
read -r a
echo "answer $a"
echo "$a" >>answers
printf 'Really? [y/N] '
read -r b
echo "answer $b"
echo "$b" >>answers
`

const askTwiceNode = `
import { createInterface } from 'node:readline';
import { appendFileSync } from 'node:fs';
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
for (const q of ['Continue? [y/N] ', 'Really? [y/N] ']) {
  process.stdout.write(q);
  const { value } = await lines.next();
  console.log('answer ' + value);
  appendFileSync('answers', value + '\n');
}
process.exit(0);
`

// What both print when they are answered y and n.
const askedTwice = "Continue? [y/N] answer y\nReally? [y/N] answer n\n"

// ask starts the adapter and returns what it asks first.
func (c *a2aClient) ask(messageID string) (taskID, promptID string) {
	c.t.Helper()
	r := c.send(adapterMessage(messageID, asksLines, ""), header(extAdapter, extPrompt))
	taskID = text(r.json, "task", "id")
	// A machine that is slow to run it is answered for before it asks.
	k := c.until(taskID, func(k any) bool { p, _ := prompted(k); return p != "" })
	promptID, asked := prompted(k)
	if asked != "Continue? [y/N]" {
		c.t.Fatalf("it asks %q", asked)
	}
	return taskID, promptID
}

// refused wants a reply to have been refused, and the prompt to wait on.
func (c *a2aClient) refused(what string, r reply, taskID string) {
	c.t.Helper()
	if r.status != http.StatusConflict || text(r.json, "error", "details", 0, "reason") != "HITL_ALREADY_ANSWERED_OR_UNKNOWN" {
		c.t.Errorf("%s: %d %s", what, r.status, r.body)
	}
	if p, _ := prompted(c.task(taskID)); p == "" {
		c.t.Errorf("%s: the task does not wait any more", what)
	}
}

// onceOnly sends one reply many times at once: one is taken.
func (c *a2aClient) onceOnly(taskID, promptID, line string) {
	c.t.Helper()
	const times = 8
	replies := make([]reply, times)
	errs := make([]error, times)
	ctx := deadline(c.t)
	var wg sync.WaitGroup
	for i := range times {
		wg.Go(func() {
			body := answerTo(taskID, promptID, fmt.Sprint("reply-", i), line, immediately)
			replies[i], errs[i] = c.try(ctx, http.MethodPost, "/message:send", body, header(extPrompt))
		})
	}
	wg.Wait()
	taken := 0
	for i, r := range replies {
		check(c.t, errs[i])
		switch r.status {
		case http.StatusOK:
			taken++
		case http.StatusConflict:
		default:
			c.t.Errorf("a reply is answered %d %s", r.status, r.body)
		}
	}
	if taken != 1 {
		c.t.Errorf("%d replies were taken, want 1", taken)
	}
}

// finish answers the second question and checks the whole dialogue: asked and
// answered are the prompt that was answered first and its answer's text.
func (c *a2aClient) finish(taskID, firstPrompt string) {
	c.t.Helper()
	k := c.until(taskID, func(k any) bool { _, q := prompted(k); return q == "Really? [y/N]" })
	second, _ := prompted(k)
	if second == firstPrompt {
		c.t.Error("a later prompt has the id of an earlier one")
	}
	c.send(answerTo(taskID, second, "last", "n", ""), header(extPrompt))
	k = c.ended(taskID)
	if s := text(k, "status", "state"); s != "TASK_STATE_COMPLETED" {
		c.t.Errorf("the task is %s", s)
	}
	if got := output(k, "stdout"); got != askedTwice {
		c.t.Errorf("output is %q, want %q", got, askedTwice)
	}
	history, _ := at(k, "history").([]any)
	var turns []string
	for i, m := range history {
		who := text(m, "role")
		if id := text(m, "metadata", extPrompt, "prompt_id"); id != "" {
			turns = append(turns, who+" "+text(m, "metadata", extPrompt, "prompt"))
			if next := text(history, i+1, "metadata", "hitl_response_for", "prompt_id"); next != id {
				c.t.Errorf("the prompt %s is followed by the answer to %q", id, next)
			}
			continue
		}
		turns = append(turns, who+" "+text(m, "metadata", "hitl_response_for", "payload", "text"))
	}
	want := []string{"ROLE_USER ", "ROLE_AGENT Continue? [y/N]", "ROLE_USER y", "ROLE_AGENT Really? [y/N]", "ROLE_USER n"}
	if strings.Join(turns, "; ") != strings.Join(want, "; ") {
		c.t.Errorf("the history is %q, want %q", turns, want)
	}
}

// TestCrashOnPrompt kills the daemon while a command waits for an answer. The
// next daemon shows the same question at once. As long as it has no binding to
// the run, a reply is refused and not swallowed; then the question is asked
// anew and its answer is delivered once.
func TestCrashOnPrompt(t *testing.T) {
	h := host(t, askTwice)
	c := h.agent
	taskID, before := c.ask("m1")

	check(t, h.Kill())
	// A machine that does not move keeps the next daemon from the run.
	agents := h.processes(t)
	if len(agents) == 0 {
		t.Fatal("the machine died with the daemon")
	}
	for _, pid := range agents {
		check(t, syscall.Kill(pid, syscall.SIGSTOP))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it may have ended
	}
	check(t, h.Launch(deadline(t)))
	_, err := h.Must(deadline(t), "wait", "hosted", "--for", "paused")
	check(t, err)
	if id, asked := prompted(c.task(taskID)); id != before || asked != "Continue? [y/N]" {
		t.Errorf("after the restart it asks %q under %s, want the same under %s", asked, id, before)
	}
	c.refused("a reply without a binding", c.send(answerTo(taskID, before, "early", "n", ""), header(extPrompt)), taskID)
	_, err = h.Must(deadline(t), "resume", "hosted")
	check(t, err)

	k := c.until(taskID, func(k any) bool { id, _ := prompted(k); return id != "" && id != before })
	now, asked := prompted(k)
	if asked != "Continue? [y/N]" {
		t.Errorf("it asks %q after the restart", asked)
	}
	c.refused("a reply to the old binding", c.send(answerTo(taskID, before, "old", "n", ""), header(extPrompt)), taskID)
	if got := h.read(t, "answers"); got != "" {
		t.Errorf("the command got %q", got)
	}
	c.onceOnly(taskID, now, "y")
	c.finish(taskID, now)
	if got := h.read(t, "answers"); got != "y\nn\n" {
		t.Errorf("the command got %q", got)
	}
	if n := c.tasks(); n != 1 {
		t.Errorf("there are %d tasks, want one", n)
	}
}

// TestPromptsOnMachine has a command in a virtual machine ask: answered over
// A2A 1.0, over both bindings of 0.3, and across the daemon's death.
func TestPromptsOnMachine(t *testing.T) {
	h := own(t, rig.Options{})
	_, err := h.Must(deadline(t), "up", "agentic-dev", "--name", "asks", "--workspace", workspace(t, askTwiceNode))
	check(t, err)
	c := a2aOf(t, h, "asks")

	t.Run("1.0", func(t *testing.T) {
		c := a2aOf(t, h, "asks")
		taskID, first := c.ask("m1")
		c.onceOnly(taskID, first, "y")
		c.finish(taskID, first)
	})
	t.Run("0.3 JSON-RPC", func(t *testing.T) { promptRPC03(t, a2aOf(t, h, "asks")) })
	t.Run("0.3 HTTP+JSON", func(t *testing.T) { promptREST03(t, a2aOf(t, h, "asks")) })

	taskID, before := c.ask("m1")
	check(t, h.Kill())
	check(t, h.Launch(deadline(t)))
	// The machine may be bound again already, and then asks anew.
	if id, asked := prompted(c.task(taskID)); id == "" || asked != "Continue? [y/N]" {
		t.Errorf("after the restart it asks %q under %q", asked, id)
	}
	c.refused("a reply to the old binding", c.send(answerTo(taskID, before, "old", "n", ""), header(extPrompt)), taskID)
	k := c.until(taskID, func(k any) bool { id, _ := prompted(k); return id != "" && id != before })
	now, _ := prompted(k)
	c.onceOnly(taskID, now, "y")
	c.finish(taskID, now)
}

// promptRPC03 is a dialogue as a JSON-RPC client of 0.3 has it.
func promptRPC03(t *testing.T, c *a2aClient) {
	call := func(params string) any {
		r := c.do(http.MethodPost, "", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":`+params+`}`,
			header03(extAdapter, extPrompt))
		if text(r.json, "result", "kind") != "task" {
			t.Fatalf("%d %s", r.status, r.body)
		}
		return r.at("result")
	}
	get := func(id string) any {
		return c.do(http.MethodPost, "", `{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"`+id+`"}}`, header03(extPrompt)).at("result")
	}
	message := func(more string) string {
		return `{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"x"}],` + more + `}}`
	}
	k := call(message(`"metadata":{"` + extAdapter + `":` + adapterEnvelope(asksLines) + `}`))
	id := text(k, "id")
	dialogue03(t, k, func() any { return get(id) }, func(promptID, line string) any {
		return call(message(`"taskId":"` + id + `","metadata":{"hitl_response_for":{"prompt_id":"` + promptID + `","payload":{"text":"` + line + `"}}}`))
	}, "input-required", "completed")
}

// promptREST03 is promptRPC03 in HTTP+JSON, which spells everything its way.
func promptREST03(t *testing.T, c *a2aClient) {
	call := func(body string) any {
		r := c.do(http.MethodPost, "/v1/message:send", body, header03(extAdapter, extPrompt))
		if at(r.json, "task") == nil {
			t.Fatalf("%d %s", r.status, r.body)
		}
		return r.at("task")
	}
	message := func(more string) string {
		return `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"x"}],` + more + `}}`
	}
	k := call(message(`"metadata":{"` + extAdapter + `":` + adapterEnvelope(asksLines) + `}`))
	id := text(k, "id")
	dialogue03(t, k, func() any {
		return c.do(http.MethodGet, "/v1/tasks/"+id, "", header03(extPrompt)).json
	}, func(promptID, line string) any {
		return call(message(`"taskId":"` + id + `","metadata":{"hitl_response_for":{"prompt_id":"` + promptID + `","payload":{"text":"` + line + `"}}}`))
	}, "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED")
}

// dialogue03 answers both questions and wants the task to end well.
func dialogue03(t *testing.T, k any, get func() any, answer func(promptID, line string) any, waits, ends string) {
	t.Helper()
	for _, turn := range [][2]string{{"Continue? [y/N]", "y"}, {"Really? [y/N]", "n"}} {
		eventually(t, func() bool { // a blocking send may have been answered before
			if _, asked := prompted(k); asked == turn[0] {
				return true
			}
			k = get()
			return false
		}, func() string { return fmt.Sprint(k) })
		if s := text(k, "status", "state"); s != waits {
			t.Errorf("the state is %s, want %s", s, waits)
		}
		id, _ := prompted(k)
		k = answer(id, turn[1])
	}
	eventually(t, func() bool {
		if text(k, "status", "state") == ends {
			return true
		}
		k = get()
		return false
	}, func() string { return fmt.Sprint(k) })
	if got := output(k, "stdout"); got != askedTwice {
		t.Errorf("output is %q, want %q", got, askedTwice)
	}
}
