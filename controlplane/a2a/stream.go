package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

const headerLastEventID = "Last-Event-ID"

// feed is a stream of one task's events: a snapshot, then the log behind it.
// It reads the log at the pace of its reader, who holds up nobody else.
type feed struct {
	// message is the whole stream, if it is not nil: there is no task.
	message *task.Message

	first task.Record
	// after is the newest event the reader has.
	after uint64
	// untilInput ends the stream also when the task waits for a message.
	untilInput bool
	// waits: it waited already when the snapshot was taken.
	waits bool
}

// stream is SendStreamingMessage.
func (c *call) stream(ctx context.Context, req sendRequest) (*feed, *fault) {
	res, f := c.submit(ctx, req)
	switch {
	case f != nil:
		return nil, f
	case res.Message != nil:
		return &feed{message: res.Message}, nil
	}
	rec := res.Task
	if req.history >= 0 && len(rec.History) > req.history {
		rec.History = rec.History[len(rec.History)-req.history:]
	}
	return &feed{first: rec, after: rec.LastSeq, untilInput: true, waits: c.pauses(rec.Status.State)}, nil
}

// pauses reports whether a stream that ends for want of a message does so in
// this state. While a task waits for an authorization, which comes another way,
// streams stay (A2A 1.0, section 7.6.1); in 0.3 its event is marked final.
func (c *call) pauses(s task.State) bool {
	return s == task.InputRequired || s == task.AuthRequired && c.version == v03
}

// subscription asks for the stream of a task that exists.
type subscription struct {
	id string
	// lastEventID is the id of the newest event the client has; empty for none.
	lastEventID string
}

// subscribe is SubscribeToTask. A client that names the last event it has gets
// exactly those behind it, also when the task has ended meanwhile; its
// snapshot then has no artifacts, which it has already.
func (c *call) subscribe(ctx context.Context, sub subscription) (*feed, *fault) {
	last, err := strconv.ParseUint(sub.lastEventID, 10, 63)
	resume := sub.lastEventID != ""
	rec, f := c.find(ctx, sub.id, task.View{History: -1, Inline: -1})
	switch {
	case f != nil:
		return nil, f
	case resume && (err != nil || last > rec.LastSeq):
		return nil, errField(headerLastEventID, "is not the id of an event of this task")
	case resume:
		return &feed{first: rec, after: last}, nil
	case rec.Status.State.Terminal():
		return nil, errUnsupported("the task has ended: " + string(rec.Status.State))
	}
	// The snapshot is the task as it was at one event, its id: what does not fit
	// into it comes behind it, and an id alone says where a reader is.
	if rec, f = c.find(ctx, sub.id, task.View{History: -1, Inline: c.cfg.Limits.Inline, Consistent: true}); f != nil {
		return nil, f
	}
	return &feed{first: rec, after: rec.LastSeq}, nil
}

// ends reports whether the stream ends with an event, and whether it is passed
// over: a question that was answered before the snapshot was taken, although
// that does not go so far, would end the stream of who follows up to the next.
func (c *call) ends(fd *feed, e task.Event) (ends, skip bool) {
	if e.Status == nil {
		return false, false
	}
	state := e.Status.Status.State
	if state.Terminal() || !fd.untilInput || !c.pauses(state) {
		return state.Terminal(), false
	}
	return e.Seq >= fd.first.StatusSeq, e.Seq < fd.first.StatusSeq
}

// restStream serves an operation of HTTP+JSON that answers with a stream.
func (s *surface) restStream(open streamOpener) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, f := s.begin(w, r)
		if f != nil {
			s.refuse(w, r, f)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.Limits.Body)
		feed, f := open(c, r)
		if f != nil { // before the first event: a plain error, not a stream
			s.refuse(w, r, f)
			return
		}
		if f := c.serve(w, r, feed, func(v any) any { return c.shape(httpJSON, v) }); f != nil {
			s.refuse(w, r, f)
		}
	}
}

type streamOpener func(c *call, r *http.Request) (*feed, *fault)

func restStreamSend(c *call, r *http.Request) (*feed, *fault) {
	raw, f := c.body(r, true)
	if f != nil {
		return nil, f
	}
	return c.streamRaw(r.Context(), raw)
}

func restSubscribe(c *call, r *http.Request) (*feed, *fault) {
	return c.subscribe(r.Context(), subscription{id: mux.Vars(r)["task"], lastEventID: r.Header.Get(headerLastEventID)})
}

// serve writes the feed as server-sent events, each in the frame of its
// binding, until the task's stream ends or the reader goes or stalls. A fault
// is from before the first event: nothing has been written.
func (c *call) serve(w http.ResponseWriter, r *http.Request, fd *feed, frame func(any) any) *fault {
	first, f := c.opens(r.Context(), fd)
	if f != nil {
		return f
	}
	leave := c.streams.Take(c.caller.scope().TenantOrDefault())
	if leave == nil {
		return errBusy("as many streams are open as may be")
	}
	defer leave()
	if c.version == v03 {
		fd.untilInput = true // its last event says final, and is the last
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that gather answers would hold up events
	h.Set("X-Content-Type-Options", "nosniff")
	out := &sse{w: w, control: http.NewResponseController(w), stall: c.cfg.Limits.Stall, frame: frame}
	if fd.message != nil {
		_ = out.put("", first) // it has no place in a log; a reader who has gone needs none
		return nil
	}
	if out.event(fd.after, first) != nil {
		return nil
	}
	fd.told()
	if err := c.pump(r.Context(), fd, out); err != nil && r.Context().Err() == nil && !errors.Is(err, errReaderGone) {
		c.cfg.Log.ErrorContext(r.Context(), "cannot read a task's events", "task", fd.first.ID, "error", err)
	}
	return nil
}

// told forgets what the reader has been told, which may be large: the stream may
// last, and there may be many.
func (fd *feed) told() {
	was := fd.first
	fd.first = task.Record{LastSeq: was.LastSeq, StatusSeq: was.StatusSeq}
	fd.first.ID, fd.first.ContextID = was.ID, was.ContextID
}

// opens is the first event of a feed.
func (c *call) opens(ctx context.Context, fd *feed) (map[string]any, *fault) {
	if fd.message != nil {
		return map[string]any{"message": *fd.message}, nil
	}
	t, f := c.present(ctx, fd.first)
	return map[string]any{"task": t}, f
}

// pump writes events until the stream ends.
func (c *call) pump(ctx context.Context, fd *feed, out *sse) error {
	alive := time.NewTicker(c.cfg.Limits.KeepAlive)
	defer alive.Stop()
	id := fd.first.ID
	for {
		changed := c.cfg.Tasks.Changed(id)
		events, err := c.cfg.Store.Events(ctx, c.caller.scope(), id, fd.after)
		if err != nil {
			return err
		}
		for _, e := range events {
			fd.after = e.Seq
			ends, skip := c.ends(fd, e)
			if skip {
				continue
			}
			if err := out.event(e.Seq, update(fd.first, e)); err != nil {
				return err
			}
			if ends {
				return nil
			}
		}
		if len(events) > 0 {
			continue
		}
		if fd.waits && fd.after == fd.first.LastSeq {
			return nil // it waits for somebody again, as the snapshot says
		}
		if changed == nil {
			return nil // nobody works on it: it has ended, or the server is stopping
		}
		select {
		case <-changed:
		case <-alive.C:
			if err := out.comment("keep-alive"); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-c.cfg.Tasks.Done():
			return nil
		}
	}
}

// update is the member of a StreamResponse for an event.
func update(rec task.Record, e task.Event) map[string]any {
	if s := e.Status; s != nil {
		u := map[string]any{"taskId": rec.ID, "contextId": rec.ContextID, "status": s.Status}
		if len(s.Metadata) > 0 {
			u["metadata"] = s.Metadata
		}
		return map[string]any{"statusUpdate": u}
	}
	k := e.Chunk
	// The position lets a client that follows anew tell what it has already.
	meta := map[string]any{"offset": k.Offset}
	if k.Last {
		meta["total_bytes"], meta["sha256"] = k.Size, k.SHA256
	}
	return map[string]any{"artifactUpdate": map[string]any{
		"taskId": rec.ID, "contextId": rec.ContextID,
		"artifact": task.Artifact{ArtifactID: k.ArtifactID, Name: k.Name, Parts: []task.Part{k.Part()}},
		"append":   k.Offset > 0, "lastChunk": k.Last, "metadata": meta,
	}}
}

var errReaderGone = errors.New("the reader has gone")

// sse writes server-sent events.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	frame   func(any) any
}

func (s *sse) event(id uint64, v any) error {
	return s.put("id: "+strconv.FormatUint(id, 10)+"\n", v)
}

// put writes an event behind the lines that are its head.
func (s *sse) put(head string, v any) error {
	body, err := json.Marshal(s.frame(v)) // has no newline
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Grow(len(head) + len(body) + 8)
	b.WriteString(head)
	b.WriteString("data: ")
	b.Write(body)
	b.WriteString("\n\n")
	return s.write(b.Bytes())
}

func (s *sse) comment(text string) error { return s.write([]byte(": " + text + "\n\n")) }

func (s *sse) write(b []byte) error {
	// Not every writer has deadlines; without one the server's own hold.
	_ = s.control.SetWriteDeadline(time.Now().Add(s.stall))
	if _, err := s.w.Write(b); err != nil {
		return errReaderGone
	}
	if err := s.control.Flush(); err != nil {
		return errReaderGone
	}
	return nil
}
