package management

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gorilla/mux"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/answer"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

type contextKey int

const notesKey contextKey = iota

// notes is what the handlers learn of a request and its line in the log tells.
type notes struct {
	route     string // template, without the base path
	instance  instance.ID
	operation string
}

func notesOf(ctx context.Context) *notes {
	if n, ok := ctx.Value(notesKey).(*notes); ok {
		return n
	}
	return &notes{}
}

// note remembers which route a request has taken.
func (a *api) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route := mux.CurrentRoute(r); route != nil {
			if template, err := route.GetPathTemplate(); err == nil {
				notesOf(r.Context()).route = strings.TrimPrefix(template, managementv1.BasePath)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// joinTags makes one line of the headers that may be sent in several (RFC 9110,
// 5.3), for the generated code wants one.
func joinTags(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"If-Match", "If-None-Match"} {
			if lines := r.Header.Values(name); len(lines) > 1 {
				r.Header.Set(name, strings.Join(lines, ", "))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// record writes one line for each request: changes and failures at level
// info, reads at level debug. Queries and headers stay out, they may hold
// what nobody should read later.
func (a *api) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &answer.Recorder{ResponseWriter: w}
		n := &notes{}
		r = r.WithContext(context.WithValue(r.Context(), notesKey, n))
		w.Header().Set("X-Content-Type-Options", "nosniff")
		defer func() {
			took := time.Since(start)
			a.Observe(Seen{Route: n.route, Method: r.Method, Status: rec.Status, Took: took, Stream: rec.Stream})
			level := slog.LevelInfo
			if r.Method == http.MethodGet && rec.Status < http.StatusBadRequest {
				level = slog.LevelDebug
			}
			principal, _ := auth.FromContext(r.Context())
			attrs := []slog.Attr{
				slog.String("method", r.Method), slog.String("path", clip(r.URL.Path)), slog.Int("status", rec.Status),
				slog.Int64("bytes", rec.Bytes), slog.Duration("duration", took), slog.String("principal", principal.Name),
			}
			if n.instance != "" {
				attrs = append(attrs, slog.String("instance", n.instance.String()))
			}
			if n.operation != "" {
				attrs = append(attrs, slog.String("operation", n.operation))
			}
			a.Log.LogAttrs(r.Context(), level, "request", attrs...)
		}()
		next.ServeHTTP(rec, r)
	})
}

// recoverPanic turns a panic into an answer and a line in the log.
func (a *api) recoverPanic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
				panic(p)
			}
			a.Log.ErrorContext(r.Context(), "request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if rec, ok := w.(*answer.Recorder); ok && rec.Status != 0 {
				// Half an answer is out; only a broken connection tells the truth.
				panic(http.ErrAbortHandler)
			}
			a.fail(w, r, fmt.Errorf("panic: %v", p))
		}()
		next.ServeHTTP(w, r)
	})
}

// authenticate asks for a principal, whatever the path. From then on the fleet
// finds only what belongs to the principal's tenant.
func (a *api) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := auth.FromContext(r.Context()); !ok {
			w.Header().Set("WWW-Authenticate", auth.Challenge)
			a.fail(w, r, callerFault(codeUnauthorized, auth.Remedy, "the request carries no token"))
			return
		}
		next.ServeHTTP(w, r.WithContext(fleet.WithTenant(r.Context(), tenant(r))))
	})
}

// authorize asks for the scope that a route needs.
func (a *api) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		principal, _ := auth.FromContext(r.Context())
		scope, ok := a.scopes[r.Method+" "+notesOf(r.Context()).route]
		if !ok {
			scope = auth.ScopeAdmin // a route that nobody has thought of
		}
		if !principal.Has(scope) {
			a.fail(w, r, &instance.Fault{
				Blame: instance.Caller, Code: codeForbidden, Hint: "use a token that has it",
				Err: fmt.Errorf("the token of %q lacks the scope %q", principal.Name, scope),
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tenant is whose instances a request may see.
func tenant(r *http.Request) string {
	principal, _ := auth.FromContext(r.Context())
	return principal.TenantOrDefault()
}
