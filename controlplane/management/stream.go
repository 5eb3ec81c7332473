package management

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// openStream takes one of the places for requests that last.
func (a *api) openStream(r *http.Request) (release func(), err error) {
	if release = a.streams.Take(tenant(r)); release != nil {
		return release, nil
	}
	return nil, &instance.Fault{
		Blame: instance.Host, Code: codeTooManyStreams, Hint: "close others, or try again later",
		Err: fmt.Errorf("as many streams are open as this server keeps, which is at most %d", a.MaxStreams),
	}
}

// stream sends what comes out of a channel until that is closed or the client
// has gone.
func stream[T any](a *api, s *eventStream, r *http.Request, from <-chan T, send func(T) error) {
	heartbeat := time.NewTicker(a.Heartbeat)
	defer heartbeat.Stop()
	for {
		var err error
		select {
		case v, ok := <-from:
			if !ok {
				return
			}
			err = send(v)
			heartbeat.Reset(a.Heartbeat)
		case <-heartbeat.C:
			err = s.comment()
		case <-r.Context().Done():
			return
		}
		if err != nil {
			a.Log.DebugContext(r.Context(), "cannot write event", "error", err)
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
	s := &eventStream{w: w, rc: http.NewResponseController(w), stall: stall}
	_ = s.rc.Flush() // a client sees at once that there is a stream
	return s
}

// event sends one event; without an id a reader cannot go on behind it.
func (s *eventStream) event(id, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode event: %w", err)
	}
	frame := "event: " + name + "\ndata: " + string(data) + "\n\n"
	if id != "" {
		frame = "id: " + id + "\n" + frame
	}
	return s.send(frame)
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
