package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/adaptercommand"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/echo"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/scripted"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

func TestConformanceFlags(t *testing.T) {
	const local = "127.0.0.1:8420"
	for _, c := range []struct {
		args, listen, public string
		ok                   bool
	}{
		{"", "0.0.0.0:8420", "https://sandbox.example.com", true},
		{"--conformance", "0.0.0.0:8420", "https://sandbox.example.com", true},
		{"--conformance --conformance-anonymous=kit", local, "", true},
		{"--conformance --conformance-anonymous=kit", "[::1]:0", "http://localhost:9000", true},
		{"--conformance-anonymous=kit", local, "", false},
		{"--conformance --conformance-anonymous=admin", local, "", false},
		{"--conformance --conformance-anonymous=Kit", local, "", false},
		{"--conformance --conformance-anonymous=kit", "0.0.0.0:8420", "", false},
		{"--conformance --conformance-anonymous=kit", ":8420", "", false},
		{"--conformance --conformance-anonymous=kit", "localhost:8420", "", false},
		{"--conformance --conformance-anonymous=kit", "10.0.0.1:8420", "", false},
		{"--conformance --conformance-anonymous=kit", local, "https://sandbox.example.com", false},
		{"--conformance --conformance-anonymous=kit", local, "http://%", false},
	} {
		var cfg conformanceConfig
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		cfg.flags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		if err := cfg.complete(c.listen, c.public); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

type oneAgent struct{ agent a2a.Agent }

func (o oneAgent) Instance(_ context.Context, id instance.ID) (a2a.Agent, error) {
	if id != o.agent.ID {
		return a2a.Agent{}, a2a.ErrUnknownInstance
	}
	return o.agent, nil
}

type someFacts struct {
	management.Host
	checks []fleet.Check
}

func (s someFacts) Facts(context.Context) (fleet.HostFacts, error) {
	return fleet.HostFacts{Checks: s.checks}, nil
}

// TestConformanceSaysSo: everybody is told, and without the flag nothing is
// changed.
func TestConformanceSaysSo(t *testing.T) {
	for _, cfg := range []conformanceConfig{{}, {Enabled: true}, {Enabled: true, Anonymous: "kit"}} {
		plain := a2a.Agent{ID: "x", Description: "A machine.", Runners: []string{"echo"}, Skills: []a2a.Skill{{ID: "echo"}}}
		agents := cfg.instances(oneAgent{plain})
		agent, err := agents.Instance(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		said := strings.HasPrefix(agent.Description, conformanceNotice) && strings.HasSuffix(agent.Description, " A machine.")
		if said != cfg.Enabled || (len(agent.Runners) == 2) != cfg.Enabled || (len(agent.Skills) == 2) != cfg.Enabled {
			t.Errorf("%+v: the agent is %+v", cfg, agent)
		}
		if cfg.Enabled && agent.Skills[1].ID != "conformance.scripted" {
			t.Errorf("skills are %+v", agent.Skills)
		}
		if len(plain.Skills) != 1 || len(plain.Runners) != 1 {
			t.Errorf("the agent itself was changed: %+v", plain)
		}
		if _, err := agents.Instance(t.Context(), "y"); !errors.Is(err, a2a.ErrUnknownInstance) {
			t.Errorf("another instance: %v", err)
		}
		if got := cfg.runners(echo.Runner{}); (len(got) == 2) != cfg.Enabled || got[len(got)-1].Name() != "echo" {
			t.Errorf("%+v: %d runners", cfg, len(got))
		}
		for _, checks := range [][]fleet.Check{nil, {{Status: "error"}, {Status: "ok"}}, {{Status: "ok"}}, {{Status: "warning"}}} {
			facts, err := cfg.host(someFacts{checks: checks}).Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for i, c := range facts.Checks {
				found = found || c.Name == "conformance" && strings.Contains(c.Detail, cfg.Anonymous)
				if i > 0 && c.Status != "ok" && facts.Checks[i-1].Status == "ok" {
					t.Errorf("not worst first: %+v", facts.Checks)
				}
			}
			if found != cfg.Enabled || len(facts.Checks) != len(checks)+map[bool]int{true: 1}[cfg.Enabled] {
				t.Errorf("%+v: checks are %+v", cfg, facts.Checks)
			}
		}
		var out bytes.Buffer
		cfg.announce(t.Context(), slog.New(slog.NewTextHandler(&out, nil)))
		if strings.Contains(out.String(), "level=WARN") != cfg.Enabled || strings.Contains(out.String(), "principal=kit") != (cfg.Anonymous != "") {
			t.Errorf("%+v: announced is %q", cfg, out.String())
		}
	}
}

func TestConformanceAnonymous(t *testing.T) {
	tokens, err := auth.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	type request struct {
		peer, host, header string
	}
	const here, host = "127.0.0.1:5555", "127.0.0.1:8420"
	for _, c := range []struct {
		name    string
		cfg     conformanceConfig
		request request
		ok      bool
	}{
		{"no token here", conformanceConfig{Anonymous: "kit"}, request{here, host, ""}, true},
		{"by name", conformanceConfig{Anonymous: "kit"}, request{here, "localhost:8420", ""}, true},
		{"IPv6", conformanceConfig{Anonymous: "kit"}, request{"[::1]:5", "[::1]", ""}, true},
		{"mapped", conformanceConfig{Anonymous: "kit"}, request{"[::ffff:127.0.0.1]:5", host, ""}, true},
		{"virtual host", conformanceConfig{Anonymous: "kit"}, request{here, "01900000-0000-7000-8000-000000000001.agents.test", ""}, true},
		{"off", conformanceConfig{Enabled: true}, request{here, host, ""}, false},
		{"from elsewhere", conformanceConfig{Anonymous: "kit"}, request{"10.0.0.1:5", host, ""}, false},
		{"another name", conformanceConfig{Anonymous: "kit"}, request{here, "evil.example:8420", ""}, false},
		{"a wrong token", conformanceConfig{Anonymous: "kit"}, request{here, host, "Authorization: Bearer x"}, false},
		{"an empty token", conformanceConfig{Anonymous: "kit"}, request{here, host, "Authorization: "}, false},
		{"a page", conformanceConfig{Anonymous: "kit"}, request{here, host, "Origin: http://evil.example"}, false},
		{"a browser", conformanceConfig{Anonymous: "kit"}, request{here, host, "Sec-Fetch-Site: cross-site"}, false},
		{"a proxy", conformanceConfig{Anonymous: "kit"}, request{here, host, "X-Forwarded-For: 10.0.0.1"}, false},
		{"another proxy", conformanceConfig{Anonymous: "kit"}, request{here, host, "Forwarded: for=10.0.0.1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var who []auth.Principal
			h := c.cfg.require(tokens, "agents.test", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				p, _ := auth.FromContext(r.Context())
				who = append(who, p)
			}))
			r := httptest.NewRequest(http.MethodGet, "/agents/x", nil)
			r.RemoteAddr, r.Host = c.request.peer, c.request.host
			if name, value, ok := strings.Cut(c.request.header, ": "); ok {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if (w.Code == http.StatusOK) != c.ok {
				t.Fatalf("status %d %s", w.Code, w.Body)
			}
			if !c.ok {
				return
			}
			if p := who[0]; p.Name != "kit" || !p.Has(auth.ScopeInvoke) || p.Has(auth.ScopeFleetRead) || p.Has(auth.ScopeAdmin) {
				t.Errorf("the principal is %+v", p)
			}
		})
	}
}

// TestConformanceRefusesBadEnvelopes: an id that is a script does not make a
// message with an adapter envelope one.
func TestConformanceRefusesBadEnvelopes(t *testing.T) {
	claims := func(cfg conformanceConfig, m task.Message) string {
		for _, one := range cfg.runners(adaptercommand.Runner{}, echo.Runner{}) {
			if one.Claims(runner.Request{Message: m}) {
				return one.Name()
			}
		}
		return ""
	}
	envelope := task.Metadata{adaptercommand.URI: json.RawMessage(`{"mode":"apply"}`)}
	for _, c := range []struct {
		id             string
		metadata       task.Metadata
		scripts, plain string
	}{
		{"tck-complete-task-1", envelope, "adapter-command", "adapter-command"},
		{"tck-complete-task-1", nil, scripted.Name, "echo"},
		{"m1", envelope, "adapter-command", "adapter-command"},
		{"m1", nil, "echo", "echo"},
	} {
		m := task.Message{MessageID: c.id, Metadata: c.metadata, Parts: []task.Part{task.TextPart("x")}}
		if got := claims(conformanceConfig{Enabled: true}, m); got != c.scripts {
			t.Errorf("%+v: taken by %q", c, got)
		}
		if got := claims(conformanceConfig{}, m); got != c.plain {
			t.Errorf("%+v: without the flag taken by %q", c, got)
		}
	}
}
