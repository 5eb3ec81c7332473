package auth_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
)

type onlyToken string

func (o onlyToken) Verify(token string) (auth.Principal, bool) {
	return auth.Principal{Name: "somebody"}, token == string(o)
}

// FuzzRequire: only a request with the one header that holds the token passes,
// and one that does not is answered 401 with a challenge, and learns nothing of
// what it sent.
func FuzzRequire(f *testing.F) {
	const token = "a-token-of-somebody"
	for _, h := range []string{"Bearer " + token, "bearer  " + token + " ", "Basic " + token, token, "Bearer", "Bearer " + token + "x", "", "Bearer\t" + token} {
		f.Add(h, "")
	}
	f.Add("Bearer "+token, "Bearer "+token)
	f.Fuzz(func(t *testing.T, first, second string) {
		passed := false
		h := auth.Require(onlyToken(token), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			p, ok := auth.FromContext(r.Context())
			passed = ok && p.Name == "somebody"
		}))
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		req.Header["Authorization"] = []string{first}
		if second != "" {
			req.Header["Authorization"] = append(req.Header["Authorization"], second)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		scheme, rest, _ := strings.Cut(first, " ")
		if want := second == "" && strings.EqualFold(scheme, "bearer") && strings.TrimSpace(rest) == token; passed != want {
			t.Fatalf("%q, %q passes: %t", first, second, passed)
		}
		if passed {
			return
		}
		if w.Code != http.StatusUnauthorized || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer realm=") {
			t.Fatalf("%q: %d %v", first, w.Code, w.Header())
		}
		if strings.Contains(w.Body.String(), token) {
			t.Fatalf("%q is answered %s", first, w.Body)
		}
	})
}
