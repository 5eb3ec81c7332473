package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// TestReadingIsAllThereIs: another method is answered with a problem document and
// with those there are (RFC 9110, 15.5.6).
func TestReadingIsAllThereIs(t *testing.T) {
	h := reading(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(method, "/healthz", nil)); w.Code != http.StatusNoContent {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodOptions, "BREW"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/healthz", strings.NewReader("{}")))
		var p managementv1.Problem
		err := json.Unmarshal(w.Body.Bytes(), &p)
		if err != nil || w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" ||
			w.Header().Get("Content-Type") != "application/problem+json" || p.Code != "request.method" || p.Remediation == "" {
			t.Errorf("%s: %d, Allow %q: %s", method, w.Code, w.Header().Get("Allow"), w.Body)
		}
	}
}
