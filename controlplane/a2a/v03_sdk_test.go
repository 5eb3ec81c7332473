package a2a_test

import (
	"net/http"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// TestPeculiar03 is what the SDKs do on HTTP+JSON of 0.3, whose specification
// leaves it open.
func TestPeculiar03(t *testing.T) {
	r := newRig(t, nil)
	header := map[string]string{"A2A-Version": "0.3", "X-A2A-Extensions": extensions.Runtime}
	// The one for Python writes members by their names in the proto file, where
	// the message is called request.
	a := r.do(http.MethodPost, "/agents/"+idA+"/v1/message:send",
		`{"request":{"message_id":"m","role":"ROLE_USER","content":[{"text":"hello"}]},"configuration":{"blocking":true}}`, header)
	if a.status != http.StatusOK || a.path("task", "status", "state") != "TASK_STATE_COMPLETED" {
		t.Errorf("a message called request: %d %s", a.status, a.body)
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
