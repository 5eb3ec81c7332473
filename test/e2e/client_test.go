package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// The extensions, as clients spell them.
const (
	extRuntime     = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	extAdapter     = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
	extPrompt      = "https://agentic-sandbox.aiwg.io/extensions/hitl-prompt/v1"
	extIdempotency = "https://agentic-sandbox.aiwg.io/extensions/idempotency/v1"
)

// hosted is a daemon with one machine that is a process of this host and
// outlives the daemon, as a virtual machine does. Its adapter is a shell script.
type hosted struct {
	*rig.Daemon
	workspace string
	agent     *a2aClient
}

// host makes one; the machine's adapter is the given script.
func host(t *testing.T, script string, args ...string) *hosted {
	t.Helper()
	files, err := rig.NewHosted("hosted", rig.ShellNode, map[string]string{
		rig.AdapterDir + "/runner.mjs": script, request: "{}\n",
	})
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(files.Dir)) })
	h := &hosted{workspace: files.Workspace}
	h.Daemon = own(t, rig.Options{Args: append([]string{"--enable-host-provider"}, args...)})
	_, err = h.Must(deadline(t), "up", files.Loadout, "--name", "hosted")
	check(t, err)
	h.agent = a2aOf(t, h.Daemon, "hosted")
	return h
}

// in is the path of a file in the workspace, read what it holds.
func (h *hosted) in(name string) string { return filepath.Join(h.workspace, name) }

func (h *hosted) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(h.in(name))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	check(t, err)
	return string(b)
}

// processes lists the machine's agents, by their configuration below the
// daemon's directory.
func (h *hosted) processes(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	check(t, err)
	var pids []int
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		var pid int
		if err != nil || !bytes.Contains(line, []byte(h.StateDir+"/host/machines/")) || bytes.Contains(line, []byte("--state-dir")) {
			continue // ended meanwhile, or somebody else
		}
		if _, err := fmt.Sscan(e.Name(), &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// a2aClient speaks A2A to one machine as any client would.
type a2aClient struct {
	t     *testing.T
	d     *rig.Daemon
	id    string
	token string
}

func a2aOf(t *testing.T, d *rig.Daemon, name string) *a2aClient {
	t.Helper()
	out, err := d.Must(deadline(t), "show", name, "-o", "json")
	check(t, err)
	token, err := d.Token()
	check(t, err)
	return &a2aClient{t: t, d: d, id: id(t, out), token: token}
}

// reply is an answer.
type reply struct {
	status int
	header http.Header
	body   string
	json   any
}

// at returns the value at a path of members and indexes.
func (r reply) at(keys ...any) any { return at(r.json, keys...) }

func at(v any, keys ...any) any { return rig.Dig(v, keys...) }

// text is at for a string.
func text(v any, keys ...any) string {
	s, _ := at(v, keys...).(string)
	return s
}

func header(extensions ...string) http.Header {
	return http.Header{
		"A2a-Version": {"1.0"}, "A2a-Extensions": {strings.Join(append([]string{extRuntime}, extensions...), ", ")},
	}
}

// header03 is header of a client of 0.3.
func header03(extensions ...string) http.Header {
	return http.Header{"X-A2a-Extensions": {strings.Join(append([]string{extRuntime}, extensions...), ", ")}}
}

func (c *a2aClient) request(ctx context.Context, method, path, body string, h http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.d.URL+"/agents/"+c.id+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = h.Clone()
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// try does one request; an error is one of the connection.
func (c *a2aClient) try(ctx context.Context, method, path, body string, h http.Header) (r reply, err error) {
	resp, err := c.request(ctx, method, path, body, h)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return r, err
	}
	r = reply{status: resp.StatusCode, header: resp.Header, body: string(raw)}
	return r, json.Unmarshal(raw, &r.json)
}

// do is try that must get an answer.
func (c *a2aClient) do(method, path, body string, h http.Header) reply {
	c.t.Helper()
	r, err := c.try(deadline(c.t), method, path, body, h)
	check(c.t, err)
	return r
}

func (c *a2aClient) send(body string, h http.Header) reply {
	c.t.Helper()
	return c.do(http.MethodPost, "/message:send", body, h)
}

func (c *a2aClient) task(id string) any {
	c.t.Helper()
	r := c.do(http.MethodGet, "/tasks/"+id, "", header(extPrompt))
	if r.status != http.StatusOK {
		c.t.Fatalf("task %s: %d %s", id, r.status, r.body)
	}
	return r.json
}

// until asks for a task until it is as wanted.
func (c *a2aClient) until(id string, so func(task any) bool) any {
	c.t.Helper()
	var k any
	eventually(c.t, func() bool { k = c.task(id); return so(k) }, func() string {
		b, _ := json.Marshal(k)
		return string(b)
	})
	return k
}

func (c *a2aClient) ended(id string) any {
	c.t.Helper()
	return c.until(id, func(k any) bool {
		return slices.Contains([]string{
			"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED",
		}, text(k, "status", "state"))
	})
}

// tasks is how many tasks the machine has.
func (c *a2aClient) tasks() int {
	c.t.Helper()
	n, _ := c.do(http.MethodGet, "/tasks", "", header()).at("totalSize").(float64)
	return int(n)
}

// log reads a task's whole log, of a task that has ended.
func (c *a2aClient) log(id string) []any {
	c.t.Helper()
	h := header(extPrompt)
	h.Set("Last-Event-ID", "0")
	resp, err := c.request(deadline(c.t), http.MethodGet, "/tasks/"+id+":subscribe", "", h)
	check(c.t, err)
	defer resp.Body.Close()
	var events []any
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var v any
		check(c.t, json.Unmarshal([]byte(data), &v))
		events = append(events, v)
	}
	check(c.t, lines.Err())
	if len(events) == 0 || at(events[0], "task") == nil {
		c.t.Fatalf("the stream of task %s does not begin with it: %v", id, events)
	}
	return events[1:]
}

// eventually asks until something is so.
func eventually(t *testing.T, so func() bool, what func() string) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it never came so: %s", what())
		}
	}
}

// adapterMessage is a message that runs the adapter. Its members come after.
func adapterMessage(messageID, envelope, configuration string) string {
	return `{"message":{"messageId":"` + messageID + `","role":"ROLE_USER","parts":[{"text":"Run."}],"metadata":{"` + extAdapter +
		`":` + adapterEnvelope(envelope) + `}}` + configuration + `}`
}

func adapterEnvelope(more string) string {
	return `{"adapter":"sandbox-agent-runner","mode":"plan","timeout_seconds":600,"command":["node","` +
		rig.AdapterDir + `/runner.mjs","--request","` + request + `"]` + more + `}`
}

const (
	asksLines   = `,"input_mode":"text-line"`
	immediately = `,"configuration":{"returnImmediately":true}`
)

// answerTo is the message that answers a prompt.
func answerTo(taskID, promptID, messageID, line, configuration string) string {
	return `{"message":{"messageId":"` + messageID + `","role":"ROLE_USER","taskId":"` + taskID + `","parts":[{"text":"reply"}],` +
		`"metadata":{"hitl_response_for":{"prompt_id":"` + promptID + `","payload":{"text":"` + line + `"}}}}` + configuration + `}`
}

// prompted is what a task asks: the prompt's id and its text; none if it asks
// nothing.
func prompted(task any) (id, asked string) {
	if s := text(task, "status", "state"); s != "TASK_STATE_INPUT_REQUIRED" && s != "input-required" {
		return "", ""
	}
	e := at(task, "status", "message", "metadata", extPrompt)
	return text(e, "prompt_id"), text(e, "prompt")
}

// output joins the text of an artifact.
func output(task any, artifact string) string {
	var b strings.Builder
	list, _ := at(task, "artifacts").([]any)
	for _, a := range list {
		if text(a, "name") == artifact {
			parts, _ := at(a, "parts").([]any)
			for _, p := range parts {
				b.WriteString(text(p, "text"))
			}
		}
	}
	return b.String()
}
