package a2a_test

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

func TestVirtualHostNames(t *testing.T) {
	for host, ok := range map[string]bool{
		idA + ".agents.example":                    true,
		idA + ".agents.example:8420":               true,
		idA + ".agents.example.":                   true,
		strings.ToUpper(idA) + ".AGENTS.Example":   true,
		"agents.example":                           false,
		".agents.example":                          false,
		"x.agents.example":                         false,
		idA + ".x.agents.example":                  false,
		"x." + idA + ".agents.example":             false,
		idA + "agents.example":                     false,
		idA + ".agents.example.evil.example":       false,
		idA + ".other.example":                     false,
		idA:                                        false,
		"":                                         false,
		"[::1]:8420":                               false,
		idA + ".agents.example:1:2":                false,
		idA + "\x00.agents.example":                false,
		"01900000-0000-7000-8000-00000000000a/../": false,
	} {
		id, got := a2a.VirtualHost(host, "Agents.example:9000")
		if got != ok || ok && id != idA {
			t.Errorf("%q is %q, %t", host, id, got)
		}
	}
	if _, ok := a2a.VirtualHost(idA+".", ""); ok {
		t.Error("no domain has hosts")
	}
}

// onHost is a request to an origin of an agent.
func (r *rig) onHost(host, method, path, body string, header map[string]string) answer {
	r.t.Helper()
	h := map[string]string{"Host": host}
	maps.Copy(h, header)
	return r.do(method, path, body, h)
}

func TestVirtualHost(t *testing.T) {
	for domain, origin := range map[string]string{
		"agents.example":     "https://" + idA + ".agents.example:8443",
		"agents.example:444": "https://" + idA + ".agents.example:444",
	} {
		r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
			c.PublicURL, c.VirtualHostDomain = "https://sandbox.example:8443/", domain
			c.Limits.Inline = 100 << 10
		})
		host := idA + ".agents.example"
		card := r.onHost(host, get, "/.well-known/agent-card.json", "", nil)
		byPath := r.do(get, "/agents/"+idA+"/.well-known/agent-card.json", "", nil)
		for i := range 4 {
			if u := card.path("supportedInterfaces", i, "url"); u != origin {
				t.Errorf("interface %d on %s is at %v", i, domain, u)
			}
			if u := byPath.path("supportedInterfaces", i, "url"); u != "https://sandbox.example:8443/agents/"+idA {
				t.Errorf("interface %d by path is at %v", i, u)
			}
		}
		if card.header.Get("ETag") == byPath.header.Get("ETag") {
			t.Error("different cards have one tag")
		}
		if u := r.onHost(host, get, "/.well-known/agent.json", "", nil).path("url"); u != origin {
			t.Errorf("the card of 0.3 is at %v", u)
		}
		sent := r.onHost(host, post, "/message:send", message("sh:head -c 1000000 /dev/zero | tr '\\0' x"), good)
		id, _ := sent.path("task", "id").(string)
		if u := sent.path("task", "artifacts", 0, "metadata", "url"); u != origin+"/tasks/"+id+"/artifacts/stdout" {
			t.Errorf("the whole artifact is at %v: %.300s", u, sent.body)
		}
		for name, a := range map[string]answer{
			"REST":     r.onHost(host, get, "/tasks/"+id, "", good),
			"REST 0.3": r.onHost(host, get, "/v1/tasks/"+id, "", old),
			"artifact": r.onHost(host, get, "/tasks/"+id+"/artifacts/stdout", "", nil),
			"RPC":      r.onHost(host, post, "/", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+id+`"}}`, good),
			"RPC 0.3":  r.onHost(host, post, "/", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"`+id+`"}}`, old),
			"by path":  r.do(get, "/agents/"+idA+"/tasks/"+id, "", good),
		} {
			if a.status != 200 || a.path("error") != nil {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		for _, a := range []answer{
			r.onHost(idB+".agents.example", get, "/tasks/"+id, "", good),
			r.onHost(host, get, "/agents/"+idA+"/tasks/"+id, "", good), // no path form on an origin
			r.onHost(host, get, "/agents/"+idA+"/.well-known/agent-card.json", "", nil),
			r.onHost("01900000-0000-7000-8000-0000000000ff.agents.example", get, "/.well-known/agent-card.json", "", nil),
			r.onHost(host, get, "//tasks", "", good),
			r.onHost(host, get, "/", "", good),
		} {
			if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed || a.path("error", "message") == nil {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		if a := r.onHost(host, get, "/tasks/"+id, "", nil); a.status != 400 || !strings.Contains(string(a.body), "EXTENSION_REQUIRED") {
			t.Errorf("without %s: %d %s", extensions.Runtime, a.status, a.body)
		}
	}
}

func TestExtendedCard(t *testing.T) {
	base := "/agents/" + idA
	noParams := `{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}`
	ask := func(r *rig, user string) map[string]answer {
		h, h03 := with(map[string]string{"X-User": user}), map[string]string{"X-User": user, "X-A2A-Extensions": extensions.Runtime}
		return map[string]answer{
			"REST": r.do(get, base+"/extendedAgentCard", "", h), "RPC": r.do(post, base, noParams, h),
			"RPC params": r.do(post, base, strings.TrimSuffix(noParams, "}")+`,"params":{}}`, h),
			"REST 0.3":   r.do(get, base+"/v1/card", "", h03),
			"RPC 0.3":    r.do(post, base, strings.Replace(noParams, "GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard", 1), h03),
		}
	}
	reasons := func(r *rig, user, new, old string) {
		t.Helper()
		for name, a := range ask(r, user) {
			want := new
			if strings.HasSuffix(name, "0.3") {
				want = old
			}
			if !strings.Contains(string(a.body), `"reason":"`+want+`"`) {
				t.Errorf("%s: %d %s, want %s", name, a.status, a.body, want)
			}
		}
	}
	none := newRig(t, nil)
	reasons(none, "", "UNSUPPORTED_OPERATION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
		c.ExtendedSkills = func(a a2a.Agent) []a2a.Skill {
			if a.Name == "bare" {
				return nil
			}
			return []a2a.Skill{{ID: "more", Name: "More", Description: "More.", Tags: nil}}
		}
		caller := c.Caller
		c.Caller = func(ctx context.Context) a2a.Caller {
			x := caller(ctx)
			if x.Name == "nobody" {
				x.Name = ""
			}
			return x
		}
	})
	for name, a := range ask(r, "") {
		c := a.json
		if strings.HasPrefix(name, "RPC") {
			c, _ = a.path("result").(map[string]any)
		}
		if a.status != 200 || dig(c, "skills", 1, "id") != "more" || dig(c, "skills", 0, "id") != "echo" || dig(c, "name") != "demo" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if old := strings.HasSuffix(name, "0.3"); (dig(c, "supportsAuthenticatedExtendedCard") == true) != old || (dig(c, "capabilities", "extendedAgentCard") == true) == old {
			t.Errorf("%s does not say that there is an extended card: %s", name, a.body)
		}
	}
	for rig, want := range map[*rig]bool{none: false, r: true} {
		if c := rig.do(get, base+"/.well-known/agent-card.json", "", nil); c.path("capabilities", "extendedAgentCard") != want || c.path("skills", 1) != nil {
			t.Errorf("public card: %s", c.body)
		}
	}
	reasons(r, "nobody", "UNAUTHENTICATED", "UNAUTHENTICATED")
	base = "/agents/" + idHost
	reasons(r, "", "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
}
