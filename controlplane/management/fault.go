package management

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// The codes of faults that are found here, before the fleet is asked.
const (
	codeInternal         = "internal"
	codeNoRoute          = "request.no_route"
	codeMethod           = "request.method"
	codeInvalidParameter = "request.parameter"
	codeMalformed        = "request.malformed"
	codeInvalid          = "request.invalid"
	codeTooLarge         = "request.too_large"
	codeMediaType        = "request.media_type"
	codeIncomplete       = "request.incomplete"
	codeTimeout          = "request.timeout"
	codeAbandoned        = "request.abandoned"
	codeUnauthorized     = "auth.required"
	codeForbidden        = "auth.scope"
	codeNoInstance       = "instance.not_found"
	codeNoOperation      = "operation.not_found"
	codeNoLoadout        = "catalog.not_found"
	codeNoOrphan         = "orphan.not_found"
	codeChanged          = "instance.changed"
	codeKeyReused        = "idempotency.key_reused"
	codeKeyAtWork        = "idempotency.at_work"
	codeNoKeys           = "idempotency.unavailable"
	codeTooManyStreams   = "request.too_many_streams"
)

// meaning is how a code looks from the outside.
type meaning struct {
	status int
	title  string
}

// meanings is the one table from codes to HTTP. A code that is not in it is
// judged by its condition and then by whose fault it is.
func meanings() map[string]meaning {
	return map[string]meaning{
		codeInternal:         {http.StatusInternalServerError, "Internal error"},
		codeNoRoute:          {http.StatusNotFound, "No such path"},
		codeMethod:           {http.StatusMethodNotAllowed, "Method not served"},
		codeInvalidParameter: {http.StatusBadRequest, "Parameter is not valid"},
		codeMalformed:        {http.StatusBadRequest, "Request cannot be read"},
		codeInvalid:          {http.StatusUnprocessableEntity, "Request is not valid"},
		codeTooLarge:         {http.StatusRequestEntityTooLarge, "Request is too large"},
		codeMediaType:        {http.StatusUnsupportedMediaType, "Media type is not supported"},
		codeIncomplete:       {http.StatusBadRequest, "Request ended too early"},
		codeTimeout:          {http.StatusServiceUnavailable, "It took too long"},
		codeAbandoned:        {http.StatusServiceUnavailable, "Request was given up"},
		codeUnauthorized:     {http.StatusUnauthorized, "A token is required"},
		codeForbidden:        {http.StatusForbidden, "The token does not allow this"},

		codeNoInstance:         {http.StatusNotFound, "No such instance"},
		"instance.name":        {http.StatusUnprocessableEntity, "Name is not valid"},
		"instance.name_taken":  {http.StatusConflict, "Name is taken"},
		"instance.state":       {http.StatusConflict, "Not possible in this state"},
		"instance.unsupported": {http.StatusConflict, "Not possible with this instance"},
		"instance.not_ready":   {http.StatusServiceUnavailable, "The machine has not answered yet"},
		"machine.gone":         {http.StatusConflict, "The machine has ended"},
		codeChanged:            {http.StatusPreconditionFailed, "The instance has changed"},

		codeNoOperation:            {http.StatusNotFound, "No such operation"},
		"operation.ended":          {http.StatusConflict, "The operation has ended"},
		"operation.not_cancelable": {http.StatusConflict, "The operation cannot be cancelled"},
		"events.gone":              {http.StatusGone, "The events are forgotten"},
		"selector.invalid":         {http.StatusBadRequest, "Label selector is not valid"},
		codeNoOrphan:               {http.StatusNotFound, "No such orphan"},

		codeKeyReused:      {http.StatusUnprocessableEntity, "The key is that of another request"},
		codeKeyAtWork:      {http.StatusConflict, "The first request is still at work"},
		codeNoKeys:         {http.StatusNotImplemented, "Keys are not kept"},
		codeTooManyStreams: {http.StatusServiceUnavailable, "Too many streams"},

		codeNoLoadout:         {http.StatusNotFound, "No such loadout"},
		"loadout.not_found":   {http.StatusUnprocessableEntity, "No such loadout"},
		"loadout.invalid":     {http.StatusUnprocessableEntity, "Loadout is not valid"},
		"image.not_found":     {http.StatusUnprocessableEntity, "No such image"},
		"image.unusable":      {http.StatusInternalServerError, "Image cannot be used"},
		"provider.unknown":    {http.StatusUnprocessableEntity, "No such provider"},
		"provider.kind":       {http.StatusUnprocessableEntity, "Provider does not run this kind"},
		"provider.capability": {http.StatusUnprocessableEntity, "Provider lacks a capability"},

		"provider.unavailable": {http.StatusServiceUnavailable, "Provider is not available"},
		"fleet.starting":       {http.StatusServiceUnavailable, "Server is starting"},
		"host.closing":         {http.StatusServiceUnavailable, "Server is shutting down"},
		"host.disk_full":       {http.StatusInsufficientStorage, "Host has no space left"},

		"store.full":      {http.StatusInsufficientStorage, "The disk of the state directory is full"},
		"store.busy":      {http.StatusServiceUnavailable, "Another program holds the database"},
		"store.missing":   {http.StatusServiceUnavailable, "The database was taken away"},
		"store.read_only": {http.StatusServiceUnavailable, "The database cannot be written"},
		"instance.busy":   {http.StatusServiceUnavailable, "Too many requests wait for the instance"},

		"path.outside":          {http.StatusUnprocessableEntity, "Path is outside of the workspace"},
		"agent.invalid_request": {http.StatusUnprocessableEntity, "The agent refused the request"},
		"agent.busy":            {http.StatusServiceUnavailable, "The agent is at its limits"},
		"agent.unreachable":     {http.StatusServiceUnavailable, "The machine does not answer"},
		"agent.unresponsive":    {http.StatusGatewayTimeout, "The machine does not answer"},
		"file.too_large":        {http.StatusUnprocessableEntity, "File is too large"},
	}
}

// conditions give a status to codes that are not in the table, by what comes
// after the dot.
func conditions() map[string]int {
	return map[string]int{
		"not_found":   http.StatusNotFound,
		"taken":       http.StatusConflict,
		"conflict":    http.StatusConflict,
		"state":       http.StatusConflict,
		"invalid":     http.StatusUnprocessableEntity,
		"unavailable": http.StatusServiceUnavailable,
		"unreachable": http.StatusServiceUnavailable,
		"timeout":     http.StatusServiceUnavailable,
	}
}

// statusOf is the HTTP status of a fault.
func statusOf(f *instance.Fault) int {
	if m, ok := meanings()[f.Code]; ok {
		return m.status
	}
	if _, condition, ok := strings.Cut(f.Code, "."); ok {
		status, known := conditions()[condition]
		// A condition of the host is never the caller's error.
		if known && (f.Blame == instance.Caller || status >= http.StatusInternalServerError) {
			return status
		}
	}
	switch f.Blame {
	case instance.Caller:
		return http.StatusUnprocessableEntity
	case instance.Guest:
		return http.StatusBadGateway
	case instance.Host:
	}
	return http.StatusInternalServerError
}

// titleOf is the same for every problem with one code, as RFC 9457 asks.
func titleOf(code string, status int) string {
	if m, ok := meanings()[code]; ok {
		return m.title
	}
	return http.StatusText(status)
}

// asFault finds the fault in err, and makes one of errors whose meaning is
// known without.
func asFault(err error) *instance.Fault {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return callerFault(codeTooLarge, "", "the body is longer than %d bytes", tooLarge.Limit)
	}
	var fault *instance.Fault
	if errors.As(err, &fault) {
		if fault.Err == nil {
			return &instance.Fault{Blame: fault.Blame, Code: fault.Code, Hint: fault.Hint, Err: errUnexplained}
		}
		return fault
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &instance.Fault{Blame: instance.Host, Code: codeTimeout, Hint: "try again", Err: errTooLong}
	}
	return instance.AsFault(err)
}

var (
	errUnexplained = errors.New("no cause was given")
	errAbandoned   = errors.New("the connection or the server went away before the answer")
	errTooLong     = errors.New("the request took longer than the server allows")
)
