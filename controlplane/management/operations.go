package management

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// maxWait bounds how long a client may wait for an operation in one request.
const maxWait = 5 * time.Minute

var (
	waitRule = regexp.MustCompile(`^(([1-9]?[0-9]|[12][0-9]{2}|300)s|[0-5]m)$`)
	kindRule = regexp.MustCompile(`^[a-z]{1,32}\.[a-z_]{1,31}$`)
)

// operation returns an operation of the principal's tenant.
func (a *api) operation(r *http.Request, id string) (fleet.Operation, error) {
	missing := callerFault(codeNoOperation, "`GET "+managementv1.BasePath+"/operations` lists what there is",
		"there is no operation %q", clip(id))
	if _, err := instance.ParseID(id); err != nil {
		return fleet.Operation{}, missing
	}
	op, err := a.Operations.Operation(r.Context(), id)
	if err != nil {
		return fleet.Operation{}, err
	}
	if op.Tenant != "" && op.Tenant != tenant(r) {
		return fleet.Operation{}, missing
	}
	n := notesOf(r.Context())
	n.operation, n.instance = op.ID, op.Instance
	return op, nil
}

// ListOperations answers one page of operations, newest first: ids of version
// 7 sort by time.
func (a *api) ListOperations(w http.ResponseWriter, r *http.Request, params managementv1.ListOperationsParams) {
	filter, err := a.operationFilter(r, params)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	page, err := a.Operations.Operations(r.Context(), filter)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := managementv1.OperationList{
		Items:      make([]managementv1.Operation, 0, len(page.Operations)),
		NextCursor: cursorOf(cursorOperation, page.Next),
	}
	for _, op := range page.Operations {
		o := operationJSON(op)
		o.Fault.Console = "" // long; who looks at one gets it
		list.Items = append(list.Items, o)
	}
	a.answer(w, r, http.StatusOK, list)
}

func (a *api) operationFilter(r *http.Request, params managementv1.ListOperationsParams) (fleet.OperationFilter, error) {
	filter := fleet.OperationFilter{Tenant: tenant(r)}
	var bad invalid
	if params.State != nil {
		filter.State = fleet.OperationState(*params.State)
		if !slices.Contains(fleet.OperationStates(), filter.State) {
			bad = append(bad, fleet.FieldError{Field: "state", Code: "parameter.unknown",
				Message: "want pending, running, succeeded, failed or canceled"})
		}
	}
	if params.Kind != nil {
		filter.Kind = *params.Kind
		if !kindRule.MatchString(filter.Kind) {
			bad = append(bad, fleet.FieldError{Field: "kind", Code: "parameter.form", Message: "want a kind such as instance.create"})
		}
	}
	var err error
	filter.After, err = cursor(cursorOperation, params.Cursor)
	bad = bad.and(err)
	filter.Limit, err = pageSize(params.Limit)
	if bad = bad.and(err); len(bad) > 0 {
		return filter, bad.or(codeInvalidParameter)
	}
	filter.Instance, err = a.instanceFilter(r, params.Instance)
	return filter, err
}

// instanceFilter finds the instance that a list is narrowed to. An id may be
// that of one that is gone.
func (a *api) instanceFilter(r *http.Request, ref *string) (instance.ID, error) {
	if ref == nil {
		return "", nil
	}
	if id, err := instance.ParseID(*ref); err == nil {
		return id, nil
	}
	view, err := a.find(r, *ref)
	return view.ID, err
}

// GetOperation shows one operation, at once or when it has ended.
func (a *api) GetOperation(w http.ResponseWriter, r *http.Request, id string, params managementv1.GetOperationParams) {
	var wait time.Duration
	if params.Wait != nil {
		var err error
		wait, err = time.ParseDuration(clip(*params.Wait))
		if err != nil || !waitRule.MatchString(*params.Wait) || wait > maxWait {
			a.fail(w, r, invalid{{Field: "wait", Code: "parameter.range",
				Message: "want a time of at most 5m, such as 30s"}}.or(codeInvalidParameter))
			return
		}
	}
	op, err := a.operation(r, id)
	if err == nil && wait > 0 && !op.State.Done() {
		op, err = a.await(r, op, wait)
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, operationJSON(op))
}

// await returns the operation as it is when it ends, or after a while.
func (a *api) await(r *http.Request, op fleet.Operation, wait time.Duration) (fleet.Operation, error) {
	release, err := a.openStream(r)
	if err != nil {
		return op, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	changes, err := a.Operations.Watch(ctx, op.ID)
	if err != nil {
		return op, err
	}
	for next := range changes { // until it has ended, or the time has
		op = next
	}
	return op, r.Context().Err()
}

// CancelOperation asks for the early end of an operation.
func (a *api) CancelOperation(w http.ResponseWriter, r *http.Request, id string, _ managementv1.CancelOperationParams) {
	op, err := a.operation(r, id)
	if err == nil {
		op, err = a.Operations.CancelOperation(r.Context(), op.ID)
	}
	a.accepted(w, r, op, err)
}

// WatchOperation streams an operation until it has ended.
func (a *api) WatchOperation(w http.ResponseWriter, r *http.Request, id string) {
	op, err := a.operation(r, id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	release, err := a.openStream(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	defer release()
	changes, err := a.Operations.Watch(r.Context(), op.ID)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	s := newEventStream(w, a.Stall)
	stream(a, s, r, changes, func(op fleet.Operation) error {
		return s.event("", "operation", operationJSON(op))
	})
}
