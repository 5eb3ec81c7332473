// Package auth says who makes a request: it keeps the tokens, checks them
// and puts the principal into the request's context. It knows no instances
// and no tasks, and decides only whether there is a principal; what one may do
// is asked where it is done, by scope.
package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

// Scope names what a principal may do.
type Scope string

// The scopes. ScopeAdmin includes all others.
const (
	ScopeAdmin       Scope = "admin"
	ScopeFleetRead   Scope = "fleet:read"
	ScopeFleetWrite  Scope = "fleet:write"
	ScopeInvoke      Scope = "agents:invoke"
	ScopeMetricsRead Scope = "metrics:read"
	// ScopeReadHost shows which host a machine runs on, where the operator
	// discloses it at all (runtime/v1, section 8.2).
	ScopeReadHost Scope = "fleet:read-host"
)

// Principal is who makes a request.
type Principal struct {
	Name   string
	Scopes []Scope
	// Tenant is whose instances it may see; empty for the default tenant.
	Tenant string
}

// TenantOrDefault is the tenant, by its name.
func (p Principal) TenantOrDefault() string { return cmp.Or(p.Tenant, instance.DefaultTenant) }

// Has reports whether the principal may do what scope names.
func (p Principal) Has(scope Scope) bool {
	return slices.Contains(p.Scopes, scope) || slices.Contains(p.Scopes, ScopeAdmin)
}

type contextKey struct{}

// WithPrincipal returns ctx with p in it.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns who makes the request that ctx belongs to.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(Principal)
	return p, ok
}

// Challenge is the WWW-Authenticate header of an answer 401.
const Challenge = `Bearer realm="agentic-sandbox"`

// Remedy says how to get past an answer 401.
const Remedy = "send the header Authorization: Bearer <token>; " +
	"the daemon's owner finds one in admin.token of its state directory, and makes others with `sandboxd tokens add`"

// Verifier knows tokens.
type Verifier interface {
	// Verify returns the principal that a token belongs to.
	Verify(token string) (Principal, bool)
}

// Denial answers 401 to a request that carries no valid token. The challenge is
// in the header of the answer already; cause is what is wrong with the request.
type Denial func(w http.ResponseWriter, r *http.Request, cause string)

// Require lets only requests with a valid bearer token pass, with the
// principal in their context. Others are denied with a problem document.
func Require(v Verifier, next http.Handler) http.Handler { return RequireOr(v, deny, next) }

// RequireOr is Require for surfaces whose errors have another form.
func RequireOr(v Verifier, denial Denial, next http.Handler) http.Handler {
	deny := func(w http.ResponseWriter, r *http.Request, challenge, cause string) {
		w.Header().Set("WWW-Authenticate", challenge)
		denial(w, r, cause)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers := r.Header.Values("Authorization")
		if len(headers) == 0 {
			deny(w, r, Challenge, "the request carries no token")
			return
		}
		scheme, token, _ := strings.Cut(headers[0], " ")
		if len(headers) > 1 || !strings.EqualFold(scheme, "Bearer") {
			deny(w, r, Challenge+`, error="invalid_request"`, "the Authorization header is not of the form: Bearer <token>")
			return
		}
		p, ok := v.Verify(strings.TrimSpace(token))
		if !ok {
			cause := "the token is not known here"
			if e, ok := v.(interface{ Expired(token string) bool }); ok && e.Expired(strings.TrimSpace(token)) {
				cause = "the token has expired"
			}
			deny(w, r, Challenge+`, error="invalid_token"`, cause)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
	})
}

// problem is the part of RFC 9457 that is needed here; the management API's
// document describes all of it.
type problem struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Status      int    `json:"status"`
	Detail      string `json:"detail"`
	Code        string `json:"code"`
	Blame       string `json:"blame"`
	Cause       string `json:"cause"`
	Remediation string `json:"remediation"`
	RequestID   string `json:"request_id,omitempty"`
}

func deny(w http.ResponseWriter, r *http.Request, cause string) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusUnauthorized)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(problem{ // the client has gone, nobody is left to tell
		Type:   "https://agentic-sandbox.aiwg.io/problems/auth.required",
		Title:  "A token is required",
		Status: http.StatusUnauthorized,
		Detail: cause + " (" + Remedy + ")",
		Code:   "auth.required", Blame: "caller", Cause: cause, Remediation: Remedy, RequestID: request.ID(r.Context()),
	})
}
