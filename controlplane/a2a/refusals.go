package a2a

import (
	"net/http"
	"strings"
)

// Refusals are answers to requests that do not get to the surface, because what
// stands before it refuses them. They have its forms.
type Refusals struct{ s *surface }

// NewRefusals returns those of a surface with that domain of virtual hosts;
// empty: there are none.
func NewRefusals(domain string) Refusals {
	cfg := Config{VirtualHostDomain: domain}
	cfg.fill()
	return Refusals{&surface{cfg: cfg}}
}

// Concern reports whether a request is one to an agent, by path or by host.
func (x Refusals) Concern(r *http.Request) bool {
	_, virtual := VirtualHost(r.Host, x.s.cfg.VirtualHostDomain)
	return virtual || strings.HasPrefix(r.URL.EscapedPath(), "/agents/")
}

// Unauthenticated answers a request of nobody known.
func (x Refusals) Unauthenticated(w http.ResponseWriter, r *http.Request, message string) {
	x.answer(w, r, &fault{
		rpc: rpcInvalid, http: http.StatusUnauthorized, rpcHTTP: http.StatusUnauthorized, status: "UNAUTHENTICATED",
		reason: "UNAUTHENTICATED", domain: domainOwn, message: message,
	})
}

// BadPath answers a request whose path is not taken.
func (x Refusals) BadPath(w http.ResponseWriter, r *http.Request, message string) {
	x.answer(w, r, &fault{
		rpc: rpcInvalid, http: http.StatusBadRequest, rpcHTTP: http.StatusBadRequest, status: invalidArgument,
		reason: "INVALID_REQUEST", domain: domainOwn, message: message,
	})
}

// answer is in the form of the binding that the request is for. Nothing of a
// body has been read, so JSON-RPC cannot say which request it answers.
func (x Refusals) answer(w http.ResponseWriter, r *http.Request, f *fault) {
	x.s.virtualHosts(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, below, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/agents/"), "/")
		if r.Method == http.MethodPost && below == "" {
			x.s.rpcRefuse(w, r, []byte("null"), f)
			return
		}
		x.s.refuse(w, r, f)
	})).ServeHTTP(w, r)
}
