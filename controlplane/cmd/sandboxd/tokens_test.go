package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
)

// TestTokensCommand makes, lists and removes a token beside tokens in use.
func TestTokensCommand(t *testing.T) {
	dir := t.TempDir()
	running, err := auth.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	sandboxd := func(args ...string) (string, error) {
		t.Helper()
		var out bytes.Buffer
		cmd := root()
		cmd.SetArgs(append([]string{"tokens", "--state-dir", dir}, args...))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	metrics := auth.Require(running, needs(auth.ScopeMetricsRead, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	status := func(token string) int {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		metrics.ServeHTTP(w, r)
		return w.Code
	}
	out, err := sandboxd("add", "prometheus", "--scope", "metrics:read", "--expires", "720h", "--tenant", "blue")
	token := strings.TrimSuffix(out, "\n")
	if err != nil || !strings.HasPrefix(token, "sbx_") || strings.ContainsAny(token, " \n") {
		t.Fatalf("add printed %q, %v; want the token alone", out, err)
	}
	other, err := sandboxd("add", "reader", "--scope", "fleet:read,agents:invoke")
	if err != nil {
		t.Fatal(err)
	}
	if got := status(token); got != http.StatusOK {
		t.Errorf("status %d with the new token", got)
	}
	if got := status(strings.TrimSpace(other)); got != http.StatusForbidden {
		t.Errorf("status %d with a token for something else", got)
	}
	out, err = sandboxd("ls")
	for _, want := range []string{"prometheus", "blue", "metrics:read", "fleet:read,agents:invoke", "never", "admin"} {
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, token) {
			t.Errorf("ls lacks %q or tells too much: %v\n%s", want, err, out)
		}
	}
	if out, err = sandboxd("rm", "prometheus"); err != nil || status(token) != http.StatusUnauthorized {
		t.Errorf("rm printed %q, %v; status %d", out, err, status(token))
	}
	for _, args := range [][]string{
		{"add", "x"}, {"add", "x", "--scope", "all"}, {"add", "x", "--scope", "admin", "--expires", "0s"},
		{"add", "x", "--scope", "admin", "--expires", "-1h"}, {"rm", "prometheus"}, {"rm", "admin"}, {"add"},
	} {
		if out, err := sandboxd(args...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}
