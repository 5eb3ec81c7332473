package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

type binding string

const (
	jsonRPC  binding = "JSONRPC"
	httpJSON binding = "HTTP+JSON"
)

// form is one way to speak to an agent.
type form struct {
	version string
	binding binding
}

func (f form) String() string { return string(f.binding) + " " + f.version }

// The ways there are.
func rpc10() form  { return form{"1.0", jsonRPC} }
func rest10() form { return form{"1.0", httpJSON} }
func rpc03() form  { return form{"0.3", jsonRPC} }
func rest03() form { return form{"0.3", httpJSON} }

// Operations, by their names in the service.
const (
	opSend       = "SendMessage"
	opStream     = "SendStreamingMessage"
	opGet        = "GetTask"
	opList       = "ListTasks"
	opCancel     = "CancelTask"
	opSubscribe  = "SubscribeToTask"
	opPushCreate = "CreateTaskPushNotificationConfig"
	opPushGet    = "GetTaskPushNotificationConfig"
	opPushList   = "ListTaskPushNotificationConfigs"
	opPushDelete = "DeleteTaskPushNotificationConfig"
	opExtended   = "GetExtendedAgentCard"
)

// Extensions.
const (
	extRuntime = "https://agentic-sandbox.aiwg.io/extensions/runtime/v1"
	extAdapter = "https://agentic-sandbox.aiwg.io/extensions/adapter-command/v1"
	extPrompt  = "https://agentic-sandbox.aiwg.io/extensions/hitl-prompt/v1"
	extIdem    = "https://agentic-sandbox.aiwg.io/extensions/idempotency/v1"
)

const (
	typeJSON = "application/json"
	typeA2A  = "application/a2a+json"
)

type object = map[string]any

// oldMethod is the name of an operation on JSON-RPC of 0.3.
func oldMethod(op string) string {
	return map[string]string{
		opSend: "message/send", opStream: "message/stream", opGet: "tasks/get", opCancel: "tasks/cancel",
		opSubscribe: "tasks/resubscribe", opPushCreate: "tasks/pushNotificationConfig/set",
		opPushGet: "tasks/pushNotificationConfig/get", opPushList: "tasks/pushNotificationConfig/list",
		opPushDelete: "tasks/pushNotificationConfig/delete", opExtended: "agent/getAuthenticatedExtendedCard",
	}[op]
}

// route is where an operation is on HTTP+JSON, and which params go into the
// path.
func route(op string, params object) (method, path string, inPath []string) {
	at := func(name string) string { return url.PathEscape(fmt.Sprint(params[name])) }
	configs := func() string { return "/tasks/" + at("taskId") + "/pushNotificationConfigs" }
	switch op {
	case opSend:
		return http.MethodPost, "/message:send", nil
	case opStream:
		return http.MethodPost, "/message:stream", nil
	case opGet:
		return http.MethodGet, "/tasks/" + at("id"), []string{"id"}
	case opList:
		return http.MethodGet, "/tasks", nil
	case opCancel:
		return http.MethodPost, "/tasks/" + at("id") + ":cancel", []string{"id"}
	case opSubscribe:
		return http.MethodGet, "/tasks/" + at("id") + ":subscribe", []string{"id"}
	case opPushCreate:
		return http.MethodPost, configs(), nil
	case opPushList:
		return http.MethodGet, configs(), []string{"taskId"}
	case opPushGet:
		return http.MethodGet, configs() + "/" + at("id"), []string{"taskId", "id"}
	case opPushDelete:
		return http.MethodDelete, configs() + "/" + at("id"), []string{"taskId", "id"}
	case opExtended:
		return http.MethodGet, "/extendedAgentCard", nil
	}
	return http.MethodGet, "/unknown-operation", nil
}

// oldParams gives params of 1.0 the names of 0.3.
func oldParams(f form, op string, p object) object {
	p = maps.Clone(p)
	move := func(from, to string) {
		if v, ok := p[from]; ok {
			delete(p, from)
			p[to] = v
		}
	}
	switch {
	case op == opPushCreate:
		config := object{}
		for _, name := range []string{"id", "url", "token", "authentication"} {
			if v, ok := p[name]; ok {
				config[name] = v
				delete(p, name)
			}
		}
		p["pushNotificationConfig"] = config
	case f.binding == httpJSON:
	case op == opPushGet || op == opPushDelete:
		move("id", "pushNotificationConfigId")
		move("taskId", "id")
	case op == opPushList:
		move("taskId", "id")
	}
	return p
}

// exchange is one request and how it is to be made.
type exchange struct {
	form   form
	agent  string // address of the agent
	token  string // empty: none
	header http.Header
	op     string
	params object
}

// request makes the HTTP request of an operation.
func (e exchange) request(ctx context.Context) (*http.Request, error) {
	params := e.params
	if params == nil {
		params = object{}
	}
	if e.form.version == "0.3" {
		params = oldParams(e.form, e.op, params)
	}
	method, address, body := http.MethodPost, e.agent, any(nil)
	if e.form.binding == jsonRPC {
		name := e.op
		if e.form.version == "0.3" {
			name = oldMethod(e.op)
		}
		body = object{"jsonrpc": "2.0", "id": rpcID, "method": name, "params": params}
	} else {
		var path string
		var inPath []string
		method, path, inPath = route(e.op, params)
		if e.form.version == "0.3" {
			if path = "/v1" + path; e.op == opExtended {
				path = "/v1/card"
			}
		}
		address += path
		rest := maps.Clone(params)
		for _, name := range inPath {
			delete(rest, name)
		}
		switch {
		case method == http.MethodPost:
			body = rest
		case len(rest) > 0:
			q := url.Values{}
			for name, v := range rest {
				q.Set(name, fmt.Sprint(v))
			}
			address += "?" + q.Encode()
		}
	}
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	return e.raw(ctx, method, address, raw)
}

const rpcID = 7

// raw makes a request with the headers of the exchange.
func (e exchange) raw(ctx context.Context, method, address string, body []byte) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, r)
	if err != nil {
		return nil, err
	}
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	if e.form.version != "" {
		req.Header.Set("A2A-Version", e.form.version)
	}
	req.Header.Set("A2A-Extensions", extRuntime)
	if body != nil {
		req.Header.Set("Content-Type", typeJSON)
	}
	req.Host = e.header.Get("Host") // empty: that of the address
	for name, values := range e.header {
		req.Header[name] = values
		if len(values) == 0 {
			delete(req.Header, name)
		}
	}
	return req, nil
}

// reply is an answer, read as its binding says.
type reply struct {
	form   form
	op     string
	status int
	header http.Header
	raw    []byte
	body   any
	result any    // of a success; what JSON-RPC has in result
	fault  *fault // of a failure
}

// fault is an error of either binding.
type fault struct {
	code    int    // of JSON-RPC, or the status
	status  string // of google.rpc.Status, on HTTP+JSON
	message string
	details []any
}

// info returns the first ErrorInfo.
func (f *fault) info() (reason, domain string) {
	for _, d := range f.details {
		if dig(d, "@type") == "type.googleapis.com/google.rpc.ErrorInfo" {
			return text(d, "reason"), text(d, "domain")
		}
	}
	return "", ""
}

// fields are those that the error is about.
func (f *fault) fields() (names []string) {
	for _, d := range f.details {
		list, _ := dig(d, "fieldViolations").([]any)
		for _, v := range list {
			names = append(names, text(v, "field"))
		}
	}
	return names
}

func (r *reply) get(keys ...any) any { return dig(r.result, keys...) }

// task is the task of an answer, wherever the form has it.
func (r *reply) task() any {
	if t := r.get("task"); t != nil {
		return t
	}
	return r.result
}

func dig(v any, keys ...any) any { return rig.Dig(v, keys...) }

func text(v any, keys ...any) string {
	s, _ := dig(v, keys...).(string)
	return s
}

func list(v any, keys ...any) []any {
	l, _ := dig(v, keys...).([]any)
	return l
}

// read takes an answer apart. The error says what of its form is wrong.
func (e exchange) read(resp *http.Response) (*reply, error) {
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer: %w", err)
	}
	r := &reply{form: e.form, op: e.op, status: resp.StatusCode, header: resp.Header, raw: raw}
	media := strings.TrimSpace(strings.Split(resp.Header.Get("Content-Type"), ";")[0])
	if r.status == http.StatusUnauthorized {
		return r, nil // of the token check, before any binding
	}
	if media != typeJSON && (media != typeA2A || e.form.binding == jsonRPC) {
		return r, fmt.Errorf("status %d has content type %q and body %.200q", r.status, media, raw)
	}
	if err := json.Unmarshal(raw, &r.body); err != nil {
		return r, fmt.Errorf("status %d has a body that is no JSON: %w: %.200q", r.status, err, raw)
	}
	if e.form.binding == jsonRPC {
		return r, r.readRPC()
	}
	return r, r.readREST()
}

func (r *reply) readRPC() error {
	m, _ := r.body.(map[string]any)
	result, isResult := m["result"]
	failure, isFault := m["error"].(map[string]any)
	switch {
	case m["jsonrpc"] != "2.0" || isResult == isFault || len(m) != 3:
		return fmt.Errorf("no answer of JSON-RPC 2.0: %.300s", r.raw)
	case isResult:
		r.result = result
		if id, ok := m["id"].(float64); !ok || id != rpcID {
			return fmt.Errorf("the id is %v, want %d: %.300s", m["id"], rpcID, r.raw)
		}
		return nil
	}
	code, _ := failure["code"].(float64)
	data, _ := failure["data"].([]any)
	r.fault = &fault{code: int(code), message: text(failure, "message"), details: data}
	if code >= 0 || r.fault.message == "" || r.fault.checkDetails() != nil {
		return fmt.Errorf("no error of JSON-RPC: %.300s", r.raw)
	}
	return nil
}

func (r *reply) readREST() error {
	if r.status/100 == 2 {
		r.result = r.body
		return nil
	}
	m, _ := r.body.(map[string]any)
	failure, _ := m["error"].(map[string]any)
	code, _ := failure["code"].(float64)
	r.fault = &fault{code: int(code), status: text(failure, "status"), message: text(failure, "message"), details: list(failure, "details")}
	most := 1
	if r.form.version == "0.3" {
		most = 4 // and what its SDKs look for: code, message and type
	}
	if len(m) > most || int(code) != r.status || r.fault.status == "" || r.fault.message == "" || r.fault.checkDetails() != nil {
		return fmt.Errorf("no google.rpc.Status for %d: %.300s", r.status, r.raw)
	}
	return nil
}

func (f *fault) checkDetails() error {
	if reason, domain := f.info(); reason == "" || domain == "" || reason != strings.ToUpper(reason) {
		return fmt.Errorf("the details have no ErrorInfo: %v", f.details)
	}
	for _, d := range f.details {
		if text(d, "@type") == "" {
			return fmt.Errorf("a detail has no type: %v", d)
		}
	}
	return nil
}

// client has no timeout of its own: streams last, contexts bound them.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{ResponseHeaderTimeout: 2 * time.Minute, MaxIdleConnsPerHost: 8},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
