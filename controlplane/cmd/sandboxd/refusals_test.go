package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
)

// TestRefusalsHaveTheFormOfTheirSurface: what ends before a surface is answered
// as that surface answers. The daemon's own order stands: paths, then tokens.
func TestRefusalsHaveTheFormOfTheirSurface(t *testing.T) {
	tokens, err := auth.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const (
		domain  = "agents.test"
		id      = "01900000-0000-7000-8000-000000000001"
		problem = "application/problem+json"
	)
	nobody := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was let through") })
	m := http.NewServeMux()
	var cfg conformanceConfig
	agents := cfg.require(tokens, domain, nobody)
	m.Handle("/agents/", agents)
	m.Handle(id+"."+domain+"/", agents)
	m.Handle("/api/v1/", auth.Require(tokens, nobody))
	h := plain(domain, m)
	for _, c := range []struct {
		method, host, path string
		status             int
		form               string // rpc, rest, old or problem
	}{
		{http.MethodPost, "", "/agents/" + id, 401, "rpc"},
		{http.MethodPost, "", "/agents/" + id + "/", 401, "rpc"},
		{http.MethodGet, "", "/agents/" + id, 401, "rest"},
		{http.MethodPost, "", "/agents/" + id + "/message:send", 401, "rest"},
		{http.MethodGet, "", "/agents/" + id + "/.well-known/agent-card.json", 401, "rest"},
		{http.MethodGet, "", "/agents/" + id + "/v1/tasks", 401, "old"},
		{http.MethodPost, id + "." + domain, "/", 401, "rpc"},
		{http.MethodGet, id + "." + domain, "/tasks", 401, "rest"},
		{http.MethodGet, id + "." + domain, "/v1/tasks/x", 401, "old"},
		{http.MethodGet, "", "/agents/" + id + "/tasks/a%2fb", 400, "rest"},
		{http.MethodGet, "", "/agents/" + id + "/tasks/a%5Cb", 400, "rest"},
		{http.MethodGet, "", "/agents/" + id + "/v1/tasks/a%00", 400, "old"},
		{http.MethodPost, "", "/agents/" + id + "%00", 400, "rpc"},
		{http.MethodGet, id + "." + domain, "/tasks/a%2Fb", 400, "rest"},
		{http.MethodPost, "", "/api/v1/instances", 401, "problem"},
		{http.MethodGet, "", "/api/v1/instances/a%2fb", 400, "problem"},
		{http.MethodGet, "", "/agents%2fx", 400, "problem"},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader("{}"))
		if c.host != "" {
			r.Host = c.host
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var body struct {
			Code    any
			ID      json.RawMessage
			JSONRPC string
			Error   struct {
				Code          float64
				Status        string
				Message       string
				Details, Data []struct {
					Type   string `json:"@type"`
					Reason string
					Domain string
				}
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Errorf("%+v: %v %s", c, err, w.Body)
			continue
		}
		got := "problem"
		info := body.Error.Details
		switch {
		case body.JSONRPC == "2.0" && string(body.ID) == "null" && body.Error.Code == -32600:
			got, info = "rpc", body.Error.Data
		case body.Error.Code == float64(c.status) && body.Error.Status != "" && body.Code != nil:
			got = "old"
		case body.Error.Code == float64(c.status) && body.Error.Status != "":
			got = "rest"
		}
		if w.Code != c.status || got != c.form || (got == "problem") != (w.Header().Get("Content-Type") == problem) ||
			w.Header().Get("Cache-Control") != "no-store" || (c.status == 401) != (w.Header().Get("WWW-Authenticate") == auth.Challenge) {
			t.Errorf("%+v: %d %s %v %s", c, w.Code, got, w.Header(), w.Body)
			continue
		}
		if got == "problem" {
			continue
		}
		reason := map[int]string{401: "UNAUTHENTICATED", 400: "INVALID_REQUEST"}[c.status]
		if len(info) != 1 || info[0].Type != "type.googleapis.com/google.rpc.ErrorInfo" || info[0].Reason != reason ||
			info[0].Domain != "agentic-sandbox.aiwg.io" || body.Error.Message == "" {
			t.Errorf("%+v: %s", c, w.Body)
		}
	}
}
