package management_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

// chronicle is a log of events that streams follow.
type chronicle struct {
	mu     sync.Mutex
	events []fleet.Event
	grown  chan struct{}
}

func newChronicle(n int) *chronicle {
	c := &chronicle{grown: make(chan struct{})}
	for range n {
		c.append()
	}
	return c
}

func (c *chronicle) append() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, sampleEvent(uint64(len(c.events)+1)))
	close(c.grown)
	c.grown = make(chan struct{})
}

func (c *chronicle) fake() *fakeFleet {
	return &fakeFleet{
		LastEventFn: func() uint64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return uint64(len(c.events))
		},
		FollowFn: func(ctx context.Context, after uint64, _ fleet.EventFilter) (<-chan fleet.Event, error) {
			out := make(chan fleet.Event)
			go func() {
				defer close(out)
				for {
					c.mu.Lock()
					some, grown := slices.Clone(c.events[min(after, uint64(len(c.events))):]), c.grown
					c.mu.Unlock()
					for _, e := range some {
						select {
						case out <- e:
							after = e.Seq
						case <-ctx.Done():
							return
						}
					}
					select {
					case <-grown:
					case <-ctx.Done():
						return
					}
				}
			}()
			return out, nil
		},
	}
}

// sse reads the events of a stream.
type sse struct {
	*bufio.Reader
	id, name string
	data     managementv1.Event
}

func (s *sse) next(t *testing.T) error {
	t.Helper()
	seen := false
	for {
		line, err := s.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		switch field, value, _ := strings.Cut(line, ": "); field {
		case "id":
			s.id = value
		case "event":
			s.name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &s.data); err != nil {
				t.Fatal(err)
			}
			seen = true
		case "":
			if line == "" && seen { // without data it only tells where the stream begins
				return nil
			}
		}
	}
}

func follow(ctx context.Context, t *testing.T, url string, headers ...string) (*http.Response, *sse) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res, &sse{Reader: bufio.NewReader(res.Body)}
}

// TestEventsGoOnWhereTheyEnded cuts a stream again and again, and wants every
// event once.
func TestEventsGoOnWhereTheyEnded(t *testing.T) {
	c := newChronicle(30)
	s := serve(t, c.fake())
	url := s.URL + managementv1.BasePath + "/events/stream"
	var got []int64
	last := ""
	for len(got) < 40 {
		ctx, cut := context.WithCancel(t.Context())
		headers := []string{"Last-Event-ID", last}
		at := url
		if last == "" {
			at, headers = url+"?after=0", nil
		}
		_, events := follow(ctx, t, at, headers...)
		for range 7 {
			if len(got) >= 30 {
				c.append() // what happens while the stream is open
			}
			if err := events.next(t); err != nil {
				t.Fatal(err)
			}
			if events.id != strconv.FormatInt(events.data.Seq, 10) || events.name != fleet.EventPhase {
				t.Fatalf("event %q of type %q has number %d", events.id, events.name, events.data.Seq)
			}
			got, last = append(got, events.data.Seq), events.id
		}
		cut()
	}
	for i, seq := range got {
		if seq != int64(i+1) {
			t.Fatalf("event %d has number %d: %v", i+1, seq, got)
		}
	}
}

// TestEventsFromNowOn begins with what happens next.
func TestEventsFromNowOn(t *testing.T) {
	c := newChronicle(30)
	s := serve(t, c.fake())
	res, events := follow(t.Context(), t, s.URL+managementv1.BasePath+"/events/stream")
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %d, %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	// The place is told before anything happens, for a client that is cut off.
	if line, err := events.ReadString('\n'); err != nil || line != "id: 30\n" {
		t.Fatalf("the stream begins with %q, %v", line, err)
	}
	c.append()
	if err := events.next(t); err != nil || events.data.Seq != 31 {
		t.Fatalf("%v, number %d, want 31", err, events.data.Seq)
	}
}

func TestEventFilter(t *testing.T) {
	var got []fleet.EventFilter
	f := &fakeFleet{EventsFn: func(_ context.Context, _ uint64, filter fleet.EventFilter, _ int) ([]fleet.Event, error) {
		got = append(got, filter)
		return nil, nil
	}}
	f.FollowFn = func(_ context.Context, _ uint64, filter fleet.EventFilter) (<-chan fleet.Event, error) {
		got = append(got, filter)
		ch := make(chan fleet.Event)
		close(ch)
		return ch, nil
	}
	s := serve(t, f)
	for _, path := range []string{"/events", "/events/stream"} {
		if res, body := ask(t, http.MethodGet, s.URL+managementv1.BasePath+path+"?instance=demo&type=instance.phase&type=fleet.orphan", ""); res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d: %s", path, res.StatusCode, body)
		}
	}
	want := fleet.EventFilter{Tenant: "default", Instance: sampleID, Types: []string{"instance.phase", "fleet.orphan"}}
	if diff := cmp.Diff([]fleet.EventFilter{want, want}, got); diff != "" {
		t.Error(diff)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	c := config(newChronicle(0).fake(), nil)
	c.MaxStreams = 2
	s := httptest.NewServer(admin(management.New(c)))
	defer s.Close()
	url := s.URL + managementv1.BasePath + "/events/stream"
	ctx, leave := context.WithCancel(t.Context())
	follow(ctx, t, url)
	follow(ctx, t, url)
	if res, body := ask(t, http.MethodGet, url, ""); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("status %d: %s", res.StatusCode, body)
	}
	leave()
	deadline := time.Now().Add(time.Minute)
	for ask2 := http.StatusServiceUnavailable; ask2 != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("streams that have ended keep their places")
		}
		ctx, leave := context.WithCancel(t.Context())
		res, _ := follow(ctx, t, url)
		ask2 = res.StatusCode
		leave()
	}
}

func TestWaitForAnOperation(t *testing.T) {
	changes := make(chan fleet.Operation, 2)
	s := serve(t, &fakeFleet{WatchFn: func(ctx context.Context, _ string) (<-chan fleet.Operation, error) {
		out := make(chan fleet.Operation)
		go func() {
			defer close(out)
			for {
				select {
				case op := <-changes:
					out <- op
					if op.State.Done() {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
		return out, nil
	}})
	get := func(wait string) (op managementv1.Operation) {
		res, body := ask(t, http.MethodGet, s.URL+managementv1.BasePath+"/operations/"+operationID+"?wait="+wait, "")
		if err := json.Unmarshal([]byte(body), &op); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v: %s", res.StatusCode, err, body)
		}
		return op
	}
	next := sampleOperation()
	next.Percent = 70
	changes <- next
	if op := get("1s"); op.Percent != 70 || op.State != managementv1.OperationRunning {
		t.Errorf("after the time: %+v", op)
	}
	changes <- next
	next.State, next.Percent, next.EndedAt = fleet.OperationSucceeded, 100, sampleTime()
	changes <- next
	if op := get("5m"); op.State != managementv1.OperationSucceeded {
		t.Errorf("at the end: %+v", op)
	}
	if op := get("0s"); op.Percent != 60 {
		t.Errorf("without waiting: %+v", op)
	}
}

func TestCancel(t *testing.T) {
	var asked string
	s := serve(t, &fakeFleet{CancelFn: func(_ context.Context, id string) (fleet.Operation, error) {
		asked = id
		op := sampleOperation()
		op.Canceling = true
		return op, nil
	}})
	res, body := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/operations/"+operationID+":cancel", "")
	if res.StatusCode != http.StatusAccepted || asked != operationID || !strings.Contains(body, `"canceling":true`) {
		t.Errorf("status %d, asked for %q: %s", res.StatusCode, asked, body)
	}
}

// TestConsoleIsFollowed wants each piece as soon as it is written.
func TestConsoleIsFollowed(t *testing.T) {
	reader, writer := io.Pipe()
	closed := make(chan struct{})
	s := serve(t, &fakeFleet{ConsoleFn: func(_ context.Context, ref string, follow bool, lines int) (io.ReadCloser, error) {
		if ref != sampleID || !follow || lines != 2 {
			t.Errorf("console of %q, follow %v, lines %d", ref, follow, lines)
		}
		return closer{reader, closed}, nil
	}})
	res, stream := follow(t.Context(), t, s.URL+managementv1.BasePath+"/instances/demo/console?follow=true&tail=2")
	if got := res.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
		t.Errorf("content type is %q", got)
	}
	for _, line := range []string{"Linux boots\n", "login:\n"} {
		if _, err := io.WriteString(writer, line); err != nil {
			t.Fatal(err)
		}
		if got, err := stream.ReadString('\n'); got != line {
			t.Fatalf("got %q, %v, want %q", got, err, line)
		}
	}
	writer.CloseWithError(errors.New("the machine is gone"))
	if _, err := stream.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	<-closed
}

type closer struct {
	io.Reader
	closed chan struct{}
}

func (c closer) Close() error { close(c.closed); return nil }

// TestConsoleEndsWithItsClient leaves while nothing is written.
func TestConsoleEndsWithItsClient(t *testing.T) {
	closed := make(chan struct{})
	s := serve(t, &fakeFleet{ConsoleFn: func(ctx context.Context, _ string, _ bool, _ int) (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		context.AfterFunc(ctx, func() { writer.CloseWithError(ctx.Err()) })
		return closer{reader, closed}, nil
	}})
	ctx, leave := context.WithCancel(t.Context())
	follow(ctx, t, s.URL+managementv1.BasePath+"/instances/demo/console?follow=true")
	leave()
	<-closed
}

func TestConsoleTail(t *testing.T) {
	s := serve(t, &fakeFleet{ConsoleFn: func(_ context.Context, _ string, follow bool, lines int) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(fmt.Sprint(follow, lines))), nil
	}})
	for tail, want := range map[string]string{
		"": "false 1000", "?tail=0": "false 0", "?tail=1": "false 1", "?tail=100000": "false 100000",
		"?follow=true": "true 1000", "?follow=true&tail=0": "true 0",
	} {
		res, got := ask(t, http.MethodGet, s.URL+managementv1.BasePath+"/instances/demo/console"+tail, "")
		if res.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: status %d, %q, want %q", tail, res.StatusCode, got, want)
		}
	}
}

// FuzzCursor feeds every list with cursors of all kinds: they are taken or
// refused, and what reaches the fleet is of the right form.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", cursorOf("i." + sampleID), cursorOf("o." + operationID), cursorOf("e.1"), cursorOf("e.01"),
		cursorOf("e.18446744073709551615"), cursorOf("i.' OR 1=1"), "%", "aQ", strings.Repeat("QUFB", 100), "aS4"} {
		f.Add(s)
	}
	fake := &fakeFleet{
		ListFn: func(_ context.Context, filter fleet.Filter) (fleet.Page, error) {
			if _, err := instance.ParseID(filter.After.String()); err != nil && filter.After != "" {
				panic("instances after " + filter.After)
			}
			return fleet.Page{}, nil
		},
		OperationsFn: func(_ context.Context, filter fleet.OperationFilter) (fleet.OperationPage, error) {
			if _, err := instance.ParseID(filter.After); err != nil && filter.After != "" {
				panic("operations after " + filter.After)
			}
			return fleet.OperationPage{}, nil
		},
		EventsFn: func(_ context.Context, after uint64, _ fleet.EventFilter, _ int) ([]fleet.Event, error) {
			if after > 1<<63-1 {
				panic("events after too much")
			}
			return nil, nil
		},
	}
	h := admin(management.New(config(fake, nil)))
	f.Fuzz(func(t *testing.T, s string) {
		for _, path := range []string{"/instances", "/operations", "/events"} {
			r := httptest.NewRequest(http.MethodGet, managementv1.BasePath+path, nil)
			r.URL.RawQuery = "cursor=" + urlEscape(s)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
				t.Fatalf("%s: cursor %q: status %d: %s", path, s, w.Code, w.Body)
			}
		}
	})
}
