package auth_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

func TestRequire(t *testing.T) {
	dir := t.TempDir()
	tokens, err := auth.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	token := adminToken(t, dir)
	h := auth.Require(tokens, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, ok := auth.FromContext(r.Context())
		if !ok || p.Name != "admin" || !p.Has(auth.ScopeInvoke) {
			t.Errorf("principal is %+v, %v", p, ok)
		}
	}))
	for _, c := range []struct {
		name      string
		headers   []string
		want      int
		challenge string
	}{
		{"valid", []string{"Bearer " + token}, 200, ""},
		{"scheme in any case", []string{"bEaReR  " + token + " "}, 200, ""},
		{"none", nil, 401, `Bearer realm="agentic-sandbox"`},
		{"empty", []string{""}, 401, `error="invalid_request"`},
		{"no scheme", []string{token}, 401, `error="invalid_request"`},
		{"basic", []string{"Basic " + token}, 401, `error="invalid_request"`},
		{"no token", []string{"Bearer "}, 401, `error="invalid_token"`},
		{"other", []string{"Bearer sbx_other"}, 401, `error="invalid_token"`},
		{"prefix", []string{"Bearer " + token[:len(token)-1]}, 401, `error="invalid_token"`},
		{"longer", []string{"Bearer " + token + "x"}, 401, `error="invalid_token"`},
		{"two headers", []string{"Bearer " + token, "Bearer " + token}, 401, `error="invalid_request"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			for _, h := range c.headers {
				r.Header.Add("Authorization", h)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Fatalf("status %d, want %d: %s", w.Code, c.want, w.Body)
			}
			if c.want == http.StatusOK {
				return
			}
			if got := w.Header().Get("WWW-Authenticate"); !strings.Contains(got, c.challenge) || !strings.HasPrefix(got, "Bearer ") {
				t.Errorf("challenge is %q, want %q in it", got, c.challenge)
			}
			var p struct {
				Status                                  int
				Type, Title, Detail, Cause, Remediation string
				Code, Blame                             string
			}
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatal(err)
			}
			if p.Status != 401 || p.Code != "auth.required" || p.Blame != "caller" || p.Cause == "" ||
				!strings.Contains(p.Remediation, "admin.token") || !strings.HasSuffix(p.Type, p.Code) {
				t.Errorf("problem is %s", w.Body)
			}
			if strings.Contains(w.Body.String(), token[:8]) {
				t.Errorf("the answer repeats the token: %s", w.Body)
			}
		})
	}
}

func TestScopes(t *testing.T) {
	reader := auth.Principal{Name: "r", Scopes: []auth.Scope{auth.ScopeFleetRead}}
	if !reader.Has(auth.ScopeFleetRead) || reader.Has(auth.ScopeFleetWrite) || reader.Has(auth.ScopeAdmin) {
		t.Error("a scope gives more or less than itself")
	}
	if _, ok := auth.FromContext(t.Context()); ok {
		t.Error("there is a principal in an empty context")
	}
}

// TestRefusalNamesTheRequest: the name in the body is that of the header.
func TestRefusalNamesTheRequest(t *testing.T) {
	h := request.Identify(auth.Require(&auth.Tokens{}, http.NotFoundHandler()))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(request.Header, "trace-1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var p struct {
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusUnauthorized || p.RequestID != "trace-1" || w.Header().Get(request.Header) != "trace-1" {
		t.Errorf("got %d, header %q, body %s", w.Code, w.Header().Get(request.Header), w.Body)
	}
}
