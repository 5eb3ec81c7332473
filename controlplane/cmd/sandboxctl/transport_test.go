package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// TestChangeIsRepeatedUnderOneKey loses two answers after the request has come
// and is told once that the first is still at work.
func TestChangeIsRepeatedUnderOneKey(t *testing.T) {
	var (
		mu   sync.Mutex
		keys []string
		body []string
	)
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		keys, body = append(keys, r.Header.Get(idempotencyKey)), append(body, string(text))
		n := len(keys)
		mu.Unlock()
		switch n {
		case 1, 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"code":"request.at_work","status":409,"title":"","type":""}`)
		default:
			w.WriteHeader(http.StatusAccepted)
			io.WriteString(w, `{"id":"op"}`)
		}
	})
	op, err := fetch[managementv1.Operation](t.Context(), c, func(ctx context.Context) (*http.Response, error) {
		return c.api.CreateInstance(ctx, nil, managementv1.CreateInstance{Name: "demo"})
	})
	if err != nil || op.Id != "op" {
		t.Fatalf("got %+v, %v", op, err)
	}
	mu.Lock()
	if len(keys) != 4 || keys[0] == "" {
		t.Fatalf("keys: %q", keys)
	}
	for i := range keys {
		if keys[i] != keys[0] || body[i] != body[0] || !strings.Contains(body[i], `"demo"`) {
			t.Errorf("request %d is %q %q, the first was %q %q", i, keys[i], body[i], keys[0], body[0])
		}
	}
	mu.Unlock()
	_, err = c.api.StopInstance(t.Context(), "demo", nil)
	mu.Lock()
	defer mu.Unlock()
	if err != nil || keys[4] == keys[0] {
		t.Errorf("another request has the key of the first: %q, %v", keys, err)
	}
}

// TestNothingIsRepeatedThatNeedNotBe: reads are the caller's business, a
// server that was never there has lost nothing.
func TestNothingIsRepeatedThatNeedNotBe(t *testing.T) {
	var reads atomic.Int32
	c := connected(t, func(_ http.ResponseWriter, r *http.Request) {
		reads.Add(1)
		if r.Header.Get(idempotencyKey) != "" {
			t.Error("a read has a key")
		}
		panic(http.ErrAbortHandler)
	})
	if _, err := c.instance(t.Context(), "demo"); err == nil {
		t.Error("no error")
	}
	if n := reads.Load(); n > 2 { // net/http itself tries once more on a connection that it kept
		t.Errorf("it was read %d times", n)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	t.Setenv("SANDBOX_SERVER", gone.URL)
	c, err := (&app{stderr: io.Discard}).connect()
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.api.StopInstance(t.Context(), "demo", nil)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

// TestEventsGoOnBehindTheLast breaks the stream and wants every event once.
func TestEventsGoOnBehindTheLast(t *testing.T) {
	var streams atomic.Int32
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		last := r.Header.Get("Last-Event-ID")
		switch streams.Add(1) {
		case 1:
			if last != "" || r.URL.Query().Get("after") != "0" {
				t.Errorf("the first stream begins behind %q, %q", last, r.URL.RawQuery)
			}
			fmt.Fprint(w, ": here\n\nid: 0\n\nid: 1\nevent: x.y\ndata: {\"seq\":1}\n\nid: 2\ndata: {\"seq\":2}\n\ndata: {\"seq\"")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"code":"fleet.starting","status":503,"title":"","type":""}`)
		default:
			if last != "2" {
				t.Errorf("it goes on behind %q", last)
			}
			fmt.Fprint(w, "id: 3\ndata: {\"seq\":3}\n\n")
		}
	})
	var got []int64
	enough := errors.New("enough")
	err := c.followEvents(t.Context(), eventQuery{after: new(int64)}, func(e managementv1.Event) error {
		if got = append(got, e.Seq); e.Seq == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || fmt.Sprint(got) != "[1 2 3]" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestEventsThatAreGone(t *testing.T) {
	c := connected(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		io.WriteString(w, `{"code":"events.gone","status":410,"cause":"forgotten","title":"","type":""}`)
	})
	err := c.followEvents(t.Context(), eventQuery{}, func(managementv1.Event) error { return nil })
	var problem *problemError
	if !errors.As(err, &problem) || problem.Code != "events.gone" {
		t.Errorf("got %v", err)
	}
}

// TestForgottenEventsAreNoLoss: who looks at everything anew goes on from now.
func TestForgottenEventsAreNoLoss(t *testing.T) {
	var streams atomic.Int32
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		switch streams.Add(1) {
		case 1:
			fmt.Fprint(w, "id: 7\n\n")
		case 2:
			if last != "7" {
				t.Errorf("the second stream begins behind %q, want 7, which the first began behind", last)
			}
			w.WriteHeader(http.StatusGone)
			io.WriteString(w, `{"code":"events.gone","status":410,"title":"","type":""}`)
		default:
			if last != "" {
				t.Errorf("the third stream begins behind %q", last)
			}
			fmt.Fprint(w, "id: 9\ndata: {\"seq\":9}\n\n")
		}
	})
	enough := errors.New("enough")
	err := c.followEvents(t.Context(), eventQuery{anew: true}, func(managementv1.Event) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	problem := func(status int, code string) error {
		return fmt.Errorf("wrapped: %w", &problemError{managementv1.Problem{Status: status, Code: code}})
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("x"), exitFailed},
		{usagef("next", "x"), exitUsage},
		{problem(404, "instance.not_found"), exitNotFound},
		{problem(422, "loadout.not_found"), exitNotFound},
		{problem(422, "loadout.invalid"), exitRefused},
		{problem(409, "instance.state"), exitFailed},
		{problem(401, "auth.required"), exitUnreachable},
		{joined([]error{problem(404, "instance.not_found"), problem(404, "instance.not_found")}), exitNotFound},
		{joined([]error{problem(404, "instance.not_found"), errors.New("x")}), exitFailed},
		{joined(nil), exitOK},
	} {
		if got := exitCodeOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
	err := joined([]error{withRemedy(errors.New("a"), "do this"), withRemedy(errors.New("b"), "do this"), withRemedy(errors.New("c"), "do that")})
	if got := remedyOf(err); got != "do this\ndo that" {
		t.Errorf("remedy is %q", got)
	}
}
