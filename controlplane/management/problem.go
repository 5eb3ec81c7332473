package management

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

// callerFault is the fault of a request that no part of the fleet has seen.
func callerFault(code, hint, format string, args ...any) *instance.Fault {
	return &instance.Fault{
		Blame: instance.Caller, Code: code, Hint: hint,
		Err: fmt.Errorf(format, args...),
	}
}

// invalid is a request that breaks rules, field by field.
type invalid []fleet.FieldError

func (e invalid) Error() string {
	parts := make([]string, 0, len(e))
	for _, f := range e {
		parts = append(parts, f.Field+": "+f.Message)
	}
	return strings.Join(parts, "; ")
}

// Fields makes invalid a fleet.FieldErrors.
func (e invalid) Fields() []fleet.FieldError { return e }

// or returns a fault when there are errors.
func (e invalid) or(code string) error {
	if len(e) == 0 {
		return nil
	}
	return &instance.Fault{Blame: instance.Caller, Code: code, Err: e}
}

// and adds the field errors that another check has found.
func (e invalid) and(err error) invalid {
	var fields fleet.FieldErrors
	if errors.As(err, &fields) {
		return append(e, fields.Fields()...)
	}
	return e
}

// fail answers with the problem that err is. What nobody has explained stays
// in the log: it may hold paths and addresses, and tells a caller nothing.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	fault := asFault(err)
	if r.Context().Err() != nil && (fault.Code == codeInternal || errors.Is(err, context.Canceled)) {
		// The client has gone or the server is: what came of that is for the
		// log alone.
		a.Log.DebugContext(r.Context(), "request abandoned", "error", err)
		fault = &instance.Fault{Blame: instance.Host, Code: codeAbandoned, Hint: "try again", Err: errAbandoned}
	}
	status := statusOf(fault)
	if status >= http.StatusInternalServerError && fault.Code != codeAbandoned {
		a.Log.ErrorContext(r.Context(), "request failed", "code", fault.Code, "blame", string(fault.Blame), "error", err)
	}
	p := managementv1.Problem{
		Type:        managementv1.ProblemType + fault.Code,
		Title:       titleOf(fault.Code, status),
		Status:      status,
		Code:        fault.Code,
		Blame:       managementv1.Blame(fault.Blame),
		RequestId:   request.ID(r.Context()),
		Remediation: inHTTP(fault.Hint),
	}
	if fault.Code == codeInternal {
		p.Cause = "the server failed in a way that nobody has foreseen"
		p.Remediation = fmt.Sprintf("look for request_id %s in the server's log", p.RequestId)
		p.Detail = p.Cause + " (" + p.Remediation + ")"
	} else {
		p.Cause = inHTTP(fault.Err.Error())
		p.Detail = inHTTP(fault.Error())
	}
	var fields fleet.FieldErrors
	if errors.As(err, &fields) {
		for _, f := range fields.Fields() {
			p.Errors = append(p.Errors, managementv1.FieldError{Field: f.Field, Message: f.Message, Code: f.Code})
		}
	}
	a.problem(w, r, p)
}

func (a *api) problem(w http.ResponseWriter, r *http.Request, p managementv1.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "5")
	}
	w.WriteHeader(p.Status)
	if err := encode(w, p); err != nil {
		a.Log.DebugContext(r.Context(), "cannot write problem", "error", err)
	}
}

// answer writes v as JSON.
func (a *api) answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := encode(w, v); err != nil {
		a.Log.DebugContext(r.Context(), "cannot write answer", "error", err)
	}
}

// encode leaves <, > and & as they are: no answer here is part of a page.
func encode(w http.ResponseWriter, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// accepted answers with an operation and where to find it again.
func (a *api) accepted(w http.ResponseWriter, r *http.Request, op fleet.Operation, err error) {
	if err != nil {
		a.fail(w, r, err)
		return
	}
	n := notesOf(r.Context())
	n.operation, n.instance = op.ID, op.Instance
	w.Header().Set("Location", managementv1.BasePath+"/operations/"+op.ID)
	a.answer(w, r, http.StatusAccepted, operationJSON(op))
}

// badParameter answers what the generated code could not read.
func (a *api) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	field := "request"
	var (
		format   *managementv1.InvalidParamFormatError
		required *managementv1.RequiredParamError
		header   *managementv1.RequiredHeaderError
		many     *managementv1.TooManyValuesForParamError
	)
	switch {
	case errors.As(err, &format):
		field = format.ParamName
	case errors.As(err, &required):
		field = required.ParamName
	case errors.As(err, &header):
		field = header.ParamName
	case errors.As(err, &many):
		field = many.ParamName
	}
	a.fail(w, r, invalid{{Field: field, Message: wantedBy(err), Code: "parameter.invalid"}}.or(codeInvalidParameter))
}

// wantedBy says what a parameter must be. The errors of the generated code name
// functions of Go.
func wantedBy(err error) string {
	var (
		number   *strconv.NumError
		required *managementv1.RequiredParamError
		format   *managementv1.InvalidParamFormatError
	)
	switch {
	case errors.As(err, &number) && number.Func == "ParseBool":
		return fmt.Sprintf("want true or false, found %q", clip(number.Num))
	case errors.As(err, &number) && errors.Is(err, strconv.ErrRange):
		return fmt.Sprintf("want a whole number that is not so large, found %q", clip(number.Num))
	case errors.As(err, &number):
		return fmt.Sprintf("want a whole number, found %q", clip(number.Num))
	case errors.As(err, &required):
		return "want it, it is required"
	case errors.As(err, &format):
		return "want one value of the form that the document says"
	}
	return err.Error()
}

func (a *api) noRoute(w http.ResponseWriter, r *http.Request) {
	a.fail(w, r, callerFault(codeNoRoute, "see "+managementv1.BasePath+"/openapi.yaml for what there is",
		"nothing is served at path %q", r.URL.Path))
}

// wrongMethod says which methods there are, as RFC 9110 demands.
func (a *api) wrongMethod(router *mux.Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
			try := r.Clone(r.Context())
			try.Method = m
			var match mux.RouteMatch
			if router.Match(try, &match) && match.MatchErr == nil && !isVerb(match.Vars) {
				allowed = append(allowed, m)
			}
		}
		if len(allowed) == 0 {
			a.noRoute(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		a.fail(w, r, callerFault(codeMethod, "use "+strings.Join(allowed, " or "), "method %q is not served here", r.Method))
	})
}

// isVerb reports whether a path was taken for that of an item although it
// names a verb: nothing has a colon in its name.
func isVerb(vars map[string]string) bool { return strings.Contains(vars["ref"]+vars["id"], ":") }

// refuseVerbs answers requests such as PATCH /instances/demo:stop, which the
// router takes for a change of the instance "demo:stop".
func refuseVerbs(otherwise http.Handler) mux.MiddlewareFunc {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isVerb(mux.Vars(r)) {
				otherwise.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
