package management

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

type contextKey int

const requestIDKey contextKey = iota

var requestIDRule = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID names the request in answers and in the log.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey).(string)
	return id
}

func (a *api) logFrom(r *http.Request) *slog.Logger {
	return a.Log.With("request_id", requestID(r.Context()))
}

// identify gives every request an id, the client's own if it is harmless.
func (a *api) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !requestIDRule.MatchString(id) {
			id = uuid.NewString()
		}
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestIDKey, id)))
	})
}

// record writes one line for each request: changes and failures at level
// info, reads at level debug. Queries and headers stay out, they may hold
// what nobody should read later.
func (a *api) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			level := slog.LevelInfo
			if r.Method == http.MethodGet && rec.status < http.StatusBadRequest {
				level = slog.LevelDebug
			}
			principal, _ := auth.FromContext(r.Context())
			a.logFrom(r).Log(r.Context(), level, "request",
				"method", r.Method, "path", r.URL.Path, "status", rec.status, "bytes", rec.bytes,
				"duration", time.Since(start), "principal", principal.Name)
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
			a.logFrom(r).Error("request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if rec, ok := w.(*recorder); ok && rec.status != 0 {
				// Half an answer is out; only a broken connection tells the truth.
				panic(http.ErrAbortHandler)
			}
			a.fail(w, r, fmt.Errorf("panic: %v", p))
		}()
		next.ServeHTTP(w, r)
	})
}

// authorize asks for the scope that a route needs: one to look, one to change.
func (a *api) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		principal, ok := auth.FromContext(r.Context())
		if !ok {
			w.Header().Set("WWW-Authenticate", auth.Challenge)
			a.fail(w, r, callerFault(codeUnauthorized, auth.Remedy, "the request carries no token"))
			return
		}
		scope := auth.ScopeFleetWrite
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			scope = auth.ScopeFleetRead
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

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
