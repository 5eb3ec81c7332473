package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Domains of ErrorInfo.
const (
	domainA2A = "a2a-protocol.org"
	domainOwn = "agentic-sandbox.aiwg.io"
)

// fault is an error as both bindings show it (the map of A2A 1.0.1).
type fault struct {
	rpc     int    // code of JSON-RPC
	http    int    // status of HTTP
	status  string // google.rpc.Code
	reason  string
	domain  string // empty: A2A's
	message string
	meta    map[string]string
	// violations are shown as google.rpc.BadRequest.
	violations []runner.Violation
	// more are further details.
	more []any
	// second is a further ErrorInfo, in our domain.
	second     string
	secondMeta map[string]string
	retryAfter int // seconds; 0 shows none
	// rpcHTTP is the HTTP status on JSON-RPC; 0 is 200.
	rpcHTTP int
}

// Names of google.rpc.Code.
const (
	invalidArgument    = "INVALID_ARGUMENT"
	failedPrecondition = "FAILED_PRECONDITION"
	notFound           = "NOT_FOUND"
	exhausted          = "RESOURCE_EXHAUSTED"
)

// Codes of JSON-RPC itself, and one of ours for quotas.
const (
	rpcParse         = -32700
	rpcInvalid       = -32600
	rpcNoMethod      = -32601
	rpcInvalidParams = -32602
	rpcInternal      = -32603
	rpcQuota         = -32029
)

func errTaskNotFound() *fault {
	return &fault{rpc: -32001, http: http.StatusNotFound, status: notFound, reason: "TASK_NOT_FOUND", message: "there is no such task"}
}

func errNotCancelable(state task.State) *fault {
	return &fault{
		rpc: -32002, http: http.StatusBadRequest, status: failedPrecondition, reason: "TASK_NOT_CANCELABLE",
		message: "the task has ended: " + string(state),
	}
}

func errUnsupported(message string) *fault {
	return &fault{rpc: -32004, http: http.StatusBadRequest, status: failedPrecondition, reason: "UNSUPPORTED_OPERATION", message: message}
}

func errPushUnsupported() *fault {
	return &fault{
		rpc: -32003, http: http.StatusBadRequest, status: failedPrecondition, reason: "PUSH_NOTIFICATION_NOT_SUPPORTED",
		message: "push notifications are not supported",
	}
}

func errContentType(message string) *fault {
	return &fault{rpc: -32005, http: http.StatusBadRequest, status: invalidArgument, reason: "CONTENT_TYPE_NOT_SUPPORTED", message: message}
}

func errVersion(asked string, supported []version) *fault {
	names := make([]string, 0, len(supported))
	for _, v := range supported {
		names = append(names, string(v))
	}
	return &fault{
		rpc: -32009, http: http.StatusBadRequest, status: failedPrecondition, reason: "VERSION_NOT_SUPPORTED",
		message: fmt.Sprintf("A2A version %s is not supported here; send A2A-Version: %s", clip(asked), strings.Join(names, " or ")),
		meta:    map[string]string{"supportedVersions": strings.Join(names, ",")},
	}
}

// errExtensionRequired names the refusal twice: as A2A does, and as runtime/v1
// does. It is HTTP status 400 on both bindings (RUNTIME-CONF-003).
func errExtensionRequired(uri string) *fault {
	return &fault{
		rpc: -32008, http: http.StatusBadRequest, status: failedPrecondition, reason: "EXTENSION_SUPPORT_REQUIRED",
		message: "EXTENSION_REQUIRED: this agent requires the extension " + uri + "; send A2A-Extensions: " + uri,
		meta:    map[string]string{"uri": uri},
		second:  "EXTENSION_REQUIRED", secondMeta: map[string]string{"uri": uri},
		rpcHTTP: http.StatusBadRequest,
	}
}

func errInvalid(message string, violations ...runner.Violation) *fault {
	return &fault{
		rpc: rpcInvalidParams, http: http.StatusBadRequest, status: invalidArgument, reason: "INVALID_REQUEST",
		domain: domainOwn, message: message, violations: violations,
	}
}

func errField(field, description string) *fault {
	return errInvalid("the request breaks a rule: "+field+" "+description, runner.Violation{Field: field, Description: description})
}

func errBroken(rpc int, message string) *fault {
	return &fault{
		rpc: rpc, http: http.StatusBadRequest, status: invalidArgument, reason: "INVALID_REQUEST", domain: domainOwn, message: message,
	}
}

func errTooLarge(limit int64) *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusRequestEntityTooLarge, rpcHTTP: http.StatusRequestEntityTooLarge, status: invalidArgument,
		reason: "REQUEST_TOO_LARGE", domain: domainOwn, message: fmt.Sprintf("the request is larger than %d bytes", limit),
	}
}

func errBusy(message string) *fault {
	return &fault{
		rpc: rpcQuota, http: http.StatusTooManyRequests, rpcHTTP: http.StatusTooManyRequests, status: exhausted,
		reason: "LIMIT_REACHED", domain: domainOwn, message: message, retryAfter: 5,
	}
}

func errNoInstance() *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusNotFound, rpcHTTP: http.StatusNotFound, status: notFound,
		reason: "INSTANCE_NOT_FOUND", domain: domainOwn, message: "there is no such instance",
	}
}

func errNoResource() *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusNotFound, rpcHTTP: http.StatusNotFound, status: notFound,
		reason: "RESOURCE_NOT_FOUND", domain: domainOwn, message: "there is nothing at this address",
	}
}

func errMethod(allowed []string) *fault {
	return &fault{
		rpc: rpcInvalid, http: http.StatusMethodNotAllowed, rpcHTTP: http.StatusMethodNotAllowed, status: "UNIMPLEMENTED",
		reason: "METHOD_NOT_ALLOWED", domain: domainOwn, message: "this address takes only " + strings.Join(allowed, " and "),
	}
}

func errClosing() *fault {
	return &fault{
		rpc: rpcInternal, http: http.StatusServiceUnavailable, rpcHTTP: http.StatusServiceUnavailable, status: "UNAVAILABLE",
		reason: "SHUTTING_DOWN", domain: domainOwn, message: "the server is stopping; try again", retryAfter: 5,
	}
}

// errStore is for a database that cannot be used now. A client may know that
// much, and try again.
func errStore(code string) *fault {
	why := "its database cannot be used now"
	if code == "store.full" {
		why = "the disk of its host is full"
	}
	return &fault{
		rpc: rpcInternal, http: http.StatusServiceUnavailable, rpcHTTP: http.StatusServiceUnavailable, status: "UNAVAILABLE",
		reason: "STORE_UNAVAILABLE", domain: domainOwn, message: "the server cannot store anything: " + why, retryAfter: 5,
	}
}

// internal logs what went wrong and tells the client only that it did.
func (s *surface) internal(ctx context.Context, what string, err error) *fault {
	if ctx.Err() == nil {
		s.cfg.Log.ErrorContext(ctx, "cannot "+what, "error", err)
	}
	var f *instance.Fault
	if errors.As(err, &f) && strings.HasPrefix(f.Code, "store.") {
		return errStore(f.Code)
	}
	return &fault{
		rpc: rpcInternal, http: http.StatusInternalServerError, status: "INTERNAL", reason: "INTERNAL", domain: domainOwn,
		message: "the server failed; its log says why",
	}
}

// explain maps the errors of what is below to faults.
func (s *surface) explain(ctx context.Context, what string, err error) *fault {
	var refusal *runner.Refusal
	switch {
	case errors.As(err, &refusal):
		f := errInvalid(refusal.Error(), refusal.Violations...)
		switch refusal.Kind {
		case runner.Unsupported:
			f = errUnsupported(refusal.Error())
		case runner.ContentType:
			f = errContentType(refusal.Error())
			f.violations = refusal.Violations
		case runner.Invalid:
		}
		return f
	case errors.Is(err, engine.ErrBusy):
		return errBusy("this machine has as many unfinished tasks as it may have")
	case errors.Is(err, engine.ErrClosed):
		return errClosing()
	case errors.Is(err, task.ErrNotFound):
		return errTaskNotFound()
	}
	return s.internal(ctx, what, err)
}

// details are the objects of error.details and error.data.
func (f *fault) details() []any {
	type info struct {
		Type     string            `json:"@type"`
		Reason   string            `json:"reason"`
		Domain   string            `json:"domain"`
		Metadata map[string]string `json:"metadata,omitempty"`
	}
	const infoType = "type.googleapis.com/google.rpc.ErrorInfo"
	domain := f.domain
	if domain == "" {
		domain = domainA2A
	}
	all := []any{info{infoType, f.reason, domain, f.meta}}
	if f.second != "" {
		all = append(all, info{infoType, f.second, domainOwn, f.secondMeta})
	}
	if len(f.violations) > 0 {
		type violation struct {
			Field       string `json:"field"`
			Description string `json:"description"`
		}
		list := make([]violation, 0, len(f.violations))
		for _, v := range f.violations {
			list = append(list, violation(v))
		}
		all = append(all, map[string]any{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": list})
	}
	return append(all, f.more...)
}

// refuse answers with google.rpc.Status in JSON.
func (s *surface) refuse(w http.ResponseWriter, r *http.Request, f *fault) {
	body := map[string]any{"error": map[string]any{
		"code": f.http, "status": f.status, "message": f.message, "details": f.details(),
	}}
	if path03(r.URL.Path) {
		f.addOld(body)
	}
	f.retry(w)
	s.answer(w, r, responseType(r), f.http, body)
}

func (f *fault) retry(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
}

// answer writes one JSON value.
func (s *surface) answer(w http.ResponseWriter, r *http.Request, media string, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "cannot encode an answer", "error", err)
		code = http.StatusInternalServerError
		body = []byte(`{"error":{"code":500,"status":"INTERNAL","message":"cannot encode the answer"}}`)
	}
	h := w.Header()
	h.Set("Content-Type", media)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		s.write(w, append(body, '\n'))
	}
}

// write sends an answer in pieces, so that a reader who takes nothing of it is
// dropped, and it with him. A client that has gone needs no answer.
func (s *surface) write(w http.ResponseWriter, body []byte) {
	control := http.NewResponseController(w)
	for piece := range slices.Chunk(body, 64<<10) {
		_ = control.SetWriteDeadline(time.Now().Add(s.cfg.Limits.Stall)) // as in sse.write
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// clip makes text from outside fit for an error.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToASCII(s)
}
