package invoke

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// Limits bound what is read of an answer, in bytes.
type Limits struct {
	// Event bounds one event of a stream. The first one after a new
	// subscription holds all output so far, so it is no smaller than Document.
	Event int
	// Document bounds a task, a card or an error.
	Document int64
}

// DefaultLimits suit tasks with much output.
func DefaultLimits() Limits { return Limits{Event: 256 << 20, Document: 256 << 20} }

// Client speaks to one machine.
type Client struct {
	// HTTP must have no timeout for whole requests: streams are long.
	HTTP *http.Client
	// Base is the machine's A2A address, without a slash at its end.
	Base   string
	Token  string
	Limits Limits
}

const maxError = 1 << 20

type header struct{ name, value string }

// do makes a request and returns only answers of success.
func (c *Client) do(ctx context.Context, method, path, accept string, body any, headers ...header) (*http.Response, error) {
	var in io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("cannot encode request: %w", err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, in)
	if err != nil {
		return nil, fmt.Errorf("cannot make request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("A2A-Version", "1.0")
	req.Header.Set("A2A-Extensions", ExtensionRuntime+", "+ExtensionAdapterCommand+", "+ExtensionHITLPrompt)
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	for _, h := range headers {
		req.Header.Set(h.name, h.value)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil {
		return nil, fmt.Errorf("cannot read error of server (HTTP status %d): %w", resp.StatusCode, err)
	}
	return nil, parseError(resp.StatusCode, text)
}

// document makes a request whose answer is one JSON value, and returns it
// both as it came and read into v.
func (c *Client) document(ctx context.Context, method, path string, body, v any) (json.RawMessage, error) {
	resp, err := c.do(ctx, method, path, "application/json", body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, c.Limits.Document+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read answer: %w", err)
	}
	if int64(len(raw)) > c.Limits.Document {
		return nil, fmt.Errorf("cannot read answer: it is longer than %d bytes", c.Limits.Document)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("cannot parse answer: %w", err)
	}
	return raw, nil
}

// Card returns the machine's AgentCard as it came.
func (c *Client) Card(ctx context.Context) (json.RawMessage, error) {
	var card map[string]json.RawMessage
	return c.document(ctx, http.MethodGet, "/.well-known/agent-card.json", nil, &card)
}

// Task returns a task, read and as it came.
func (c *Client) Task(ctx context.Context, id string) (*Task, json.RawMessage, error) {
	var t Task
	raw, err := c.document(ctx, http.MethodGet, "/tasks/"+url.PathEscape(id), nil, &t)
	if err != nil {
		return nil, nil, err
	}
	if t.ID == "" || t.Status.State == "" {
		return nil, nil, errors.New("cannot read task: the answer is none")
	}
	return &t, raw, nil
}

// Cancel asks for the end of a task. It ends later.
func (c *Client) Cancel(ctx context.Context, id string) (*Task, json.RawMessage, error) {
	var t Task
	raw, err := c.document(ctx, http.MethodPost, "/tasks/"+url.PathEscape(id)+":cancel", struct{}{}, &t)
	return &t, raw, err
}

// Stream is the events of one task.
type Stream struct {
	body   io.Closer
	frames *frames
}

// Close lets go of the stream. The task goes on.
func (s *Stream) Close() {
	_ = s.body.Close() // only read from
}

// Next returns the next event; io.EOF after the last one.
func (s *Stream) Next() (Event, error) {
	data, id, err := s.frames.next()
	if err != nil {
		return Event{}, err
	}
	var failure struct {
		Error json.RawMessage `json:"error"`
	}
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		return Event{}, fmt.Errorf("cannot parse event: %w", err)
	}
	if e.Task == nil && e.Message == nil && e.StatusUpdate == nil && e.Artifact == nil {
		if json.Unmarshal(data, &failure) == nil && failure.Error != nil {
			return Event{}, parseError(http.StatusOK, data)
		}
		return Event{}, errors.New("cannot parse event: it is of no known kind")
	}
	e.ID = id
	return e, nil
}

// Send sends a message and opens the stream of what comes of it.
func (c *Client) Send(ctx context.Context, m Message) (*Stream, error) {
	return c.stream(ctx, "/message:stream", map[string]any{"message": m})
}

// FromStart is the event before the first one of a task.
const FromStart = "0"

// Subscribe opens the stream of a task behind the event named after. Our
// server continues exactly there, also when the task has ended meanwhile;
// another one begins with the task and all output so far, and refuses a task
// that has ended.
func (c *Client) Subscribe(ctx context.Context, id, after string) (*Stream, error) {
	return c.stream(ctx, "/tasks/"+url.PathEscape(id)+":subscribe", struct{}{}, header{"Last-Event-ID", after})
}

// Artifact returns the whole content of an artifact, of which a task shows
// only the beginning when it is long. The caller closes it; a read error means
// that it is not whole.
func (c *Client) Artifact(ctx context.Context, task, artifact string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, "/tasks/"+url.PathEscape(task)+"/artifacts/"+url.PathEscape(artifact),
		"application/octet-stream", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) stream(ctx context.Context, path string, body any, headers ...header) (*Stream, error) {
	resp, err := c.do(ctx, http.MethodPost, path, "text/event-stream", body, headers...)
	if err != nil {
		return nil, err
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || !strings.EqualFold(media, "text/event-stream") {
		_ = resp.Body.Close() // only read from
		return nil, fmt.Errorf("cannot follow task: server answered %q instead of a stream", resp.Header.Get("Content-Type"))
	}
	return &Stream{body: resp.Body, frames: newFrames(resp.Body, c.Limits.Event)}, nil
}
