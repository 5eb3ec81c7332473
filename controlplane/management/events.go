package management

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

const maxEventTypes = 32

// ListEvents answers one page of the log of events, oldest first.
func (a *api) ListEvents(w http.ResponseWriter, r *http.Request, params managementv1.ListEventsParams) {
	key, err := cursor(cursorEvent, params.Cursor)
	bad := invalid(nil).and(err)
	limit, err := pageSize(params.Limit)
	if bad = bad.and(err); len(bad) > 0 {
		a.fail(w, r, bad.or(codeInvalidParameter))
		return
	}
	filter, err := a.eventFilter(r, params.Instance, params.Type)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	var after uint64
	if key != "" {
		after, _ = eventNumber(key) // cursor has read it
	}
	// One more than asked for tells whether there are more.
	var events []fleet.Event
	for len(events) <= limit {
		some, err := a.Events.Events(r.Context(), after, filter, limit+1-len(events))
		if err != nil {
			a.fail(w, r, err)
			return
		}
		if len(some) == 0 {
			break
		}
		events, after = append(events, some...), some[len(some)-1].Seq
	}
	list := managementv1.EventList{Items: make([]managementv1.Event, 0, len(events))}
	if len(events) > limit {
		events = events[:limit]
		list.NextCursor = cursorOf(cursorEvent, strconv.FormatUint(events[limit-1].Seq, 10))
	}
	for _, e := range events {
		list.Items = append(list.Items, eventJSON(e))
	}
	a.answer(w, r, http.StatusOK, list)
}

func (a *api) eventFilter(r *http.Request, ref *string, types []string) (fleet.EventFilter, error) {
	filter := fleet.EventFilter{Tenant: tenant(r), Types: types}
	var bad invalid
	if len(types) > maxEventTypes {
		bad = append(bad, fleet.FieldError{Field: "type", Code: "parameter.range", Message: "want at most 32 types"})
	}
	for _, t := range types {
		if !slices.Contains(fleet.EventTypes(), t) {
			bad = append(bad, fleet.FieldError{Field: "type", Code: "parameter.unknown",
				Message: fmt.Sprintf("want one of %s, found %q", strings.Join(fleet.EventTypes(), ", "), clip(t))})
			break
		}
	}
	if len(bad) > 0 {
		return filter, bad.or(codeInvalidParameter)
	}
	var err error
	filter.Instance, err = a.instanceFilter(r, ref)
	return filter, err
}

// WatchEvents streams what happens, from where the client's last stream ended.
func (a *api) WatchEvents(w http.ResponseWriter, r *http.Request, params managementv1.WatchEventsParams) {
	after, given, err := position(params)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	filter, err := a.eventFilter(r, params.Instance, params.Type)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	release, err := a.openStream(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	defer release()
	if !given {
		after = a.Events.LastEvent()
	}
	events, err := a.Events.Follow(r.Context(), after, filter)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	s := newEventStream(w, a.Stall)
	// A client that is cut off before anything happens goes on from here, too.
	if s.send("id: "+strconv.FormatUint(after, 10)+"\n\n") != nil {
		return // the client has gone
	}
	stream(a, s, r, events, func(e fleet.Event) error {
		return s.event(strconv.FormatUint(e.Seq, 10), e.Type, eventJSON(e))
	})
}

// position is the number that a stream begins behind, if the client has said.
func position(params managementv1.WatchEventsParams) (after uint64, given bool, err error) {
	switch {
	case params.LastEventID != nil && *params.LastEventID != "":
		if after, err = eventNumber(*params.LastEventID); err != nil {
			return 0, false, invalid{{Field: "Last-Event-ID", Code: "parameter.form",
				Message: "want the id of an event of this stream"}}.or(codeInvalidParameter)
		}
		return after, true, nil
	case params.After != nil:
		if *params.After < 0 {
			return 0, false, invalid{{Field: "after", Code: "parameter.range",
				Message: "want the number of an event, or 0"}}.or(codeInvalidParameter)
		}
		return uint64(*params.After), true, nil
	}
	return 0, false, nil
}
