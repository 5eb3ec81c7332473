package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// event is one server-sent event, in the form of 1.0's StreamResponse; kind
// says which member it has.
type event struct {
	id   string
	kind string // task, message, statusUpdate, artifactUpdate
	body any    // of that member
}

func (e event) state() string { return text(e.body, "status", "state") }

// stream reads the events of one answer. It is not safe for concurrent use.
type stream struct {
	form   form
	header http.Header
	body   io.ReadCloser
	lines  *bufio.Reader
	stop   context.CancelFunc
}

const maxEvent = 16 << 20

func newStream(f form, resp *http.Response, stop context.CancelFunc) *stream {
	return &stream{form: f, header: resp.Header, body: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), stop: stop}
}

func (s *stream) close() {
	s.stop()
	_ = s.body.Close() // whatever was left in it is not wanted
}

// next returns the next event; io.EOF when the server has closed the stream.
func (s *stream) next() (event, error) {
	var e event
	var data strings.Builder
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && (line != "" || data.Len() > 0) {
				err = io.ErrUnexpectedEOF
			}
			return e, err
		}
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && data.Len() > 0:
			return s.decode(e, data.String())
		case field == "id":
			e.id = value
		case field == "data":
			if data.Len()+len(value) > maxEvent {
				return e, errors.New("an event is too large")
			}
			data.WriteString(value)
		case line == "", strings.HasPrefix(line, ":"): // a pause, or a sign of life
		default:
			return e, fmt.Errorf("a line that is none of an event: %.200q", line)
		}
	}
}

func (s *stream) decode(e event, data string) (event, error) {
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return e, fmt.Errorf("an event is no JSON: %w: %.200q", err, data)
	}
	if s.form.binding == jsonRPC {
		m, _ := v.(map[string]any)
		if id, ok := m["id"].(float64); m["jsonrpc"] != "2.0" || !ok || id != rpcID || len(m) != 3 || m["result"] == nil {
			return e, fmt.Errorf("an event is no answer of JSON-RPC: %.300s", data)
		}
		v = m["result"]
	}
	known, kind := shapes10(), "StreamResponse"
	if s.form.version == "0.3" {
		known = shapes03(s.form.binding)
	}
	if s.form == rpc03() {
		e.kind = map[string]string{
			"task": "task", "message": "message", "status-update": "statusUpdate", "artifact-update": "artifactUpdate",
		}[text(v, "kind")]
		kind = map[string]string{
			"task": "Task", "message": "Message", "statusUpdate": "TaskStatusUpdateEvent", "artifactUpdate": "TaskArtifactUpdateEvent",
		}[e.kind]
		e.body = v
	} else if m, ok := v.(map[string]any); ok {
		for name, body := range m {
			e.kind, e.body = name, body
		}
	}
	if bad := known.check(kind, "event", v); len(bad) > 0 {
		return e, fmt.Errorf("an event does not have the form of A2A %s: %s", s.form, strings.Join(bad, "; "))
	}
	return e, nil
}

// heard is what was read of a stream.
type heard struct {
	events []event
	closed bool // by the server, in order
}

// states are those of the task, in order, repetitions left out.
func (h heard) states() (all []string) {
	for _, e := range h.events {
		if s := e.state(); s != "" && (len(all) == 0 || all[len(all)-1] != s) {
			all = append(all, s)
		}
	}
	return all
}

// output is the text of an artifact by name, over all events.
func (h heard) output(name string) string {
	var b strings.Builder
	for _, e := range h.events {
		if e.kind == "task" {
			b.WriteString(output(e.body, name))
		}
		if a := dig(e.body, "artifact"); a != nil && text(a, "name") == name {
			b.WriteString(partText(a))
		}
	}
	return b.String()
}

func (h heard) last() event {
	if len(h.events) == 0 {
		return event{}
	}
	return h.events[len(h.events)-1]
}

// output is the text of an artifact of a task.
func output(task any, name string) string {
	var b strings.Builder
	for _, a := range list(task, "artifacts") {
		if text(a, "name") == name {
			b.WriteString(partText(a))
		}
	}
	return b.String()
}

func partText(v any) string {
	var b strings.Builder
	for _, p := range list(v, "parts") {
		b.WriteString(text(p, "text"))
	}
	return b.String()
}
