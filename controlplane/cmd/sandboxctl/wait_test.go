package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestWaitFollowsEvents: the machine is looked at once there is a stream, and
// then only when it says that something happened.
func TestWaitFollowsEvents(t *testing.T) {
	looked := make(chan struct{}, 10)
	var state atomic.Value
	state.Store("starting")
	var looks, streams atomic.Int32
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/events/stream") {
			looks.Add(1)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":"i","name":"one","state":%q}`, state.Load())
			looked <- struct{}{}
			return
		}
		if got := r.URL.Query().Get("instance"); got != "i" {
			t.Errorf("the stream is asked for %q, not by the id, which nobody else gets", got)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		_ = flush.Flush()
		switch streams.Add(1) {
		case 1: // nothing happens, and the server restarts
			<-looked
		case 2:
			for i, next := range []string{"starting", "running"} {
				<-looked
				state.Store(next)
				fmt.Fprintf(w, "id: %d\nevent: instance.phase\ndata: {}\n\n", i+1)
				_ = flush.Flush()
			}
			<-r.Context().Done()
		}
	})
	if err := c.wait(t.Context(), "one", "running"); err != nil {
		t.Fatal(err)
	}
	// Once before, at the beginning and the end of a stream, and at each event.
	if n, m := looks.Load(), streams.Load(); n < 4 || n > 6 || m != 2 {
		t.Errorf("it was looked at %d times on %d streams, want 4 to 6 times on 2", n, m)
	}
}

// TestWaitWithoutEvents: a server without a stream is looked at again and again.
func TestWaitWithoutEvents(t *testing.T) {
	var looks atomic.Int32
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/events/stream") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		state := "starting"
		if looks.Add(1) == 3 {
			state = "running"
		}
		fmt.Fprintf(w, `{"id":"i","name":"one","state":%q}`, state)
	})
	began := time.Now()
	if err := c.wait(t.Context(), "one", "running"); err != nil || looks.Load() != 3 {
		t.Errorf("%v after %d looks", err, looks.Load())
	}
	if time.Since(began) < firstNap {
		t.Error("it looked without a pause")
	}
}

// TestWaitOutlivesTheServer: while nobody answers it goes on waiting.
func TestWaitOutlivesTheServer(t *testing.T) {
	opened := make(chan struct{}, 8)
	serve := func(at, state string) *httptest.Server {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/events/stream") {
				fmt.Fprintf(w, `{"id":"i","name":"one","state":%q}`, state)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			opened <- struct{}{}
			<-r.Context().Done()
		}))
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		return s
	}
	first := serve("127.0.0.1:0", "starting")
	t.Setenv("SANDBOX_SERVER", first.URL)
	t.Setenv("SANDBOX_TOKEN", "sbx_test")
	c, err := (&app{stderr: io.Discard}).connect()
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- c.wait(t.Context(), "one", "running") }()
	<-opened
	first.CloseClientConnections()
	first.Close()
	serve(strings.TrimPrefix(first.URL, "http://"), "running")
	if err := <-waited; err != nil {
		t.Error(err)
	}
	first.Close()
	t.Setenv("SANDBOX_SERVER", "http://127.0.0.1:1")
	if c, err = (&app{stderr: io.Discard}).connect(); err != nil {
		t.Fatal(err)
	}
	if err := c.wait(t.Context(), "one", "running"); exitCodeOf(err) != exitUnreachable {
		t.Errorf("without a server from the beginning: %v", err)
	}
}
