package a2a_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// old are the headers of a client of 0.3, which names no version.
var old = map[string]string{"X-A2A-Extensions": extensions.Runtime, "Content-Type": "application/json"}

// keeper takes a message with parts of any kind, when its metadata says keep.
type keeper struct{}

func (keeper) Name() string                 { return "shell" } // allowed by the agents of the rig
func (keeper) Claims(r runner.Request) bool { return r.Message.Metadata["keep"] != nil }
func (keeper) Prepare(runner.Request) (*runner.Command, error) {
	return &runner.Command{
		Spec:      &agentv1.RunSpec{Argv: []string{"true"}, Root: "/", WorkingDir: "/", Timeout: durationpb.New(time.Minute)},
		Artifacts: [2]string{"stdout", "stderr"},
	}, nil
}

func newRig03(t *testing.T) *rig {
	t.Helper()
	return newRig(t, func(c *a2a.Config, e *engine.Config) {
		c.PublicURL = "http://sandbox.example"
		e.Now = func() time.Time { return time.UnixMilli(1_767_225_600_000) }
		e.Runners = append([]runner.Runner{keeper{}}, e.Runners...)
	})
}

// rpc03 calls a method as a client of 0.3 does.
func (r *rig) rpc03(method, params string) answer {
	r.t.Helper()
	return r.do(post, "/agents/"+idA, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, old)
}

func message03(text string) string {
	return `{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"` + text + `"}]}}`
}

func messageREST03(text string) string {
	return `{"message":{"messageId":"m1","role":"ROLE_USER","content":[{"text":"` + text + `"}]}}`
}

// running starts a command that does not end and waits until it works.
func (r *rig) running(text string) string {
	r.t.Helper()
	id := r.start(text)
	r.frames(r.open(get, "/agents/"+idA+"/tasks/"+id+":subscribe", "", good), func(f frame) bool {
		var c collected
		c.add(f)
		return len(c.states) == 0 || c.states[0] != "TASK_STATE_WORKING"
	})
	return id
}

const (
	partsRPC = `{"message":{"kind":"message","messageId":"m1","role":"user","metadata":{"keep":1},"referenceTaskIds":["t0"],"extensions":["https://a/e"],` +
		`"parts":[{"kind":"text","text":"hi","metadata":{"a":1}},{"kind":"file","file":{"name":"a.txt","mimeType":"text/plain","bytes":"aGk="}},` +
		`{"kind":"file","file":{"uri":"https://example.org/b"}},{"kind":"data","data":{"x":{"data":1}}},` +
		`{"kind":"data","data":{"value":[1,2]},"metadata":{"data_part_compat":true}}]}}`
	partsREST = `{"message":{"messageId":"m1","role":"ROLE_USER","metadata":{"keep":1},"referenceTaskIds":["t0"],"extensions":["https://a/e"],` +
		`"content":[{"text":"hi","metadata":{"a":1}},{"file":{"name":"a.txt","mimeType":"text/plain","fileWithBytes":"aGk="}},` +
		`{"file":{"fileWithUri":"https://example.org/b"}},{"data":{"data":{"x":{"data":1}}}},` +
		`{"data":{"data":{"value":[1,2]}},"metadata":{"data_part_compat":true}}]}}`
)

// TestWire03 compares every form of 0.3 with testdata/03-*.http.
func TestWire03(t *testing.T) {
	const base = "/agents/" + idA
	send := func(path, body string) func(*rig) answer {
		return func(r *rig) answer { return r.do(post, base+path, body, old) }
	}
	ask := func(path string) func(*rig) answer {
		return func(r *rig) answer { return r.do(get, base+path, "", old) }
	}
	call := func(method, params string) func(*rig) answer {
		return func(r *rig) answer { return r.rpc03(method, params) }
	}
	done := func(r *rig) string { id, _ := r.send("hi").path("task", "id").(string); return id }
	for name, of := range map[string]func(r *rig) answer{
		"send-rpc":      call("message/send", message03("hi")),
		"send-rest":     send("/v1/message:send", messageREST03("hi")),
		"send-seed":     send("/messages:send", `{"message":{"role":"user","parts":[{"kind":"text","text":"hi"}]}}`),
		"failed-rpc":    call("message/send", message03("sh:echo no >&2; exit 3")),
		"failed-rest":   send("/v1/message:send", messageREST03("sh:echo no >&2; exit 3")),
		"stream-rpc":    call("message/stream", message03("hi")),
		"stream-rest":   send("/v1/message:stream", messageREST03("hi")),
		"parts-rpc":     call("message/send", partsRPC),
		"parts-rest":    send("/v1/message:send", partsREST),
		"bytes-rpc":     call("message/send", message03(`sh:printf '\\377'`)),
		"bytes-rest":    send("/v1/message:send", messageREST03(`sh:printf '\\377'`)),
		"get-rpc":       func(r *rig) answer { return r.rpc03("tasks/get", `{"id":"`+done(r)+`","historyLength":0}`) },
		"get-rest":      func(r *rig) answer { return ask("/v1/tasks/" + done(r) + "?historyLength=0")(r) },
		"list-rest":     func(r *rig) answer { done(r); return ask("/v1/tasks?historyLength=1&includeArtifacts=true")(r) },
		"cancel-rpc":    func(r *rig) answer { return r.rpc03("tasks/cancel", `{"id":"`+r.running("sh:sleep 600")+`"}`) },
		"cancel-rest":   func(r *rig) answer { return send("/v1/tasks/"+r.running("sh:sleep 600")+":cancel", "")(r) },
		"notfound-rpc":  call("tasks/get", `{"id":"no"}`),
		"notfound-rest": ask("/v1/tasks/no"),
		"invalid-rpc":   call("message/send", `{"message":{"kind":"task","role":"agent","parts":[{"kind":"file","file":{}}]}}`),
		"nomethod-rpc":  call("tasks/list", `{}`),
		"method10-rpc":  call("SendMessage", message("hi")),
		"card-rpc":      call("agent/getAuthenticatedExtendedCard", `{}`),
		"card-rest":     ask("/v1/card"),
		"version-rest": func(r *rig) answer {
			return r.do(get, base+"/v1/tasks/no", "", with(map[string]string{"A2A-Version": "1.0"}))
		},
		"extension-rpc": func(r *rig) answer {
			return r.do(post, base, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"no"}}`, nil)
		},
		"card": func(r *rig) answer {
			return r.do(get, base+"/.well-known/agent-card.json", "", map[string]string{"A2A-Version": "0.3"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, "03-"+name, of(newRig03(t)))
		})
	}
}

// TestVersionsAreNotMixed looks at every golden file for spellings of the other
// version or of the other binding.
func TestVersionsAreNotMixed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.http")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	lower := regexp.MustCompile(`"state":"[a-z]|"role":"[a-z]`)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".http")
		var foreign []string
		switch {
		case strings.HasPrefix(name, "03-") && strings.HasSuffix(name, "-rpc"):
			foreign = []string{"TASK_STATE_", "ROLE_", `"content":`, `"statusUpdate"`, `"artifactUpdate"`, `"result":{"task"`}
		case strings.HasPrefix(name, "03-"):
			foreign = []string{"TASK_STATE_CANCELED", `"kind":`, `"supportedInterfaces"`}
		default:
			foreign = []string{"TASK_STATE_CANCELLED", `"kind":`, `"content":`, `"final":`, `"preferredTransport"`}
		}
		for _, s := range foreign {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("%s holds %s", file, s)
			}
		}
		if lower.Match(b) != (strings.HasPrefix(name, "03-") && strings.HasSuffix(name, "-rpc")) && bytes.Contains(b, []byte(`"state":`)) {
			t.Errorf("%s has states of the other version", file)
		}
	}
}
