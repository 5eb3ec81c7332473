package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

const maxEvent = 4 << 20 // bytes of one line of a stream

// reopening says when a stream that broke is opened again: the server may be
// restarting.
type reopening struct {
	what    string // for errors
	attempt int
}

var errStreamEnds = errors.New("the stream ends too early")

// progressed tells that the last stream was of use.
func (r *reopening) progressed() { r.attempt = 0 }

// after waits a moment and returns nil if the stream is to be opened again,
// else why not. err is how it ended; nil: the server closed it.
func (r *reopening) after(ctx context.Context, err error) error {
	var problem *problemError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("cannot follow %s: %w", r.what, ctx.Err())
	case errors.As(err, &problem) && problem.Status < http.StatusInternalServerError &&
		problem.Status != http.StatusTooManyRequests, errors.Is(err, bufio.ErrTooLong), errors.Is(err, errUnreadable):
		return err
	case r.attempt >= maxReopens:
		return fmt.Errorf("cannot follow %s: %w", r.what, errors.Join(err, errStreamEnds))
	}
	r.attempt++
	return nap(ctx, min(firstNap<<min(r.attempt-1, 8), lastNap))
}

// errUnreadable says that a stream holds what nobody can read, which it would
// again.
var errUnreadable = errors.New("cannot read event")

// events reads a stream of server-sent events; each one is a line of JSON.
// The id is empty for events that have none; one without data tells only
// where the stream begins. An error of each ends it.
func (c *connection) events(resp *http.Response, err error, opened func() error, each func(id string, data []byte) error) error {
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEvent))
		if err != nil {
			return c.explain(err)
		}
		return problemOf(resp, body)
	}
	if opened != nil {
		if err := opened(); err != nil {
			return err
		}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	id, data := "", ""
	for lines.Scan() {
		line := lines.Text()
		if v, ok := strings.CutPrefix(line, "id: "); ok {
			id = v
		} else if v, ok := strings.CutPrefix(line, "data: "); ok {
			data = v
		}
		if line != "" || (data == "" && id == "") {
			continue // an event ends with an empty line, else it was torn off
		}
		if err := each(id, []byte(data)); err != nil {
			return err
		}
		id, data = "", ""
	}
	return lines.Err()
}

// eventQuery says which events of the fleet to follow.
type eventQuery struct {
	instance string // id or name; empty: of all
	types    []string
	after    *int64 // begin behind this one; nil: from now on
	// opened is called each time that a stream has been opened: what happens
	// from then on is in it. broke is told when one has ended. Both may be nil,
	// and may end everything by an error.
	opened func() error
	broke  func(error) error
	// anew says that opened looks at everything anew, so that nothing is missed
	// with events that the server has forgotten.
	anew bool
}

// followEvents follows what happens in the fleet until ctx ends, or opened or
// each returns an error. It goes on behind the last event when the stream
// breaks.
func (c *connection) followEvents(ctx context.Context, q eventQuery, each func(managementv1.Event) error) error {
	params := managementv1.WatchEventsParams{Type: q.types, After: q.after}
	if q.instance != "" {
		params.Instance = &q.instance
	}
	r := reopening{what: "events"}
	for {
		var enough error
		resp, err := c.api.WatchEvents(ctx, &params)
		err = c.events(resp, err, func() error {
			if q.opened != nil {
				enough = q.opened()
			}
			return enough
		}, func(id string, data []byte) error {
			r.progressed()
			if id != "" {
				params.LastEventID = &id
			}
			if len(data) == 0 {
				return nil
			}
			e, err := decode[managementv1.Event](data)
			if err != nil {
				return err
			}
			enough = each(e)
			return enough
		})
		if enough != nil {
			return enough
		}
		if q.broke != nil && ctx.Err() == nil {
			if enough := q.broke(err); enough != nil {
				return enough
			}
		}
		var problem *problemError
		if q.anew && errors.As(err, &problem) && problem.Code == codeEventsGone {
			params.LastEventID, err = nil, nil
		}
		if err := r.after(ctx, err); err != nil {
			return err
		}
	}
}

const codeEventsGone = "events.gone"
