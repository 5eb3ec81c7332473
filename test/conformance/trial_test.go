package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
)

// patience bounds what a case waits for: machines can be emulated, and share
// their host.
const patience = 4 * time.Minute

// need is what a case must find at its target.
type need string

const (
	needCommand need = "command" // adapter commands with the suite's workspace
	needOther   need = "other"   // a second principal
	needScopes  need = "scopes"  // principals with other scopes
	needHooks   need = "hooks"   // webhooks on an address of this host
	needKill    need = "kill"    // a server that may be killed
	needNarrow  need = "narrow"  // a second server, with narrow limits
	needKeys    need = "keys"    // keys that may be rotated
	needScript  need = "script"  // the scripted runner
)

// target is a running server, seen from outside.
type target struct {
	name  string // of the driver
	url   string // of the server
	agent string // A2A address
	token string // of the principal whose tasks the cases make
	// tokens are of principals that are as good as that one: cases at the same
	// time take one each.
	tokens []string

	other  string // token of a second principal
	reader string // token without agents:invoke
	seer   string // token with agents:invoke and fleet:read-host

	// once: machines are slow, so a case that needs commands is spoken in one
	// form only.
	once bool

	missing  map[need]string // why a need is not met, with the cure
	narrow   *target         // of needNarrow
	scripted *target         // of needScript
	process  process         // of needKill
	stateDir string          // of needKeys
}

// process is a server whose life is in the hands of the suite.
type process interface {
	Kill() error
	Launch(ctx context.Context) error
}

// trial is one case on one target in one form.
type trial struct {
	*testing.T
	*target
	form   form
	client *http.Client
	notes  *notes
}

// notes keeps the first reason of a failure or a skip, for the table.
type notes struct{ failed, skipped string }

func (x *trial) Errorf(format string, args ...any) {
	x.Helper()
	if x.notes.failed == "" {
		x.notes.failed = fmt.Sprintf(format, args...)
	}
	x.T.Errorf(format, args...)
}

func (x *trial) Fatalf(format string, args ...any) {
	x.Helper()
	if x.notes.failed == "" {
		x.notes.failed = fmt.Sprintf(format, args...)
	}
	x.T.Fatalf(format, args...)
}

func (x *trial) Skipf(format string, args ...any) {
	x.Helper()
	x.notes.skipped = fmt.Sprintf(format, args...)
	x.T.Skip(x.notes.skipped)
}

func (x *trial) check(err error) {
	x.Helper()
	if err != nil {
		x.Fatalf("%v", err)
	}
}

// want fails the case unless ok holds.
func (x *trial) want(ok bool, format string, args ...any) {
	x.Helper()
	if !ok {
		x.Errorf(format, args...)
	}
}

// in is the same trial in another form.
func (x *trial) in(f form) *trial {
	y := *x
	y.form = f
	return &y
}

// as is the same trial as another principal.
func (x *trial) as(token string) *trial {
	y, at := *x, *x.target
	at.token = token
	y.target = &at
	return &y
}

// on is the same trial on another target.
func (x *trial) on(at *target) *trial {
	y := *x
	y.target = at
	return &y
}

// deadline is a context of patience.
func (x *trial) deadline() context.Context {
	ctx, cancel := context.WithTimeout(x.Context(), patience)
	x.Cleanup(cancel)
	return ctx
}

// headers are additions to those of a request; an empty list removes one.
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if name := http.CanonicalHeaderKey(pairs[i]); pairs[i+1] == "" {
			h[name] = []string{}
		} else {
			h[name] = append(h[name], pairs[i+1])
		}
	}
	return h
}

func (x *trial) exchange(op string, params object, more []http.Header) exchange {
	e := exchange{form: x.form, agent: x.agent, token: x.token, op: op, params: params, header: http.Header{}}
	for _, h := range more {
		maps.Copy(e.header, h)
	}
	return e
}

// call makes one request and checks the form of what comes back, whatever it
// is.
func (x *trial) call(op string, params object, more ...http.Header) *reply {
	x.Helper()
	e := x.exchange(op, params, more)
	req, err := e.request(x.deadline())
	x.check(err)
	return x.send(e, req)
}

// raw makes a request of which body and address are chosen.
func (x *trial) raw(method, path string, body []byte, more ...http.Header) *reply {
	x.Helper()
	e := x.exchange("", nil, more)
	req, err := e.raw(x.deadline(), method, x.agent+path, body)
	x.check(err)
	return x.send(e, req)
}

func (x *trial) send(e exchange, req *http.Request) *reply {
	x.Helper()
	resp, err := x.client.Do(req)
	x.check(err)
	defer resp.Body.Close()
	r, err := e.read(resp)
	if err != nil {
		x.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	x.checkShape(r)
	return r
}

func (x *trial) checkShape(r *reply) {
	x.Helper()
	if r.fault != nil || r.result == nil {
		return
	}
	known := shapes10()
	kind := answerShape(r.op, r.form)
	if r.form.version == "0.3" {
		known = shapes03(r.form.binding)
		if r.op == opExtended {
			return // a card of 0.3: V03-CARD-001 looks at it
		}
		if r.form.binding == jsonRPC && r.op == opSend {
			kind = map[string]string{"task": "Task", "message": "Message"}[text(r.result, "kind")]
		}
	}
	if kind == "" {
		return
	}
	if bad := known.check(kind, r.op, r.result); len(bad) > 0 {
		x.Errorf("the answer does not have the form of A2A %s: %s\n%.600s", r.form, strings.Join(bad, "; "), r.raw)
	}
}

// ok is call that wants a result.
func (x *trial) ok(op string, params object, more ...http.Header) *reply {
	x.Helper()
	r := x.call(op, params, more...)
	if r.fault != nil || r.status != http.StatusOK {
		x.Fatalf("%s answers %d %.400s, want a result", op, r.status, r.raw)
	}
	return r
}

// open begins a stream. What comes instead of one is the reply.
func (x *trial) open(op string, params object, more ...http.Header) (*stream, *reply) {
	x.Helper()
	e := x.exchange(op, params, append([]http.Header{headers("Accept", "text/event-stream")}, more...))
	ctx, cancel := context.WithTimeout(x.Context(), patience)
	x.Cleanup(cancel)
	req, err := e.request(ctx)
	x.check(err)
	return x.begin(e, req, cancel)
}

func (x *trial) begin(e exchange, req *http.Request, cancel context.CancelFunc) (*stream, *reply) {
	x.Helper()
	resp, err := x.client.Do(req)
	x.check(err)
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		s := newStream(e.form, resp, cancel)
		x.Cleanup(s.close)
		return s, nil
	}
	defer resp.Body.Close()
	r, err := e.read(resp)
	if err != nil {
		x.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	return nil, r
}

// follow opens a stream and wants one.
func (x *trial) follow(op string, params object, more ...http.Header) *stream {
	x.Helper()
	s, r := x.open(op, params, more...)
	if r != nil {
		x.Fatalf("%s answers %d %.400s, want a stream", op, r.status, r.raw)
	}
	return s
}

// read reads a stream until the event for which until holds, or its end.
func (x *trial) read(s *stream, until func(event) bool) heard {
	x.Helper()
	var h heard
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			h.closed = true
			return h
		}
		if err != nil {
			x.Fatalf("after %d events: %v", len(h.events), err)
		}
		h.events = append(h.events, e)
		if until != nil && until(e) {
			return h
		}
	}
}

// all reads a stream to its end.
func (x *trial) all(s *stream) heard { x.Helper(); return x.read(s, nil) }
