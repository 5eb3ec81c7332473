package a2a

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

type anyInstance struct{}

func (anyInstance) Instance(_ context.Context, id instance.ID) (Agent, error) {
	return Agent{ID: id}, nil
}

// TestEveryRouteNamesItsScope: the tables have every route and every method
// there is, and no other; and a request without the scope is refused before
// anything is looked at.
func TestEveryRouteNamesItsScope(t *testing.T) {
	const id = "01900000-0000-7000-8000-00000000000a"
	var asked []string
	cfg := Config{
		Instances: anyInstance{}, PublicURL: "http://x", NothingRequired: true,
		Caller: func(context.Context) Caller {
			return Caller{Name: "nobody", May: func(scope string) bool { asked = append(asked, scope); return false }}
		},
	}
	h := New(cfg)
	cfg.fill()
	table, seen := scopesOfRoutes(), 0
	(&surface{cfg: cfg}).routes(func(path string, all methods) {
		for method := range all {
			seen++
			route := method + " " + plainPath(path)
			want, ok := table[route]
			if !ok {
				t.Errorf("%s names no scope", route)
				continue
			}
			asked = nil
			w := httptest.NewRecorder()
			url := "/agents/" + id + strings.NewReplacer("{", "", "}", "").Replace(plainPath(path))
			h.ServeHTTP(w, httptest.NewRequest(method, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"GetTask"}`)))
			switch {
			case want == scopeNone:
				if w.Code == http.StatusForbidden || len(asked) != 0 {
					t.Errorf("%s: %d, asked for %q", route, w.Code, asked)
				}
			case w.Code != http.StatusForbidden || len(asked) != 1 || asked[0] != want:
				t.Errorf("%s: %d %s, asked for %q, want %q", route, w.Code, w.Body, asked, want)
			case !strings.Contains(w.Body.String(), want) && method != http.MethodHead:
				t.Errorf("%s does not say what is needed: %s", route, w.Body)
			}
		}
	})
	if seen != len(table) {
		t.Errorf("there are %d routes, and %d in the table", seen, len(table))
	}
	named, n := scopesOfMethods(), 0
	for _, all := range []map[string]rpcMethod{rpcMethods(), rpcMethods03()} {
		for name := range all {
			n++
			if named[name] == "" {
				t.Errorf("the method %s names no scope", name)
			}
		}
	}
	if n != len(named) {
		t.Errorf("there are %d methods, and %d in the table", n, len(named))
	}
	if scopeFrom(table, "GET /new") != scopeAdmin {
		t.Error("what nobody has thought of is not the administrator's")
	}
}
