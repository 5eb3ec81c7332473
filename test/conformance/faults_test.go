package conformance

import (
	"net/http"
	"slices"
)

// known is an error as both bindings have to show it (A2A 1.0.1, section 5.4).
type known struct {
	reason string
	rpc    int
	http   int
	status string
	own    bool // of this system, not of A2A
	// both: JSON-RPC has the HTTP status, too.
	both bool
}

// The errors that cases ask for.
func taskNotFound() known { return known{"TASK_NOT_FOUND", -32001, 404, "NOT_FOUND", false, false} }
func notCancelable() known {
	return known{"TASK_NOT_CANCELABLE", -32002, 400, "FAILED_PRECONDITION", false, false}
}
func pushUnsupported() known {
	return known{"PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, "FAILED_PRECONDITION", false, false}
}
func unsupported() known {
	return known{"UNSUPPORTED_OPERATION", -32004, 400, "FAILED_PRECONDITION", false, false}
}
func contentType() known {
	return known{"CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, "INVALID_ARGUMENT", false, false}
}
func extensionRequired() known {
	return known{"EXTENSION_SUPPORT_REQUIRED", -32008, 400, "FAILED_PRECONDITION", false, true}
}
func versionUnsupported() known {
	return known{"VERSION_NOT_SUPPORTED", -32009, 400, "FAILED_PRECONDITION", false, false}
}
func invalid() known { return known{"INVALID_REQUEST", -32602, 400, "INVALID_ARGUMENT", true, false} }
func forbidden() known {
	return known{"PERMISSION_DENIED", -32600, 403, "PERMISSION_DENIED", true, true}
}
func tooLarge() known { return known{"REQUEST_TOO_LARGE", -32600, 413, "INVALID_ARGUMENT", true, true} }
func busy() known     { return known{"LIMIT_REACHED", -32029, 429, "RESOURCE_EXHAUSTED", true, true} }
func noLongerAsked() known {
	return known{"HITL_ALREADY_ANSWERED_OR_UNKNOWN", -32010, 409, "ABORTED", true, false}
}
func badResponse() known {
	return known{"HITL_RESPONSE_INVALID", -32011, 422, "INVALID_ARGUMENT", true, false}
}

// refused wants a reply to be this very error.
func (x *trial) refused(r *reply, want known) {
	x.Helper()
	if r == nil {
		x.Errorf("there is a stream, want %s", want.reason)
		return
	}
	if r.fault == nil {
		x.Errorf("%s answers %d %.300s, want %s", r.op, r.status, r.raw, want.reason)
		return
	}
	reason, domain := r.fault.info()
	wantDomain := "a2a-protocol.org"
	if want.own {
		wantDomain = "agentic-sandbox.aiwg.io"
	}
	status, code := want.http, want.http
	if r.form.binding == jsonRPC {
		if code = want.rpc; !want.both {
			status = http.StatusOK
		}
	}
	if reason != want.reason || domain != wantDomain || r.fault.code != code || r.status != status ||
		r.form.binding == httpJSON && r.fault.status != want.status {
		x.Errorf("%s answers %d %.400s, want %+v", r.op, r.status, r.raw, want)
	}
}

// names wants the error to be about a field.
func (x *trial) names(r *reply, field string) {
	x.Helper()
	if r == nil || r.fault == nil {
		x.Errorf("there is no error, want one about %s", field)
		return
	}
	if slices.Contains(r.fault.fields(), field) {
		return
	}
	x.Errorf("the error is about %q, want %s: %.400s", r.fault.fields(), field, r.raw)
}
