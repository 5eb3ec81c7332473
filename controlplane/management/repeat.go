package management

import (
	"errors"
	"net/http"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
)

func (a *api) newOnce(store once.Store) *once.Handler {
	return once.New(once.Config{
		Store: store,
		Principal: func(r *http.Request) (string, string) {
			p, _ := auth.FromContext(r.Context())
			return p.TenantOrDefault(), p.Name
		},
		Bind: fleet.WithOperationID, Find: a.findOperation, Fail: a.failOnce,
		MaxBody: maxRequest, Log: a.Log,
		Bounds: once.Bounds{TTL: rememberFor, Entries: rememberEntries},
	})
}

// carryOutOnce holds requests with an Idempotency-Key against those before.
func (a *api) carryOutOnce(next http.Handler) http.Handler {
	if a.once != nil {
		return a.once.Wrap(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(once.Header) != "" {
			a.fail(w, r, &instance.Fault{
				Blame: instance.Host, Code: codeNoKeys, Hint: "send the request without one", Err: errNoKeys,
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// findOperation answers with the operation that an earlier request with the
// same key began, if it got that far.
func (a *api) findOperation(w http.ResponseWriter, r *http.Request, id string) bool {
	op, err := a.Operations.Operation(r.Context(), id)
	if f := instance.AsFault(err); err != nil && f.Code == codeNoOperation {
		return false
	}
	a.accepted(w, r, op, err)
	return true
}

// failOnce answers why a request with a key is not carried out.
func (a *api) failOnce(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, once.ErrForm):
		err = invalid{{Field: once.Header, Code: "parameter.form", Message: err.Error()}}.or(codeInvalidParameter)
	case errors.Is(err, once.ErrReused):
		err = callerFault(codeKeyReused, "make a new key for every request", "%w", err)
	case errors.Is(err, once.ErrInFlight):
		w.Header().Set("Retry-After", "1")
		err = callerFault(codeKeyAtWork, "send it again in a moment", "%w", err)
	case errors.Is(err, once.ErrBody):
		var tooLarge *http.MaxBytesError
		if !errors.As(err, &tooLarge) {
			err = callerFault(codeIncomplete, "send it again", "%w", err)
		}
	}
	a.fail(w, r, err)
}

var errNoKeys = errors.New("this server keeps no keys")
