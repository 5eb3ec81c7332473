package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

func TestFleetFlags(t *testing.T) {
	for args, ok := range map[string]bool{"--orphan-grace=0": true, "--orphan-grace=1h": true, "--orphan-grace=-1s": false} {
		var c fleetConfig
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.flags(f)
		if err := f.Parse([]string{args}); err != nil {
			t.Fatal(err)
		}
		if err := c.complete(); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestWhatUsesAMachine: what acts or streams does, what reads does not.
func TestWhatUsesAMachine(t *testing.T) {
	const id = "018fc0a2-7777-7aaa-bbbb-ccccddddeeee"
	d := &daemon{}
	d.cfg.Surface.Domain = "agents.test"
	for name, c := range map[string]struct {
		method, url string
		used        bool
	}{
		"send":            {http.MethodPost, "http://h/agents/" + id + "/message:send", true},
		"json-rpc":        {http.MethodPost, "http://h/agents/" + id, true},
		"subscribe":       {http.MethodGet, "http://h/agents/" + id + "/tasks/t:subscribe", true},
		"virtual host":    {http.MethodPost, "http://" + id + ".agents.test/message:stream", true},
		"read a task":     {http.MethodGet, "http://h/agents/" + id + "/tasks/t", false},
		"card":            {http.MethodGet, "http://h/agents/" + id + "/.well-known/agent-card.json", false},
		"no id":           {http.MethodPost, "http://h/agents/x/message:send", false},
		"nothing":         {http.MethodPost, "http://h/agents/", false},
		"another surface": {http.MethodPost, "http://h/api/v1/instances", false},
	} {
		r := httptest.NewRequest(c.method, c.url, http.NoBody)
		by := func(scope auth.Scope) (instance.ID, bool) {
			return d.usedBy(r.WithContext(auth.WithPrincipal(r.Context(), auth.Principal{Name: "p", Scopes: []auth.Scope{scope}})))
		}
		if got, used := by(auth.ScopeInvoke); used != c.used || (used && got != id) {
			t.Errorf("%s: %q, %t", name, got, used)
		}
		if got, used := by(auth.ScopeFleetRead); used {
			t.Errorf("%s: who may not invoke %q uses it", name, got)
		}
	}
}
