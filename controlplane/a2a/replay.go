package a2a

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// storedAnswer is what is kept of an answer. At most one member is set.
type storedAnswer struct {
	Task    *task.Task    `json:"task,omitempty"`
	Message *task.Message `json:"message,omitempty"`
	Fault   *storedFault  `json:"fault,omitempty"`
	Opening *opening      `json:"opening,omitempty"`
}

// opening is how a stream began.
type opening struct {
	Task   task.Task `json:"task"`
	Seq    uint64    `json:"seq"`
	After  uint64    `json:"after"`
	Status uint64    `json:"status,omitempty"`
	Waits  bool      `json:"waits,omitempty"`
}

func newOpening(fd *feed) *opening {
	return &opening{Task: fd.first.Task, Seq: fd.first.LastSeq, After: fd.after, Status: fd.first.StatusSeq, Waits: fd.waits}
}

func (o *opening) feed(c *call) *feed {
	return &feed{
		first: task.Record{Task: c.withoutHost(o.Task), InstanceID: c.agent.ID, LastSeq: o.Seq, StatusSeq: o.Status},
		after: o.After, untilInput: true, waits: o.Waits,
	}
}

// decodeAnswer returns what was kept; nothing if that cannot be read, which is
// then made again from the task.
func decodeAnswer(r idempotency.Reservation) (a storedAnswer) {
	if json.Unmarshal(r.Answer, &a) != nil {
		return storedAnswer{}
	}
	return a
}

func (a storedAnswer) taskID() string {
	switch {
	case a.Task != nil:
		return a.Task.ID
	case a.Opening != nil:
		return a.Opening.Task.ID
	}
	return ""
}

// answered returns the answer that was kept for SendMessage, if one was.
func (c *call) answered(r idempotency.Reservation) (any, *fault, bool) {
	switch a := decodeAnswer(r); {
	case a.Fault != nil:
		return nil, a.Fault.fault(), true
	case a.Message != nil:
		return map[string]any{"message": *a.Message}, nil, true
	case a.Task != nil:
		return map[string]any{"task": c.withoutHost(*a.Task)}, nil, true
	}
	return nil, nil, false
}

// withoutHost takes away from a kept task what its caller may not see any more.
func (c *call) withoutHost(t task.Task) task.Task {
	if _, ok := t.Metadata[metaHost]; ok && !c.caller.SeesHost {
		t.Metadata = maps.Clone(t.Metadata)
		delete(t.Metadata, metaHost)
	}
	return t
}

// storedFault is a fault as it is kept. A test says when a member is missing.
type storedFault struct {
	RPC        int                `json:"rpc"`
	HTTP       int                `json:"http"`
	Status     string             `json:"status"`
	Reason     string             `json:"reason"`
	Domain     string             `json:"domain,omitempty"`
	Message    string             `json:"message"`
	Meta       map[string]string  `json:"meta,omitempty"`
	Violations []runner.Violation `json:"violations,omitempty"`
	Second     string             `json:"second,omitempty"`
	SecondMeta map[string]string  `json:"second_meta,omitempty"`
	RetryAfter int                `json:"retry_after,omitempty"`
	RPCHTTP    int                `json:"rpc_http,omitempty"`
	// More is written already: read into maps, its members would change places.
	More []json.RawMessage `json:"more,omitempty"`
}

func newStoredFault(f *fault) (*storedFault, error) {
	s := &storedFault{
		RPC: f.rpc, HTTP: f.http, Status: f.status, Reason: f.reason, Domain: f.domain, Message: f.message, Meta: f.meta,
		Violations: f.violations, Second: f.second, SecondMeta: f.secondMeta, RetryAfter: f.retryAfter, RPCHTTP: f.rpcHTTP,
	}
	for _, detail := range f.more {
		raw, err := json.Marshal(detail)
		if err != nil {
			return nil, fmt.Errorf("cannot encode detail: %w", err)
		}
		s.More = append(s.More, raw)
	}
	return s, nil
}

func (s *storedFault) fault() *fault {
	f := &fault{
		rpc: s.RPC, http: s.HTTP, status: s.Status, reason: s.Reason, domain: s.Domain, message: s.Message, meta: s.Meta,
		violations: s.Violations, second: s.Second, secondMeta: s.SecondMeta, retryAfter: s.RetryAfter, rpcHTTP: s.RPCHTTP,
	}
	for _, detail := range s.More {
		f.more = append(f.more, detail)
	}
	return f
}

// passes reports whether the same request may have another answer soon.
func (f *fault) passes() bool { return f.retryAfter > 0 || f.http >= http.StatusInternalServerError }

func errMessageID(rule string) *fault {
	f := errInvalid(rule, runner.Violation{Field: "message.messageId", Description: rule})
	f.reason = "IDEMPOTENCY_MESSAGE_ID_MALFORMED"
	return f
}

// errOtherPayload: the message's id belongs to a message that held something
// else, which stays as it is.
func errOtherPayload(messageID, original, submitted string) *fault {
	const code = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_PAYLOAD"
	return &fault{
		rpc: -32422, http: http.StatusUnprocessableEntity, rpcHTTP: http.StatusUnprocessableEntity, status: failedPrecondition,
		reason: code, domain: domainOwn,
		message: "another message was sent under this id; send this one under a new id",
		meta: map[string]string{
			"code": code, "message_id": messageID, "original_request_hash": original, "submitted_request_hash": submitted,
		},
	}
}
