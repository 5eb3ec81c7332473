package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// The suite is worth what it refuses.

func decoded(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

const (
	goodTask10 = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","timestamp":"2026-01-01T00:00:00.000Z"}}`
	goodTask03 = `{"kind":"task","id":"t","contextId":"c","status":{"state":"working","timestamp":"2026-01-01T00:00:00Z"}}`
	restTask03 = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_CANCELLED"},` +
		`"history":[{"messageId":"m","role":"ROLE_USER","content":[{"text":"x"}]}]}`
)

func TestShapes(t *testing.T) {
	swap := strings.NewReplacer
	for _, c := range []struct {
		name string
		of   shapes
		kind string
		body string
		want string // part of what is wrong; empty: nothing
	}{
		{"1.0", shapes10(), "Task", goodTask10, ""},
		{"0.3 JSON-RPC", shapes03(jsonRPC), "Task", goodTask03, ""},
		{"0.3 HTTP+JSON", shapes03(httpJSON), "Task", restTask03, ""},
		{"0.3 in 1.0", shapes10(), "Task", goodTask03, `"kind"`},
		{"1.0 in 0.3", shapes03(jsonRPC), "Task", goodTask10, "kind is missing"},
		{"1.0 in 0.3 REST", shapes03(httpJSON), "Task", swap("CANCELLED", "CANCELED").Replace(restTask03), "TASK_STATE_CANCELED"},
		{"parts in 0.3 REST", shapes03(httpJSON), "Task", swap("content", "parts").Replace(restTask03), `"parts"`},
		{"kebab state", shapes10(), "Task", swap("TASK_STATE_WORKING", "input-required").Replace(goodTask10), "input-required"},
		{"unspecified", shapes10(), "Task", swap("WORKING", "UNSPECIFIED").Replace(goodTask10), "UNSPECIFIED"},
		{"offset", shapes10(), "Task", swap("000Z", "000+01:00").Replace(goodTask10), "+01:00"},
		{"no status", shapes10(), "Task", `{"id":"t","contextId":"c"}`, "status is missing"},
		{"empty id", shapes10(), "Task", swap(`"t"`, `""`).Replace(goodTask10), "Task.id is , want id"},
		{"null list", shapes10(), "Task", swap(`"t"`, `"t","artifacts":null`).Replace(goodTask10), "artifacts is null"},
		{"null in metadata", shapes10(), "Task", swap(`"t"`, `"t","metadata":{"a":[{"b":null}]}`).Replace(goodTask10), "metadata.a[0].b is null"},
		{"unknown", shapes10(), "Task", swap(`"t"`, `"t","context_id":"c"`).Replace(goodTask10), `"context_id"`},
		{"two in a part", shapes10(), "Part", `{"text":"x","url":"y"}`, "has 2 of"},
		{"nothing in a part", shapes10(), "Part", `{"mediaType":"x"}`, "has 0 of"},
		{"no parts", shapes10(), "Artifact", `{"artifactId":"a","parts":[]}`, "parts is empty"},
		{"role", shapes10(), "Message", `{"messageId":"m","role":"user","parts":[{"text":"x"}]}`, "user"},
		{"final", shapes10(), "StreamResponse",
			`{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","timestamp":"2026-01-01T00:00:00Z"},"final":true}}`,
			`"final"`},
		{"null tasks", shapes10(), "ListTasksResponse", `{"tasks":null,"nextPageToken":"","pageSize":1,"totalSize":0}`, "tasks is null"},
		{"size as text", shapes10(), "ListTasksResponse", `{"tasks":[],"nextPageToken":"","pageSize":"1","totalSize":0}`, "pageSize"},
	} {
		got := strings.Join(c.of.check(c.kind, c.kind, decoded(t, c.body)), "; ")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func response(status int, media, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}}, Body: io.NopCloser(strings.NewReader(body))}
}

const (
	restFault = `{"error":{"code":404,"status":"NOT_FOUND","message":"m","details":[` + info + `]}}`
	rpcFault  = `{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"m","data":[` + info + `]}}`
	info      = `{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND","domain":"a2a-protocol.org"}`
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name   string
		form   form
		status int
		media  string
		body   string
		ok     bool
	}{
		{"result", rest10(), 200, typeJSON, goodTask10, true},
		{"own type", rest10(), 200, typeA2A, goodTask10, true},
		{"fault", rest10(), 404, typeJSON, restFault, true},
		{"plain text", rest10(), 404, "text/plain; charset=utf-8", "404 page not found", false},
		{"no type", rest10(), 405, "", "", false},
		{"no body", rest10(), 404, typeJSON, "", false},
		{"problem", rest10(), 404, "application/problem+json", `{"title":"x"}`, false},
		{"another code", rest10(), 400, typeJSON, restFault, false},
		{"no details", rest10(), 404, typeJSON, `{"error":{"code":404,"status":"NOT_FOUND","message":"m"}}`, false},
		{"more than error", rest10(), 404, typeJSON, strings.Replace(restFault, "{", `{"code":1,`, 1), false},
		{"more in 0.3", rest03(), 404, typeJSON, strings.Replace(restFault, "{", `{"code":1,`, 1), true},
		{"RPC result", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":7,"result":{}}`, true},
		{"RPC fault", rpc10(), 200, typeJSON, rpcFault, true},
		{"RPC own type", rpc10(), 200, typeA2A, rpcFault, false},
		{"another id", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":8,"result":{}}`, false},
		{"id as text", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":"7","result":{}}`, false},
		{"neither", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":7}`, false},
		{"both", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":7,"result":{},"error":{}}`, false},
		{"no version", rpc10(), 200, typeJSON, `{"id":7,"result":{}}`, false},
		{"data as object", rpc10(), 200, typeJSON, `{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"m","data":` + info + `}}`, false},
		{"reason in lower case", rpc10(), 200, typeJSON, strings.Replace(rpcFault, "TASK_NOT", "task_not", 1), false},
	} {
		e := exchange{form: c.form, op: opGet}
		if _, err := e.read(response(c.status, c.media, c.body)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestEvents(t *testing.T) {
	task := "id: 1\ndata: {\"task\":" + goodTask10 + "}\n\n"
	for _, c := range []struct {
		name, body string
		form       form
		events     int
		clean      bool // the stream ends in order
	}{
		{"one", task, rest10(), 1, true},
		{"signs of life", ": alive\n\n" + task + ": alive\n\n" + task, rest10(), 2, true},
		{"line ends", strings.ReplaceAll(task, "\n", "\r\n"), rest10(), 1, true},
		{"cut", task + "id: 2\ndata: {}", rest10(), 1, false},
		{"no JSON", "data: x\n\n", rest10(), 0, false},
		{"two members", "data: {\"task\":" + goodTask10 + ",\"message\":{}}\n\n", rest10(), 0, false},
		{"bare task", "data: " + goodTask10 + "\n\n", rest10(), 0, false},
		{"REST on RPC", task, rpc10(), 0, false},
		{"RPC", "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"task\":" + goodTask10 + "}}\n\n", rpc10(), 1, true},
		{"RPC error", "data: " + rpcFault + "\n\n", rpc10(), 0, false},
		{"0.3", "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":" + goodTask03 + "}\n\n", rpc03(), 1, true},
		{"1.0 as 0.3", "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"task\":" + goodTask10 + "}}\n\n", rpc03(), 0, false},
	} {
		s := newStream(c.form, response(200, "text/event-stream", c.body), func() {})
		n := 0
		var err error
		for err == nil {
			if _, err = s.next(); err == nil {
				n++
			}
		}
		if n != c.events || (err == io.EOF) != c.clean { //nolint:errorlint // the very end of a stream
			t.Errorf("%s: %d events, then %v", c.name, n, err)
		}
	}
}

// TestReport: one failure fails a requirement, whatever else passed, and what
// was never looked at is no pass.
func TestReport(t *testing.T) {
	var r report
	r.add("CORE-GET-001", outcome{Target: "host", Result: pass})
	r.add("CORE-GET-001", outcome{Target: "vm", Form: "JSONRPC 1.0", Result: fail, Reason: "it is\nwrong"})
	r.add("CORE-GET-001", outcome{Target: "host", Result: pass})
	r.add("CORE-GET-002", outcome{Target: "host", Result: skip, Reason: "why"})
	r.add("CORE-GET-002", outcome{Target: "vm", Result: pass})
	var table bytes.Buffer
	if err := r.print(&table); err != nil {
		t.Fatal(err)
	}
	for _, l := range r.lines() {
		want := skip
		switch {
		case l.ID == "CORE-GET-001":
			want = fail
			if l.Reason != "vm JSONRPC 1.0: it is wrong" || l.where() != "host,vm" {
				t.Errorf("%+v on %s", l, l.where())
			}
		case l.ID == "CORE-GET-002":
			want = pass
		case l.Result == none:
			want = none
		}
		if l.Result != want || !strings.Contains(table.String(), l.ID) {
			t.Errorf("%s is %s, want %s", l.ID, l.Result, want)
		}
	}
	if !strings.Contains(table.String(), "MUST") || strings.Contains(table.String(), "\n\n\n") {
		t.Errorf("the table is\n%s", &table)
	}
}
