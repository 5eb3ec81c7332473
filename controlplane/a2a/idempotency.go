package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// A message sent with idempotency/v1 is carried out once. Its key is the
// principal, the instance and the message's id: neither the method nor the
// binding is part of it, so a client may repeat a message on the other binding
// or as a stream. What is kept is therefore the answer itself and not its form
// on the wire, which is made anew, from the same answer the same bytes.
//
//	join ── first? ── reserve ── known? ── answer it again
//	  └ wait for the first             └── carry out, keep the answer

// Reservations remembers messages. Every method is durable when it returns.
type Reservations interface {
	// Reserve returns what is known of the message, or stores want as the
	// beginning of it and returns that.
	Reserve(ctx context.Context, k idempotency.Key, want idempotency.Reservation, at time.Time, b idempotency.Bounds) (
		idempotency.Reservation, error)
	// Answer stores how the message was answered; a first answer stays.
	Answer(ctx context.Context, k idempotency.Key, taskID string, answer []byte) error
}

const headerReplayed = "Idempotent-Replayed"

// keptAnswer bounds the answers that are stored, in bytes. Longer ones of
// tasks that have ended are made again from the task, which does not change.
const keptAnswer = 64 << 10

// idempotencyParams are the params of idempotency/v1.
type idempotencyParams struct {
	TTLSeconds       int64  `json:"ttl_seconds"`
	Canonicalization string `json:"canonicalization"`
	HashAlgorithm    string `json:"hash_algorithm"`
	MaxCacheEntries  int    `json:"max_cache_entries"`
}

// extensions lists what an agent supports here, in the order of its card.
func (s *surface) extensions(a Agent) []extension {
	all := a.extensions()
	if s.cfg.Reservations != nil {
		all = append(all, extension{
			URI:         extensions.Idempotency,
			Description: "A message that is sent again is carried out once and answered as before.",
			Params: idempotencyParams{
				TTLSeconds:       int64(s.cfg.Limits.Replay.TTL / time.Second),
				Canonicalization: idempotency.Canonicalization, HashAlgorithm: idempotency.HashAlgorithm,
				MaxCacheEntries: s.cfg.Limits.Replay.Entries,
			},
		})
	}
	for i := range all {
		all[i].Required = all[i].Required && !s.cfg.NothingRequired
	}
	return all
}

// flights are the messages that are being carried out now.
type flights struct {
	mu  sync.Mutex
	all map[idempotency.Key]*flight
}

// flight is one of them. Its zero value is nobody's.
type flight struct {
	key    idempotency.Key
	hash   string
	taskID string // of the task, if one is made
	// earlier: the message was reserved before, and not answered.
	earlier bool
	made    chan struct{} // closed when the task has been made
	done    chan struct{} // closed when the answer is known, or will not be
}

// join returns the flight of the message, and whether the caller is its pilot,
// who must leave it.
func (fs *flights) join(f *flight) (*flight, bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if have := fs.all[f.key]; have != nil {
		return have, false
	}
	if fs.all == nil {
		fs.all = map[idempotency.Key]*flight{}
	}
	fs.all[f.key] = f
	return f, true
}

func (fs *flights) leave(f *flight) {
	fs.mu.Lock()
	delete(fs.all, f.key)
	fs.mu.Unlock()
	close(f.done)
}

// takeOff makes the flight of the params of a message.
func (c *call) takeOff(ctx context.Context, raw json.RawMessage) (*flight, *fault) {
	messageID, hash, err := idempotency.Fingerprint(raw)
	switch {
	case errors.Is(err, idempotency.ErrMessageID):
		return nil, errMessageID(err.Error())
	case err != nil:
		return nil, errInvalid("the request cannot be compared with another: " + err.Error())
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, c.internal(ctx, "make a task id", err)
	}
	return &flight{
		key: idempotency.Key{
			Tenant: c.caller.scope().TenantOrDefault(), Principal: c.caller.Name, Instance: c.agent.ID, MessageID: messageID,
		},
		hash: hash, taskID: id.String(), made: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// board waits until nobody else carries the message out and returns what is
// known of it then; the caller must leave the flight. A caller who wants a
// stream need not wait longer than for the task: then the flight is nil.
func (c *call) board(ctx context.Context, raw json.RawMessage, stream bool) (*flight, idempotency.Reservation, *fault) {
	var none idempotency.Reservation
	own, f := c.takeOff(ctx, raw)
	if f != nil {
		return nil, none, f
	}
	for {
		fl, pilot := c.flights.join(own)
		if pilot {
			break
		}
		if fl.hash != own.hash {
			return nil, none, errOtherPayload(own.key.MessageID, fl.hash, own.hash)
		}
		made := fl.made
		if !stream {
			made = nil
		}
		select {
		case <-fl.done:
		case <-made:
			return nil, idempotency.Reservation{Hash: fl.hash, TaskID: fl.taskID}, nil
		case <-ctx.Done():
			return nil, none, c.internal(ctx, "wait for an equal message", ctx.Err())
		case <-c.cfg.Tasks.Done():
			return nil, none, errClosing()
		}
	}
	got, err := c.cfg.Reservations.Reserve(ctx, own.key, idempotency.Reservation{Hash: own.hash, TaskID: own.taskID},
		c.cfg.Now(), c.cfg.Limits.Replay)
	switch {
	case err != nil:
		f = c.internal(ctx, "reserve a message", err)
	case got.Hash != own.hash:
		f = errOtherPayload(own.key.MessageID, got.Hash, own.hash)
	default:
		own.earlier = got.TaskID != own.taskID
		own.taskID = got.TaskID
		return own, got, nil
	}
	c.flights.leave(own)
	return nil, none, f
}

// once reports whether a message is to be carried out once.
func (c *call) once(raw json.RawMessage) bool {
	if c.cfg.Reservations == nil || !slices.Contains(c.extensions, extensions.Idempotency) {
		return false
	}
	_, _, err := idempotency.Fingerprint(raw)
	return !errors.Is(err, idempotency.ErrShape) // then decoding refuses it
}

// sendRaw is SendMessage with the params as they came.
func (c *call) sendRaw(ctx context.Context, raw json.RawMessage) (any, *fault) {
	run := func() (any, *fault) {
		req, f := c.decodeSend(raw)
		if f != nil {
			return nil, f
		}
		return c.send(ctx, req)
	}
	if !c.once(raw) {
		return run()
	}
	fl, known, f := c.board(ctx, raw, false)
	if f != nil {
		return nil, f
	}
	defer c.flights.leave(fl)
	if v, f, ok := c.answered(known); ok {
		c.replayed()
		return v, f
	}
	id, f := c.madeBy(ctx, fl, known, raw)
	switch {
	case f != nil:
		return nil, f
	case id != "": // its task was made, by a stream or by a process that died
		c.replayed()
		v, f := c.resolve(ctx, id, raw)
		c.keep(ctx, fl, v, f)
		return v, f
	}
	c.flight = fl
	v, f := run()
	f = c.unsettled(ctx, fl, raw, f)
	c.keep(ctx, fl, v, f)
	return v, f
}

// streamRaw is SendStreamingMessage with the params as they came. A message
// that is sent again gets its task's stream from the start.
func (c *call) streamRaw(ctx context.Context, raw json.RawMessage) (*feed, *fault) {
	run := func() (*feed, *fault) {
		req, f := c.decodeSend(raw)
		if f != nil {
			return nil, f
		}
		return c.stream(ctx, req)
	}
	if !c.once(raw) {
		return run()
	}
	fl, known, f := c.board(ctx, raw, true)
	if f != nil {
		return nil, f
	}
	if fl != nil {
		defer c.flights.leave(fl)
	}
	if a := decodeAnswer(known); a.Fault != nil {
		c.replayed()
		return nil, a.Fault.fault()
	} else if a.Message != nil {
		c.replayed()
		return &feed{message: a.Message}, nil
	} else if a.Opening != nil {
		c.replayed()
		return a.Opening.feed(c), nil
	}
	id, f := c.madeBy(ctx, fl, known, raw)
	switch {
	case f != nil:
		return nil, f
	case id != "":
		c.replayed()
		return c.again(ctx, id, known, raw)
	}
	c.flight = fl
	feed, f := run()
	if f = c.unsettled(ctx, fl, raw, f); f != nil {
		c.keep(ctx, fl, nil, f)
		return nil, f
	}
	if feed.message != nil {
		c.store(ctx, fl, storedAnswer{Message: feed.message})
	} else {
		c.store(ctx, fl, storedAnswer{Opening: newOpening(feed)})
	}
	return feed, nil
}

// replayed marks the answer as that of an earlier request.
func (c *call) replayed() { c.header.Set(headerReplayed, "true") }

// taskID is the id that a new task must have; empty: any.
func (f *flight) id() string {
	if f == nil {
		return ""
	}
	return f.taskID
}

// landed tells those who wait that the task has been made.
func (f *flight) landed() {
	if f != nil {
		close(f.made)
	}
}

// taskOf returns the id of the task that was made of a message; empty if none
// was. Nothing has been done then: whoever had begun died, or was refused for
// a reason that passes.
func (c *call) taskOf(ctx context.Context, known idempotency.Reservation) (string, *fault) {
	id := known.TaskID
	if a := decodeAnswer(known); a.taskID() != "" {
		id = a.taskID() // a message to a task there was before
	}
	_, err := c.cfg.Store.Task(ctx, c.caller.scope(), id, task.View{Inline: -1})
	switch {
	case errors.Is(err, task.ErrNotFound) && !known.Answered:
		return "", nil
	case err != nil:
		return "", c.explain(ctx, "read a task", err)
	}
	return id, nil
}

// resolve answers for a message whose task was made.
func (c *call) resolve(ctx context.Context, id string, raw json.RawMessage) (any, *fault) {
	req, f := c.decodeSend(raw)
	if f != nil {
		return nil, f
	}
	return c.await(ctx, id, req)
}

// again is the stream of a task from its first event.
func (c *call) again(ctx context.Context, id string, known idempotency.Reservation, raw json.RawMessage) (*feed, *fault) {
	req, f := c.decodeSend(raw)
	if f != nil {
		return nil, f
	}
	rec, err := c.cfg.Store.Task(ctx, c.caller.scope(), id, task.View{History: req.history, Inline: -1})
	if err != nil {
		return nil, c.explain(ctx, "read a task", err)
	}
	if id != known.TaskID { // it was there before the message: its start is not the message's
		return &feed{first: rec, after: rec.LastSeq, untilInput: true}, nil
	}
	events, err := c.cfg.Store.Events(ctx, c.caller.scope(), id, 0)
	if err != nil {
		return nil, c.explain(ctx, "read a task's events", err)
	}
	if len(events) == 0 || events[0].Status == nil {
		return nil, c.internal(ctx, "replay a stream", errors.New("the task's log does not begin with its state"))
	}
	rec.Status, rec.Metadata, rec.LastSeq = events[0].Status.Status, nil, events[0].Seq
	rec.History = rec.History[:min(len(rec.History), 1)]
	return &feed{first: rec, after: rec.LastSeq, untilInput: true}, nil
}

// keep stores the answer to a message. It does not if nothing was done and
// trying again may help, and not if the answer is one only because the client
// or this process went away: an equal message then finds the task, if one was
// made, and is answered by its end.
func (c *call) keep(ctx context.Context, fl *flight, v any, f *fault) {
	select {
	case <-c.cfg.Tasks.Done():
		return
	default:
	}
	switch {
	case ctx.Err() != nil, f != nil && f.passes():
		return
	case f != nil:
		kept, err := newStoredFault(f)
		if err != nil { // the next one is refused anew
			c.cfg.Log.ErrorContext(ctx, "cannot keep a refusal", "error", err)
			return
		}
		c.store(ctx, fl, storedAnswer{Fault: kept})
		return
	}
	m, _ := v.(map[string]any)
	var a storedAnswer
	if t, ok := m["task"].(task.Task); ok {
		a.Task = &t
	} else if msg, ok := m["message"].(task.Message); ok {
		a.Message = &msg
	}
	c.store(ctx, fl, a)
}

func (c *call) store(ctx context.Context, fl *flight, a storedAnswer) {
	raw, err := json.Marshal(a)
	if len(raw) > keptAnswer && a.Task != nil && a.Task.ID == fl.taskID && a.Task.Status.State.Terminal() {
		raw = nil
	}
	if err == nil {
		// The answer is true whether or not the client still waits for it.
		err = c.cfg.Reservations.Answer(context.WithoutCancel(ctx), fl.key, fl.taskID, raw)
	}
	if err != nil { // an equal message will find the task
		c.cfg.Log.ErrorContext(ctx, "cannot keep the answer to a message", "task", fl.taskID, "error", err)
	}
}
