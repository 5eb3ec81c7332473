package a2a_test

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestWire compares what goes over the wire, byte for byte but for what
// changes from run to run, with testdata/*.http.
func TestWire(t *testing.T) {
	const base = "/agents/" + idA
	for name, c := range map[string]struct {
		method, path, body string
		header             map[string]string
	}{
		"card":              {get, base + "/.well-known/agent-card.json", "", nil},
		"card-host":         {get, "/agents/" + idHost + "/.well-known/agent-card.json", "", nil},
		"send":              {post, base + "/message:send", message("hi"), good},
		"send-failed":       {post, base + "/message:send", message("sh:echo no >&2; exit 3"), good},
		"send-rpc":          {post, base, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + message("hi") + `}`, good},
		"stream":            {post, base + "/message:stream", message("hi"), good},
		"stream-rpc":        {post, base, `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":` + message("hi") + `}`, good},
		"list-empty":        {get, base + "/tasks?status=TASK_STATE_WORKING&pageSize=20", "", good},
		"not-found":         {get, base + "/tasks/no", "", good},
		"not-found-rpc":     {post, base, `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"no"}}`, good},
		"version":           {post, base + "/message:send", message("hi"), with(map[string]string{"A2A-Version": "9.9"})},
		"extension":         {post, base + "/message:send", message("hi"), with(map[string]string{"A2A-Extensions": ""})},
		"extension-rpc":     {post, base, `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}`, with(map[string]string{"A2A-Extensions": ""})},
		"invalid":           {post, base + "/message:send", `{"message":{"messageId":"m","role":"user","parts":[{}]}}`, good},
		"invalid-rpc":       {post, base, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"role":"user"}}}`, good},
		"adapter-broken":    {post, base + "/message:send", adapterMessage(`"plan","timeout_seconds":0`), good},
		"no-instance":       {get, "/agents/x/tasks", "", good},
		"method":            {http.MethodPut, base + "/tasks", "", good},
		"extensions-echoed": {get, base + "/tasks/no", "", with(map[string]string{"A2A-Extensions": "https://a/e/v1, " + extensions.Runtime + "," + extensions.AdapterCommand})},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *a2a.Config, e *engine.Config) {
				c.PublicURL = "http://sandbox.example"
				e.Now = func() time.Time { return time.UnixMilli(1_767_225_600_000) }
			})
			golden(t, name, r.do(c.method, c.path, c.body, c.header))
		})
	}
}

// golden compares an answer with its file.
func golden(t *testing.T, name string, a answer) {
	t.Helper()
	got, path := wire(a), filepath.Join("testdata", name+".http")
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("on the wire (-want +got); -update writes it anew:\n%s", diff)
	}
}

func adapterMessage(mode string) string {
	return `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"metadata":{"` + extensions.AdapterCommand +
		`":{"adapter":"sandbox-agent-runner","mode":` + mode + `,"command":["node",".aiwg/ops/adapters/sandbox-agent-runner/runner.mjs",` +
		`"--request",".aiwg/ops/runs/../x"]}}}}`
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// wire writes an answer with ids made by the server replaced by their order.
func wire(a answer) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP %d\n", a.status)
	for _, name := range []string{
		"Content-Type", "A2A-Extensions", "X-A2A-Extensions", "Cache-Control", "Vary", "Allow", "Retry-After", "X-Content-Type-Options", "X-Accel-Buffering",
	} {
		if v := a.header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n")
	seen := map[string]string{}
	body := uuids.ReplaceAllStringFunc(string(a.body), func(id string) string {
		if strings.HasPrefix(id, "01900000-") {
			return id
		}
		if seen[id] == "" {
			seen[id] = fmt.Sprintf("UUID-%d", len(seen)+1)
		}
		return seen[id]
	})
	b.WriteString(strings.TrimSuffix(body, "\n") + "\n")
	return b.Bytes()
}
