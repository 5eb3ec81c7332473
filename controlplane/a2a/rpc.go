package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
)

// rpcRequest is a request of JSON-RPC 2.0.
type rpcRequest struct {
	id     json.RawMessage
	method string
	params json.RawMessage
}

// rpcMethod is one method. Exactly one of unary and stream is set.
type rpcMethod struct {
	unary  func(c *call, ctx context.Context, params json.RawMessage) (any, *fault)
	stream func(c *call, ctx context.Context, params json.RawMessage, r *http.Request) (*feed, *fault)
}

// rpcMethods are the methods of A2A 1.0.
func rpcMethods() map[string]rpcMethod {
	all := map[string]rpcMethod{
		"SendMessage": {unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			return c.sendRaw(ctx, params)
		}},
		"SendStreamingMessage": {stream: func(c *call, ctx context.Context, params json.RawMessage, _ *http.Request) (*feed, *fault) {
			return c.streamRaw(ctx, params)
		}},
		"GetTask": {unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			d := &decoder{}
			id, history := taskParams(d.object("", params))
			if f := d.fault(); f != nil {
				return nil, f
			}
			return c.get(ctx, id, history)
		}},
		"CancelTask": {unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			d := &decoder{}
			id, _ := taskParams(d.object("", params))
			if f := d.fault(); f != nil {
				return nil, f
			}
			return c.cancel(ctx, id)
		}},
		"ListTasks": {unary: func(c *call, ctx context.Context, params json.RawMessage) (any, *fault) {
			req, f := decodeList((&decoder{}).object("", params))
			if f != nil {
				return nil, f
			}
			return c.list(ctx, req)
		}},
		"SubscribeToTask": {stream: func(c *call, ctx context.Context, params json.RawMessage, r *http.Request) (*feed, *fault) {
			d := &decoder{}
			id, _ := taskParams(d.object("", params))
			if f := d.fault(); f != nil {
				return nil, f
			}
			return c.subscribe(ctx, subscription{id: id, lastEventID: r.Header.Get(headerLastEventID)})
		}},
		"GetExtendedAgentCard": extendedCardMethod(),
	}
	maps.Copy(all, rpcPush())
	return all
}

// rpc serves JSON-RPC.
func (s *surface) rpc(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, s.cfg.Limits.Body)
	req, broken := s.rpcBody(r)
	c, f := s.begin(w, r) // echoes the extensions also on a broken request
	if f != nil && (broken == nil || f.http == http.StatusNotFound) {
		broken = f
	}
	if broken != nil {
		s.rpcRefuse(w, r, req.id, broken)
		return
	}
	method, ok := c.rpcMethods()[req.method]
	if !ok {
		s.rpcRefuse(w, r, req.id, noMethod(req.method, c.version))
		return
	}
	if f := c.caller.allowScope(scopeFrom(scopesOfMethods(), req.method)); f != nil {
		s.rpcRefuse(w, r, req.id, f)
		return
	}
	switch {
	case method.stream != nil:
		feed, f := method.stream(c, r.Context(), req.params, r)
		if f != nil {
			s.rpcRefuse(w, r, req.id, f)
			return
		}
		id := req.id
		req = rpcRequest{} // its params may be large, and a stream may last
		if f := c.serve(w, r, feed, func(v any) any { return rpcResult(id, c.shape(jsonRPC, v)) }); f != nil {
			s.rpcRefuse(w, r, id, f)
		}
	default:
		defer c.leave()
		v, f := method.unary(c, r.Context(), req.params)
		if f != nil {
			s.rpcRefuse(w, r, req.id, f)
			return
		}
		s.answer(w, r, "application/json", http.StatusOK, rpcResult(req.id, c.shape(jsonRPC, v)))
	}
}

func rpcResult(id json.RawMessage, v any) any {
	return map[string]any{"jsonrpc": "2.0", "id": id, "result": v}
}

func (s *surface) rpcBody(r *http.Request) (req rpcRequest, f *fault) {
	req.id = json.RawMessage("null")
	raw, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return req, errTooLarge(s.cfg.Limits.Body)
	case err != nil:
		return req, errBroken(rpcInvalid, "the request could not be read to its end")
	}
	if f := checkContentType(r); f != nil {
		return req, f
	}
	raw = bytes.TrimSpace(raw)
	rule := checkJSON(raw)
	if rule != "" && rule != ruleNumber {
		return req, errBroken(rpcParse, "the request "+rule)
	}
	if raw[0] == '[' {
		return req, errBroken(rpcInvalid, "batches are not taken; send one request at a time")
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return req, errBroken(rpcInvalid, "the request must be an object")
	}
	if id := m["id"]; len(id) > 0 && len(id) <= 2*maxID &&
		(id[0] == '"' || (id[0] == '-' || id[0] >= '0' && id[0] <= '9') && fits(json.Number(id))) {
		req.id = id
	} else {
		return req, errBroken(rpcInvalid, "the request must have an id that is a string or a number")
	}
	if string(m["jsonrpc"]) != `"2.0"` {
		return req, errBroken(rpcInvalid, `the request must have "jsonrpc": "2.0"`)
	}
	if json.Unmarshal(m["method"], &req.method) != nil || req.method == "" {
		return req, errBroken(rpcInvalid, "the request must have a method")
	}
	if req.params = m["params"]; len(req.params) == 0 || string(req.params) == "null" {
		req.params = emptyObject()
	}
	switch {
	case req.params[0] != '{':
		return req, errBroken(rpcInvalidParams, "params must be an object")
	case rule != "" && checkJSON(req.params) != "":
		return req, errNumber(req.params)
	case rule != "": // in a member that means nothing
		return req, errNumber(raw)
	}
	return req, nil
}

// rpcRefuse answers with an error of JSON-RPC.
func (s *surface) rpcRefuse(w http.ResponseWriter, r *http.Request, id json.RawMessage, f *fault) {
	code := f.rpcHTTP
	if code == 0 {
		code = http.StatusOK
	}
	f.retry(w)
	s.answer(w, r, "application/json", code, map[string]any{
		"jsonrpc": "2.0", "id": id,
		"error": map[string]any{"code": f.rpc, "message": f.message, "data": f.details()},
	})
}
