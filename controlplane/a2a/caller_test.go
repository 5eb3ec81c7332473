package a2a_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
)

// TestCardsOnly: who may look at cards only is refused by every operation, and
// makes no task.
func TestCardsOnly(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
		caller := c.Caller
		c.Caller = func(ctx context.Context) a2a.Caller {
			x := caller(ctx)
			x.May = func(string) bool { return x.Name != "reader" }
			return x
		}
	})
	id, _ := r.send("x").path("task", "id").(string)
	reader := with(map[string]string{"X-User": "reader"})
	base := "/agents/" + idA
	for path, method := range map[string]string{
		"/message:send": post, "/message:stream": post, "/tasks": get, "/tasks/" + id: get, "/tasks/" + id + ":cancel": post,
		"/tasks/" + id + ":subscribe": get, "/tasks/" + id + "/artifacts/stdout": get, "/v1/tasks/" + id: get,
		"/tasks/" + id + "/pushNotificationConfigs": get, "/extendedAgentCard": get,
	} {
		h := reader
		if path == "/v1/tasks/"+id {
			h = with(map[string]string{"X-User": "reader", "A2A-Version": "0.3"})
		}
		a := r.do(method, base+path, message("x"), h)
		if a.status != http.StatusForbidden || a.path("error", "status") != "PERMISSION_DENIED" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	for _, method := range []string{"SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "Nope"} {
		if a := r.rpc(method, message("x"), reader); a.status != http.StatusForbidden || a.path("error", "data", 0, "reason") != "PERMISSION_DENIED" {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
	}
	if a := r.do(get, base+"/.well-known/agent-card.json", "", reader); a.status != http.StatusOK {
		t.Errorf("the card: %d %s", a.status, a.body)
	}
	if n := r.do(get, base+"/tasks", "", good).path("totalSize"); n != 1.0 {
		t.Errorf("there are %v tasks", n)
	}
}

// TestTenants: two principals of one name in two tenants do not meet, and who
// may see all tasks of a tenant sees no other's.
func TestTenants(t *testing.T) {
	r := newRig(t, func(c *a2a.Config, _ *engine.Config) {
		c.Caller = func(ctx context.Context) a2a.Caller {
			tenant, name, _ := strings.Cut(user(ctx), "/")
			return a2a.Caller{Tenant: tenant, Name: name, AllTasks: name == "admin"}
		}
	})
	as := func(who string) map[string]string { return with(map[string]string{"X-User": who}) }
	base := "/agents/" + idA
	id, _ := r.do(post, base+"/message:send", message("x"), as("blue/alice")).path("task", "id").(string)
	if id == "" {
		t.Fatal("no task was made")
	}
	for who, sees := range map[string]bool{
		"blue/alice": true, "blue/admin": true,
		"blue/bob": false, "red/alice": false, "red/admin": false, "/alice": false, "/admin": false, "default/admin": false,
	} {
		status, total := http.StatusNotFound, 0.0
		if sees {
			status, total = http.StatusOK, 1.0
		}
		for path, method := range map[string]string{"": get, ":subscribe": get, "/artifacts/stdout": get, ":cancel": post} {
			a := r.do(method, base+"/tasks/"+id+path, "", as(who))
			if sees && (path == ":cancel" || path == ":subscribe") { // it has ended
				if a.status == http.StatusNotFound {
					t.Errorf("%s finds no task at %q", who, path)
				}
			} else if a.status != status && path != "/artifacts/stdout" || !sees && a.status != http.StatusNotFound {
				t.Errorf("%s at %q: %d %s, want %d", who, path, a.status, a.body, status)
			}
		}
		if got := r.do(get, base+"/tasks", "", as(who)).path("totalSize"); got != total {
			t.Errorf("%s lists %v tasks, want %v", who, got, total)
		}
	}
}
