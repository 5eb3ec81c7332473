package a2a_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// TestPeculiar03 is what the SDKs do on HTTP+JSON of 0.3, whose specification
// leaves it open.
func TestPeculiar03(t *testing.T) {
	r := newRig(t, nil)
	gate := filepath.Join(t.TempDir(), "open")
	header := map[string]string{"A2A-Version": "0.3", "X-A2A-Extensions": extensions.Runtime}
	// The one for Python writes members by their names in the proto file, where
	// the message is called request.
	a := r.do(http.MethodPost, "/agents/"+idA+"/v1/message:send",
		`{"request":{"message_id":"m","role":"ROLE_USER","content":[{"text":"hello"}]},"configuration":{"blocking":true}}`, header)
	if a.status != http.StatusOK || a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("a message called request: %d %s", a.status, a.body)
	}
	// False is the default of the proto file, and not written by the one for
	// JavaScript either; without a configuration the SDKs wait.
	for configuration, state := range map[string]string{
		`{}`: "TASK_STATE_WORKING", `{"history_length":1}`: "TASK_STATE_WORKING", `{"blocking":false}`: "TASK_STATE_WORKING",
		`{"blocking":true}`: "TASK_STATE_COMPLETED", `null`: "TASK_STATE_COMPLETED",
	} {
		body := `{"request":{"message_id":"m","role":"ROLE_USER","content":[{"text":"sh:while [ ! -e ` + gate + ` ]; do sleep 0.05; done"}]},` +
			`"configuration":` + configuration + `}`
		closed := strings.HasSuffix(state, "WORKING")
		openGate(t, gate, !closed)
		a := r.do(http.MethodPost, "/agents/"+idA+"/v1/message:send", body, header)
		if got, _ := a.path("task", "status", "state").(string); got != state && (!closed || got != "TASK_STATE_SUBMITTED") {
			t.Errorf("with the configuration %s: %d %s", configuration, a.status, a.body)
		}
		openGate(t, gate, true)
	}
	for _, e := range []struct {
		method, path, body, kind string
		code                     float64
	}{
		{http.MethodGet, "/v1/tasks/none", "", "TaskNotFoundError", -32001},
		{http.MethodPost, "/v1/tasks/" + a.path("task", "id").(string) + ":cancel", "", "TaskNotCancelableError", -32002},
		{http.MethodPost, "/v1/message:send", `{"request":{}}`, "InvalidParamsError", -32602},
		{http.MethodPost, "/v1/message:send", `{`, "InvalidRequestError", -32700},
	} {
		a := r.do(e.method, "/agents/"+idA+e.path, e.body, header)
		// Those for Python and JavaScript look for these, the one for Go for error.
		if a.path("type") != e.kind || a.path("code") != e.code || a.path("message") != a.path("error", "message") || a.path("message") == nil {
			t.Errorf("%s is answered %s", e.path, a.body)
		}
	}
	// 1.0 has its own form only.
	if a := r.do(get, "/agents/"+idA+"/tasks/none", "", good); a.path("type") != nil || a.path("code") != nil {
		t.Errorf("in 1.0: %s", a.body)
	}
}

// openGate lets commands that wait for a file go on, or not.
func openGate(t *testing.T, gate string, open bool) {
	t.Helper()
	err := os.RemoveAll(gate)
	if open {
		err = os.WriteFile(gate, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestExtendedCard03: JSON-RPC answers in the form of the JSON schema, and
// HTTP+JSON in that of the proto file, too.
func TestExtendedCard03(t *testing.T) {
	r, _ := signingRig(t, t.TempDir())
	header := with(map[string]string{"A2A-Version": "0.3"})
	rpc := r.rpc("agent/getAuthenticatedExtendedCard", "{}", header)
	rest := r.do(get, "/agents/"+idA+"/v1/card", "", header)
	for name, card := range map[string]any{"JSON-RPC": rpc.path("result"), "HTTP+JSON": rest.json} {
		scheme := dig(card, "securitySchemes", "bearer")
		if dig(card, "skills", 1, "id") != "more" || dig(scheme, "type") != "http" || dig(card, "signatures") != nil {
			t.Errorf("%s: %v", name, card)
		}
		if proto := dig(scheme, "httpAuthSecurityScheme", "scheme"); (proto == "bearer") != (name == "HTTP+JSON") {
			t.Errorf("%s has the scheme %v", name, scheme)
		}
	}
}
