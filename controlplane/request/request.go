// Package request names requests, so that what a client was answered, what the
// log says and what another service remembers can be put together. It knows
// nothing of what a request asks for.
package request

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"

	"github.com/google/uuid"
)

// Header carries the name of a request, both ways.
const Header = "X-Request-Id"

// LogKey is the attribute under which it stands in the log.
const LogKey = "request_id"

type contextKey struct{}

// rule is what a client may call its request: nothing that could forge a line
// of a log.
var rule = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ID is the name of the request that ctx belongs to; empty if it has none.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

// Identify gives every request a name, the client's own if it is harmless,
// and tells the client. A request that has one keeps it.
func Identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := ID(r.Context()); id != "" {
			w.Header().Set(Header, id)
			next.ServeHTTP(w, r)
			return
		}
		id := r.Header.Get(Header)
		if !rule.MatchString(id) {
			id = uuid.NewString()
		}
		w.Header().Set(Header, id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, id)))
	})
}

type operationKey struct{}

// OperationKey is the attribute under which an operation stands in the log.
const OperationKey = "operation"

// WithOperation returns ctx for work on the operation of that id: what is logged
// with it names the operation.
func WithOperation(ctx context.Context, id string) context.Context {
	if id == "" {
		return ctx
	}
	return context.WithValue(ctx, operationKey{}, id)
}

// Log returns a logger that adds the name of the request, and the operation that
// is worked on, to every line that is logged with their context. A logger that does so already is returned as it is.
func Log(l *slog.Logger) *slog.Logger {
	if _, ok := l.Handler().(handler); ok {
		return l
	}
	return slog.New(handler{l.Handler()})
}

type handler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	op, _ := ctx.Value(operationKey{}).(string)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == OperationKey { // the line says so itself
			op = ""
		}
		return op != ""
	})
	if id := ID(ctx); id != "" || op != "" {
		r = r.Clone()
		if id != "" {
			r.AddAttrs(slog.String(LogKey, id))
		}
		if op != "" {
			r.AddAttrs(slog.String(OperationKey, op))
		}
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // what it says is not ours
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
