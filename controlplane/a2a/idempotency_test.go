package a2a_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/sqlite"
)

const (
	msgA     = "018fc0a2-7777-7aaa-8bbb-00000000000a"
	msgB     = "018fc0a2-7777-7aaa-8bbb-00000000000b"
	replayed = "Idempotent-Replayed"
)

var onceHeader = with(map[string]string{"A2A-Extensions": extensions.Runtime + ", " + extensions.Idempotency})

func onceRig(t *testing.T, change func(*a2a.Config, *engine.Config)) *rig {
	t.Helper()
	return newRig(t, func(c *a2a.Config, e *engine.Config) {
		db, ok := c.Store.(*sqlite.DB)
		if !ok {
			t.Fatal("the rig's store is another")
		}
		c.Reservations = db.Idempotency()
		if change != nil {
			change(c, e)
		}
	})
}

func onceMessage(id, text string) string {
	return strings.Replace(message(text), `"m1"`, `"`+id+`"`, 1)
}

// count appends a line to a file each time it is run.
func count(t *testing.T) (script string, times func() int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ran")
	return "sh:echo ran >>" + path + "; echo out; echo err >&2", func() int {
		b, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(b), "ran\n")
	}
}

// same compares two answers, but for the header that tells them apart and those of the transport.
func same(t *testing.T, what string, first, second answer) {
	t.Helper()
	if first.status != second.status || string(first.body) != string(second.body) {
		t.Errorf("%s: replayed is %d %s\nwant %d %s", what, second.status, second.body, first.status, first.body)
	}
	if first.header.Get(replayed) != "" || second.header.Get(replayed) != "true" {
		t.Errorf("%s: %s is %q, then %q", what, replayed, first.header.Get(replayed), second.header.Get(replayed))
	}
	for name := range first.header {
		if name != "Date" && first.header.Get(name) != second.header.Get(name) {
			t.Errorf("%s: replayed has %s: %q, want %q", what, name, second.header.Get(name), first.header.Get(name))
		}
	}
}

func (r *rig) once(path, body string) answer {
	r.t.Helper()
	return r.do(post, "/agents/"+idA+path, body, onceHeader)
}

func TestIdempotentReplay(t *testing.T) {
	r := onceRig(t, nil)
	script, ran := count(t)
	body := onceMessage(msgA, script)
	first := r.once("/message:send", body)
	if first.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Fatalf("send answers %d %s", first.status, first.body)
	}
	same(t, "send", first, r.once("/message:send", body))
	same(t, "send, written otherwise", first, r.once("/messages:send", strings.Replace(strings.Replace(body, `"messageId"`, ` "message_id"`, 1), msgA, strings.ToUpper(msgA), 1)))

	// On the other binding and version it is the same answer in their form.
	rpc := func(id, version, method, params string) answer {
		return r.do(post, "/agents/"+idA, `{"jsonrpc":"2.0","id":`+id+`,"method":"`+method+`","params":`+params+`}`,
			with(map[string]string{"A2A-Extensions": onceHeader["A2A-Extensions"], "A2A-Version": version}))
	}
	one, two := rpc("1", "1.0", "SendMessage", body), rpc(`"x"`, "1.0", "SendMessage", body)
	if one.json["id"] != 1.0 || one.path("result", "task", "id") != first.path("task", "id") || two.json["id"] != "x" {
		t.Errorf("on JSON-RPC: %s and %s", one.body, two.body)
	}
	if string(resultOf(t, one)) != strings.TrimSpace(string(first.body)) || one.header.Get(replayed) != "true" {
		t.Errorf("on JSON-RPC: %s, want %s", one.body, first.body)
	}
	if ran() != 1 {
		t.Errorf("it ran %d times", ran())
	}
	// Without the extension, and for somebody else or another instance, it is another message.
	r.do(post, "/agents/"+idA+"/message:send", body, good)
	r.do(post, "/agents/"+idA+"/message:send", body, with(map[string]string{"A2A-Extensions": onceHeader["A2A-Extensions"], "X-User": "bob"}))
	r.do(post, "/agents/"+idB+"/message:send", body, onceHeader)
	if ran() != 4 {
		t.Errorf("it ran %d times, want 4", ran())
	}
}

func TestIdempotentFailures(t *testing.T) {
	r := onceRig(t, nil)
	for what, body := range map[string]string{
		"a command that fails":   onceMessage("018fc0a2-0000-7000-8000-000000000001", "sh:echo no; exit 3"),
		"a message of no use":    `{"message":{"messageId":"018fc0a2-0000-7000-8000-000000000002","role":"ROLE_ROBOT","parts":[]}}`,
		"a task nobody has":      `{"message":{"messageId":"018fc0a2-0000-7000-8000-000000000003","taskId":"no","role":"ROLE_USER","parts":[{"text":"x"}]}}`,
		"an envelope with <a&b>": strings.Replace(adapterMessage(`"<a&b>"`), `"messageId":"m"`, `"messageId":"018fc0a2-0000-7000-8000-000000000004"`, 1),
	} {
		first := r.once("/message:send", body)
		same(t, what, first, r.once("/message:send", body))
		rpc := `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + strings.ReplaceAll(body, "018fc0a2", "018fc0a3") + `}`
		first = r.once("", rpc)
		same(t, what+" on JSON-RPC", first, r.once("", rpc))
	}
	for _, body := range []string{message("x"), strings.Replace(message("x"), `"messageId":"m1",`, "", 1), onceMessage(msgA+"0", "x")} {
		a := r.once("/message:send", body)
		if a.status != 400 || a.path("error", "details", 0, "reason") != "IDEMPOTENCY_MESSAGE_ID_MALFORMED" || a.header.Get(replayed) != "" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
		if a = r.rpc("SendMessage", body, onceHeader); dig(a.json, "error", "code") != -32602.0 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	// What is no message at all is refused as ever.
	for _, body := range []string{`{}`, `{"message":7}`, `[`} {
		if a := r.once("/message:send", body); a.status != 400 || a.header.Get(replayed) != "" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

func TestIdempotentMismatch(t *testing.T) {
	r := onceRig(t, nil)
	script, ran := count(t)
	first := r.once("/message:send", onceMessage(msgA, script))
	for _, path := range []string{"/message:send", "/message:stream"} {
		a := r.once(path, onceMessage(msgA, script+"; true"))
		meta := a.path("error", "details", 0, "metadata")
		if a.status != 422 || a.path("error", "details", 0, "reason") != "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_PAYLOAD" || a.header.Get(replayed) != "" ||
			dig(meta, "message_id") != msgA || dig(meta, "original_request_hash") == dig(meta, "submitted_request_hash") ||
			len(a.path("error", "details").([]any)) != 1 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		validate(t, "idempotency/v1/conflict.schema.json", meta)
	}
	a := r.rpc("SendMessage", onceMessage(msgA, "other"), onceHeader)
	if a.status != 422 || !strings.Contains(string(a.body), `"code":-32422`) {
		t.Errorf("on JSON-RPC: %d %s", a.status, a.body)
	}
	same(t, "the original", first, r.once("/message:send", onceMessage(msgA, script)))
	if ran() != 1 {
		t.Errorf("it ran %d times", ran())
	}
}

// TestIdempotentAtOnce sends one message many times at once, on both bindings
// and as a stream, while the command waits.
func TestIdempotentAtOnce(t *testing.T) {
	r := onceRig(t, nil)
	dir := t.TempDir()
	script, ran := count(t)
	body := onceMessage(msgA, script+"; until test -e "+dir+"/go; do sleep 0.05; done")
	var wg sync.WaitGroup
	var mu sync.Mutex
	firsts := 0
	answers := map[string]int{}
	tasks := map[any]int{}
	began := make(chan struct{}, 12)
	for i := range 12 {
		wg.Go(func() {
			began <- struct{}{}
			var a answer
			var id any
			switch i % 3 {
			case 0:
				a = r.once("/message:send", body)
				id = a.path("task", "id")
			case 1:
				a = r.once("", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+body+`}`)
				id = a.path("result", "task", "id")
			case 2:
				resp := r.open(post, "/agents/"+idA+"/message:stream", body, onceHeader)
				a.header = resp.Header
				var c collected
				r.frames(resp, func(f frame) bool {
					if t := f.data["task"]; t != nil {
						id = dig(t, "id")
					}
					c.add(f)
					return true
				})
				if c.out["stdout"] != "out\n" || c.states[len(c.states)-1] != "TASK_STATE_COMPLETED" {
					t.Errorf("stream: %+v", c)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if a.header.Get(replayed) == "" {
				firsts++
			}
			tasks[id]++
			if i%3 != 2 {
				answers[string(a.body)]++
			}
		})
	}
	for range 12 {
		<-began
	}
	// An other body is refused while the first is under way, without waiting for it.
	r.await(func() bool { return ran() > 0 })
	if a := r.once("/message:send", onceMessage(msgA, "other")); a.status != 422 {
		t.Errorf("another body meanwhile: %d %s", a.status, a.body)
	}
	touch(t, dir+"/go")
	wg.Wait()
	if ran() != 1 || firsts != 1 || len(tasks) != 1 || len(answers) != 2 {
		t.Errorf("ran %d times, %d answers are first ones, tasks %v, answers %v", ran(), firsts, tasks, answers)
	}
}

// await asks until something is so, as often as tasks change.
func (r *rig) await(so func() bool) {
	r.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("it never came so")
		}
	}
}

func TestIdempotentStream(t *testing.T) {
	r := onceRig(t, nil)
	script, ran := count(t)
	stream := func(body string) (string, string) {
		t.Helper()
		resp := r.open(post, "/agents/"+idA+"/message:stream", body, onceHeader)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s %v", resp.StatusCode, b, err)
		}
		return string(b), resp.Header.Get(replayed)
	}
	first, mark := stream(onceMessage(msgA, script))
	if mark != "" || !strings.Contains(first, "TASK_STATE_COMPLETED") {
		t.Fatalf("stream is %s", first)
	}
	if again, mark := stream(onceMessage(msgA, script)); again != first || mark != "true" {
		t.Errorf("replayed %q is\n%s\nwant\n%s", mark, again, first)
	}
	// SendMessage of it is answered by its end; twice the same.
	one, two := r.once("/message:send", onceMessage(msgA, script)), r.once("/message:send", onceMessage(msgA, script))
	if one.path("task", "status", "state") != "TASK_STATE_COMPLETED" || string(one.body) != string(two.body) || one.header.Get(replayed) != "true" {
		t.Errorf("send after the stream: %s, then %s", one.body, two.body)
	}
	// And the stream of what was sent is its stream from the start.
	sent := r.once("/message:send", onceMessage(msgB, script))
	again, mark := stream(onceMessage(msgB, script))
	id, _ := sent.path("task", "id").(string)
	if mark != "true" || !strings.Contains(again, id) || !strings.Contains(again, "TASK_STATE_SUBMITTED") || !strings.Contains(again, "TASK_STATE_COMPLETED") ||
		strings.Count(again, "\n\n") != strings.Count(first, "\n\n") {
		t.Errorf("stream after sending is %q\n%s", mark, again)
	}
	if ran() != 2 {
		t.Errorf("ran %d times", ran())
	}
	// A refusal is no stream, neither time.
	bad := `{"message":{"messageId":"018fc0a2-0000-7000-8000-000000000009","role":"ROLE_USER","parts":[]}}`
	same(t, "a refused stream", r.once("/message:stream", bad), r.once("/message:stream", bad))
}

func TestIdempotentBounds(t *testing.T) {
	now := time.Now()
	var mu sync.Mutex
	r := onceRig(t, func(c *a2a.Config, _ *engine.Config) {
		c.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
		c.Limits.Replay.TTL = time.Hour
		c.Limits.Replay.Entries = 2
	})
	script, ran := count(t)
	send := func(id string, later time.Duration) string {
		mu.Lock()
		now = now.Add(later)
		mu.Unlock()
		return r.once("/message:send", onceMessage(id, script)).header.Get(replayed)
	}
	send(msgA, 0)
	if got := send(msgA, time.Minute); got != "true" {
		t.Error("it is forgotten")
	}
	if got := send(msgA, time.Hour); got != "" || ran() != 2 {
		t.Errorf("after its time it is replayed; ran %d times", ran())
	}
	send(msgB, time.Second)
	send("018fc0a2-7777-7aaa-8bbb-00000000000c", time.Second)
	if got := send(msgA, time.Second); got != "" || ran() != 5 {
		t.Errorf("the oldest is kept beyond the bound; ran %d times", ran())
	}
	card := r.do(get, "/agents/"+idA+"/.well-known/agent-card.json", "", nil)
	list, _ := card.path("capabilities", "extensions").([]any)
	entry := list[len(list)-1]
	if dig(entry, "uri") != extensions.Idempotency || dig(entry, "required") != nil {
		t.Fatalf("card has %v", entry)
	}
	validate(t, "idempotency/v1/params.schema.json", dig(entry, "params"))
}

// TestIdempotentLargeAnswer: an answer too large to be kept is made again.
func TestIdempotentLargeAnswer(t *testing.T) {
	r := onceRig(t, nil)
	script, ran := count(t)
	body := onceMessage(msgA, script+"; yes 0123456789abcdef | head -c 300000")
	first := r.once("/message:send", body)
	if len(first.body) < 300_000 {
		t.Fatalf("answer is %.300s", first.body)
	}
	same(t, "a large answer", first, r.once("/message:send", body))
	if ran() != 1 {
		t.Errorf("ran %d times", ran())
	}
}
