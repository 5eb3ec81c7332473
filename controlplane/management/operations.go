package management

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

var operationIDRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func checkOperationID(id string) error {
	if operationIDRule.MatchString(id) {
		return nil
	}
	return callerFault(codeNoOperation, "GET "+managementv1.BasePath+"/operations lists what there is",
		"there is no operation %q", clip(id))
}

// ListOperations answers one page of operations, newest first: ids of version
// 7 sort by time.
func (a *api) ListOperations(w http.ResponseWriter, r *http.Request, params managementv1.ListOperationsParams) {
	before, err := cursor(params.Cursor)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	limit, err := pageSize(params.Limit)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	all, err := a.Operations.Operations(r.Context(), fleet.OperationFilter{})
	if err != nil {
		a.fail(w, r, err)
		return
	}
	ops := all.Operations
	if before != "" {
		ops = slices.DeleteFunc(ops, func(op fleet.Operation) bool { return op.ID >= before })
	}
	slices.SortFunc(ops, func(x, y fleet.Operation) int { return strings.Compare(y.ID, x.ID) })
	page, next := cut(ops, limit, func(op fleet.Operation) string { return op.ID })
	list := managementv1.OperationList{Items: make([]managementv1.Operation, 0, len(page)), NextCursor: next}
	for _, op := range page {
		list.Items = append(list.Items, operation(op))
	}
	a.answer(w, r, http.StatusOK, list)
}

// GetOperation shows one operation.
func (a *api) GetOperation(w http.ResponseWriter, r *http.Request, id string) {
	if err := checkOperationID(id); err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Operations.Operation(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, operation(op))
}

// WatchOperation streams an operation until it has ended.
func (a *api) WatchOperation(w http.ResponseWriter, r *http.Request, id string) {
	if err := checkOperationID(id); err != nil {
		a.fail(w, r, err)
		return
	}
	changes, err := a.Operations.Watch(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	stream := newEventStream(w, a.Stall)
	heartbeat := time.NewTicker(a.Heartbeat)
	defer heartbeat.Stop()
	for {
		select {
		case op, ok := <-changes:
			if !ok {
				return
			}
			if err := stream.event("operation", operation(op)); err != nil {
				a.logFrom(r).Debug("cannot write event", "error", err)
				return
			}
			heartbeat.Reset(a.Heartbeat)
		case <-heartbeat.C:
			if err := stream.comment(); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// eventStream writes server-sent events. The server's own deadline for
// answers does not hold for a stream; each write has one of its own, so that
// a client that does not read is let go.
type eventStream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
}

func newEventStream(w http.ResponseWriter, stall time.Duration) *eventStream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies would keep events back
	w.WriteHeader(http.StatusOK)
	return &eventStream{w: w, rc: http.NewResponseController(w), stall: stall}
}

func (s *eventStream) event(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode event: %w", err)
	}
	return s.send("event: " + name + "\ndata: " + string(data) + "\n\n")
}

func (s *eventStream) comment() error { return s.send(": still here\n\n") }

func (s *eventStream) send(frame string) error {
	// A writer without deadlines or without a buffer does not need them.
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.stall))
	if _, err := s.w.Write([]byte(frame)); err != nil {
		return fmt.Errorf("cannot write event: %w", err)
	}
	_ = s.rc.Flush()
	return nil
}
