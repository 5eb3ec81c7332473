package request_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

func TestIdentify(t *testing.T) {
	var seen string
	h := request.Identify(request.Identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = request.ID(r.Context())
	})))
	for given, kept := range map[string]bool{
		"": false, "trace-1.a_B": true, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false,
		"forged\nline": false, "a b": false, "é": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(request.Header, given)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get(request.Header); got != seen || (got == given) != kept || seen == "" {
			t.Errorf("given %q: the client is told %q, the handler %q", given, got, seen)
		}
	}
}

func TestLogNamesTheRequestOnce(t *testing.T) {
	var out bytes.Buffer
	log := request.Log(request.Log(slog.New(slog.NewTextHandler(&out, nil)))).With("instance", "i1")
	h := request.Identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		log.InfoContext(r.Context(), "asked")
		log.Info("on its own")
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(request.Header, "r1")
	h.ServeHTTP(httptest.NewRecorder(), r)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Count(lines[0], "request_id=r1") != 1 || !strings.Contains(lines[0], "instance=i1") ||
		strings.Contains(lines[1], "request_id") {
		t.Errorf("log is\n%s", out.String())
	}
}

// TestLogNamesTheOperation that is worked on, once.
func TestLogNamesTheOperation(t *testing.T) {
	var out bytes.Buffer
	log := request.Log(slog.New(slog.NewTextHandler(&out, nil)))
	ctx := request.WithOperation(t.Context(), "op1")
	log.InfoContext(ctx, "works", "step", "boot")
	log.InfoContext(ctx, "says so itself", "operation", "op1")
	log.InfoContext(request.WithOperation(t.Context(), ""), "of none")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for n, want := range []int{1, 1, 0} {
		if got := strings.Count(lines[n], "operation="); got != want {
			t.Errorf("%q names %d operations, want %d", lines[n], got, want)
		}
	}
}
