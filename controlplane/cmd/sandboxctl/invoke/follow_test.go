package invoke_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
)

// log is a machine's A2A address over a log of events, as our server has it:
// a stream may break after any event and is continued by Last-Event-ID.
type log struct {
	mu     sync.Mutex
	events []string // in JSON
	// cut is how many events each connection may send before it breaks.
	cut      func() int
	requests []*http.Request
}

func (l *log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, r)
	after := 0
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		after, _ = strconv.Atoi(id)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	state := "TASK_STATE_WORKING"
	if after == len(l.events) {
		state = "TASK_STATE_COMPLETED"
	}
	fmt.Fprintf(w, ": hello\nid: %d\ndata: {\"task\":{\"id\":\"T\",\"status\":{\"state\":%q}}}\n\n", after, state)
	n := l.cut()
	for i := after; i < len(l.events); i++ {
		if n--; n < 0 {
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "id: %d\ndata: %s\n\n", i+1, l.events[i])
	}
}

func chunk(name, data string, offset int, last bool) string {
	sum := sha256.Sum256([]byte(data))
	meta := map[string]any{"offset": offset}
	part := map[string]any{"text": data}
	if last {
		meta = map[string]any{"offset": len(data), "total_bytes": len(data), "sha256": hex.EncodeToString(sum[:])}
		part = map[string]any{"raw": ""}
	}
	return toJSON(map[string]any{"artifactUpdate": map[string]any{
		"taskId": "T", "append": offset > 0, "lastChunk": last, "metadata": meta,
		"artifact": map[string]any{"artifactId": "id-" + name, "name": name, "parts": []any{part}},
	}})
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func status(state string, metadata map[string]any) string {
	return toJSON(map[string]any{"statusUpdate": map[string]any{"taskId": "T", "status": map[string]any{"state": state}, "metadata": metadata}})
}

type collected struct {
	mu  sync.Mutex
	out map[string]string
}

func (c *collected) add(name string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		c.out = map[string]string{}
	}
	c.out[name] += string(data)
	return nil
}

func follower(url string, c *collected) *invoke.Follower {
	return &invoke.Follower{
		Client: &invoke.Client{HTTP: http.DefaultClient, Base: url + "/agents/x", Token: "secret", Limits: invoke.DefaultLimits()},
		Output: c.add, Patience: time.Minute, Wait: time.Millisecond,
	}
}

// TestEveryByteOnce breaks the stream at random places.
func TestEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var events []string
		want := map[string]string{"stdout": "", "stderr": ""}
		for range rapid.IntRange(0, 12).Draw(rt, "chunks") {
			name := rapid.SampledFrom([]string{"stdout", "stderr"}).Draw(rt, "name")
			data := rapid.StringN(1, 8, -1).Draw(rt, "data")
			events = append(events, chunk(name, data, len(want[name]), false))
			want[name] += data
		}
		events = append(events, chunk("stdout", want["stdout"], 0, true),
			status("TASK_STATE_COMPLETED", map[string]any{invoke.ExtensionAdapterCommand: map[string]any{"exit_code": 0}}))
		l := &log{events: events}
		progress := 0 // now and then a connection brings nothing
		l.cut = func() int {
			if progress++; progress%3 == 0 {
				return 0
			}
			return rapid.IntRange(1, 4).Draw(rt, "cut")
		}
		s := httptest.NewServer(l)
		defer s.Close()
		s.Config.ErrorLog = nil
		var c collected
		res, err := follower(s.URL, &c).Send(rt.Context(), invoke.Message{MessageID: "m", Role: "ROLE_USER"})
		if err != nil || res.Task.Status.State != invoke.Completed {
			rt.Fatalf("got %+v, %v", res, err)
		}
		if o, ok := res.Task.Outcome(); !ok || *o.ExitCode != 0 {
			rt.Fatalf("outcome is %+v, %v", o, ok)
		}
		if c.out["stdout"] != want["stdout"] || c.out["stderr"] != want["stderr"] {
			rt.Fatalf("got %q, want %q", c.out, want)
		}
		for _, r := range l.requests {
			if r.Header.Get("A2A-Version") != "1.0" || r.Header.Get("Authorization") != "Bearer secret" ||
				!strings.Contains(r.Header.Get("A2A-Extensions"), invoke.ExtensionRuntime+", ") {
				rt.Fatalf("headers are %v", r.Header)
			}
		}
	})
}

// script answers each request in turn.
func script(t *testing.T, answers ...http.HandlerFunc) *httptest.Server {
	t.Helper()
	var n int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n >= len(answers) {
			t.Errorf("unexpected request %s %s", r.Method, r.URL)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		n++
		answers[n-1](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func stream(frames ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, f := range frames {
			fmt.Fprintf(w, "data: %s\n\n", f)
		}
	}
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

const working = `{"task":{"id":"T","contextId":"C","status":{"state":"TASK_STATE_WORKING"}}}`

// TestPlainServer follows a server that knows neither offsets nor ids of
// events: the snapshots tell what is missing.
func TestPlainServer(t *testing.T) {
	piece := func(text string) string {
		return `{"artifactUpdate":{"taskId":"T","append":true,"artifact":{"artifactId":"a","name":"stdout","parts":[{"text":"` + text + `"}]}}}`
	}
	whole := func(state, text string) string {
		return `{"id":"T","status":{"state":"` + state + `"},"artifacts":[{"artifactId":"a","name":"stdout","parts":[{"text":"` + text + `"}]}]}`
	}
	s := script(t,
		stream(working, piece("one ")),
		stream(`{"task":`+whole("TASK_STATE_WORKING", "one two ")+`}`, piece("three ")),
		answer(http.StatusBadRequest, `{"error":{"code":400,"message":"the task has ended","status":"FAILED_PRECONDITION"}}`),
		answer(http.StatusOK, whole("TASK_STATE_FAILED", "one two three four")),
	)
	var c collected
	var began, lost int
	f := follower(s.URL, &c)
	f.Began = func(id string) { began++ }
	f.Lost = func(error) { lost++ }
	res, err := f.Send(t.Context(), invoke.Message{})
	if err != nil || res.Task.Status.State != invoke.Failed || c.out["stdout"] != "one two three four" {
		t.Fatalf("got %+v, %v, %q", res, err, c.out)
	}
	if began != 1 || lost != 2 {
		t.Errorf("began %d times, lost %d times", began, lost)
	}
}

func TestEndsThatAreNoCompletion(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []http.HandlerFunc
		want    string
	}{
		{"no task", []http.HandlerFunc{stream()}, "without a task"},
		{"no stream", []http.HandlerFunc{answer(200, `{}`)}, "instead of a stream"},
		{"not JSON", []http.HandlerFunc{stream(`<html>`)}, "cannot parse event"},
		{"unknown event", []http.HandlerFunc{stream(`{"other":1}`)}, "no known kind"},
		{"error in stream", []http.HandlerFunc{stream(working, `{"error":{"message":"it broke"}}`)}, "it broke"},
		{"gap", []http.HandlerFunc{stream(working, chunk("stdout", "x", 5, false))}, "lacks bytes 0 to 5"},
		{"damage", []http.HandlerFunc{stream(working, chunk("stdout", "abc", 0, false), chunk("stdout", "abd", 0, true))}, "damaged"},
		{"another task", []http.HandlerFunc{stream(working, `{"task":{"id":"U","status":{"state":"TASK_STATE_WORKING"}}}`)}, `"U" instead of "T"`},
		{"task gone", []http.HandlerFunc{stream(working), answer(404, `{"error":{"message":"there is no such task"}}`),
			answer(404, `{"error":{"message":"there is no such task"}}`)}, "no such task"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out collected
			_, err := follower(script(t, c.answers...).URL, &out).Send(t.Context(), invoke.Message{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestRefusal(t *testing.T) {
	s := script(t, answer(http.StatusBadRequest, `{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"the envelope breaks a rule",
		"details":[{"@type":"x","reason":"INVALID_REQUEST"},{"fieldViolations":[{"field":"mode","description":"must be plan"}]}]}}`))
	var out collected
	_, err := follower(s.URL, &out).Send(t.Context(), invoke.Message{})
	var refused *invoke.Error
	if !errors.As(err, &refused) || !refused.Refused() || refused.Reason != "INVALID_REQUEST" ||
		err.Error() != "the envelope breaks a rule\n  mode: must be plan" {
		t.Errorf("got %#v", err)
	}
}

func TestMessageInsteadOfTask(t *testing.T) {
	s := script(t, stream(`{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi "},{"text":"there"}]}}`))
	var out collected
	res, err := follower(s.URL, &out).Send(t.Context(), invoke.Message{})
	if err != nil || res.Message.Text() != "hi there" {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestBounds wants a server that never stops to be left, not to fill memory.
func TestBounds(t *testing.T) {
	endless := func(media, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			block := strings.Repeat(text, 64<<10)
			for {
				if _, err := io.WriteString(w, block); err != nil {
					return
				}
			}
		}
	}
	limits := invoke.Limits{Event: 1 << 20, Document: 1 << 20}
	for _, c := range []struct {
		name, prefix, media string
		do                  func(*invoke.Client) error
	}{
		{"line", "x", "text/event-stream", func(c *invoke.Client) error {
			s, err := c.Send(t.Context(), invoke.Message{})
			if err == nil {
				_, err = s.Next()
				s.Close()
			}
			return err
		}},
		{"lines of one event", "data: x\n", "text/event-stream", func(c *invoke.Client) error {
			s, err := c.Send(t.Context(), invoke.Message{})
			if err == nil {
				_, err = s.Next()
				s.Close()
			}
			return err
		}},
		{"document", " ", "application/json", func(c *invoke.Client) error {
			_, _, err := c.Task(t.Context(), "T")
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := script(t, endless(c.media, c.prefix))
			err := c.do(&invoke.Client{HTTP: http.DefaultClient, Base: s.URL, Limits: limits})
			if err == nil || !strings.Contains(err.Error(), "too long") && !strings.Contains(err.Error(), "longer than") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCancelledContextEndsFollowing(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		stream(working)(w, r)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	ctx, stop := context.WithCancel(t.Context())
	var out collected
	f := follower(script(t, hang).URL, &out)
	f.Began = func(string) { stop() }
	res, err := f.Send(ctx, invoke.Message{})
	if !errors.Is(err, context.Canceled) || res.Task.ID != "T" {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestPatienceEnds(t *testing.T) {
	unavailable := answer(http.StatusServiceUnavailable, `{}`)
	var out collected
	f := follower(script(t, stream(working), unavailable, unavailable, unavailable, unavailable, unavailable).URL, &out)
	f.Patience = time.Millisecond
	_, err := f.Send(t.Context(), invoke.Message{})
	if err == nil || !strings.Contains(err.Error(), "cannot find task") {
		t.Errorf("got %v", err)
	}
}

func TestArtifactThatBreaksIsNotWhole(t *testing.T) {
	s := script(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := &invoke.Client{HTTP: http.DefaultClient, Base: s.URL, Limits: invoke.DefaultLimits()}
	content, err := c.Artifact(t.Context(), "T", "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if got, err := io.ReadAll(content); err == nil {
		t.Errorf("read %q without an error", got)
	}
}

// FuzzStream wants an end and no panic, whatever the server sends.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: " + working + "\n\n"))
	f.Add([]byte("id: 1\r\ndata: {\"message\":{}}\r\n\r\n: c\n\ndata: {}\n\n"))
	f.Add([]byte("data: " + chunk("stdout", "x", 0, true) + "\n\n"))
	f.Add([]byte("data: {\"artifactUpdate\":{\"metadata\":{\"offset\":-9}}}\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		transport := roundTripper(func(r *http.Request) (*http.Response, error) {
			res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r}
			res.Body = io.NopCloser(bytes.NewReader(data))
			res.Header.Set("Content-Type", "text/event-stream")
			if !strings.HasSuffix(r.URL.Path, "/message:stream") {
				res.StatusCode, res.Body = http.StatusNotFound, io.NopCloser(strings.NewReader("{}"))
			}
			return res, nil
		})
		var out collected
		fl := follower("http://sandbox.test", &out)
		fl.Client.HTTP = &http.Client{Transport: transport}
		fl.Client.Limits.Event = 4096
		if res, err := fl.Send(t.Context(), invoke.Message{}); err == nil && res.Task == nil && res.Message == nil {
			t.Error("neither a result nor an error")
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
