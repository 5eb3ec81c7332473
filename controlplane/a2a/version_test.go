package a2a_test

import (
	"net/url"
	"strings"
	"testing"
)

// TestVersions asks with every spelling of a version, by header and by query,
// on each binding and path: who names none speaks 0.3.
func TestVersions(t *testing.T) {
	r := newRig(t, nil)
	const notFound, unsupported, noMethod = -32001.0, -32009.0, -32601.0
	for _, c := range []struct {
		version    string
		new, old   float64 // JSON-RPC: GetTask, tasks/get
		rest, path float64 // HTTP+JSON: /tasks/no, /v1/tasks/no
	}{
		{"1.0", notFound, noMethod, notFound, unsupported},
		{"1.0.7", notFound, noMethod, notFound, unsupported},
		{" 1.0 ", notFound, noMethod, notFound, unsupported},
		{"0.3", noMethod, notFound, notFound, notFound},
		{"0.3.0", noMethod, notFound, notFound, notFound},
		{"", noMethod, notFound, notFound, notFound},
		{" ", noMethod, notFound, notFound, notFound},
		{"99.0", unsupported, unsupported, unsupported, unsupported},
		{"9.9", unsupported, unsupported, unsupported, unsupported},
		{"1", unsupported, unsupported, unsupported, unsupported},
		{"1.1", unsupported, unsupported, unsupported, unsupported},
		{"0.2", unsupported, unsupported, unsupported, unsupported},
		{"v1.0", unsupported, unsupported, unsupported, unsupported},
		{"1.0-beta", unsupported, unsupported, unsupported, unsupported},
		{"1.0,0.3", unsupported, unsupported, unsupported, unsupported},
		{"１.０", unsupported, unsupported, unsupported, unsupported},
	} {
		for _, query := range []bool{false, true} {
			base, h := "/agents/"+idA, with(map[string]string{"A2A-Version": c.version})
			if query {
				h = with(map[string]string{"A2A-Version": ""})
			}
			ask := func(method, path, body string) answer {
				if query {
					path += "?A2A-Version=" + url.QueryEscape(c.version)
				}
				return r.do(method, base+path, body, h)
			}
			for method, want := range map[string]float64{"GetTask": c.new, "tasks/get": c.old} {
				a := ask(post, "", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"id":"no"}}`)
				if a.path("error", "code") != want || a.status != 200 {
					t.Errorf("RPC %s, version %q, by query %t: %d %s, want %v", method, c.version, query, a.status, a.body, want)
				}
			}
			for path, want := range map[string]float64{"/tasks/no": c.rest, "/v1/tasks/no": c.path} {
				reason, supported := "TASK_NOT_FOUND", any(nil)
				if want == unsupported {
					reason, supported = "VERSION_NOT_SUPPORTED", "1.0,0.3"
					if strings.HasPrefix(path, "/v1") {
						supported = "0.3"
					}
				}
				a := ask(get, path, "")
				if a.path("error", "details", 0, "reason") != reason || a.path("error", "details", 0, "metadata", "supportedVersions") != supported {
					t.Errorf("REST %s, version %q, by query %t: %d %s, want %s", path, c.version, query, a.status, a.body, reason)
				}
			}
		}
	}
	// The header wins over the query, and an empty one does not.
	h := with(map[string]string{"A2A-Version": "0.3"})
	if a := r.do(get, "/agents/"+idA+"/tasks?A2A-Version=9.9", "", h); a.status != 200 {
		t.Errorf("header and query: %d %s", a.status, a.body)
	}
}

// TestNoVersionOnPathOf10 is the example of adapter-command/v1: HTTP+JSON, no
// version, parts of 0.3; also one of 1.0 typed by hand.
func TestNoVersionOnPathOf10(t *testing.T) {
	r := newRig(t, nil)
	h := with(map[string]string{"A2A-Version": ""})
	for _, path := range []string{"/messages:send", "/message:send"} {
		for _, body := range []string{`{"message":{"role":"user","parts":[{"kind":"text","text":"x"}]}}`, message("x")} {
			a := r.do(post, "/agents/"+idA+path, body, h)
			if a.path("task", "status", "state") != "TASK_STATE_COMPLETED" || a.path("task", "history", 0, "role") != "ROLE_USER" ||
				a.path("task", "history", 0, "content", 0, "text") != "x" || a.path("task", "history", 0, "messageId") == "" {
				t.Errorf("%s %s: %d %s", path, body, a.status, a.body)
			}
		}
	}
	body := strings.TrimSuffix(message("sh:sleep 600"), "}") + `,"configuration":{"returnImmediately":true}}`
	if a := r.do(post, "/agents/"+idA+"/message:send", body, h); a.path("task", "id") == nil {
		t.Errorf("returnImmediately: %d %s", a.status, a.body)
	}
}
