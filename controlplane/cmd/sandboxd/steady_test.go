package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// speak sends raw text to a server with a short pace and returns its answer.
func speak(t *testing.T, pace time.Duration, h http.HandlerFunc, text string) (net.Conn, *http.Response) {
	t.Helper()
	return speakTo(t, steady(pace, patience, plain("", h)), text)
}

func speakTo(t *testing.T, h http.Handler, text string) (net.Conn, *http.Response) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return conn, resp
}

const halfABody = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"

// TestStoppedBodyIsGivenUp: a client that stops sending holds neither a
// handler that reads nor a connection whose handler refused without reading.
func TestStoppedBodyIsGivenUp(t *testing.T) {
	const pace = 50 * time.Millisecond
	_, resp := speak(t, pace, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading ended with %v", err)
		}
		w.WriteHeader(http.StatusRequestTimeout)
	}, halfABody)
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("answered %s", resp.Status)
	}

	conn, resp := speak(t, pace, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}, halfABody)
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("answered %s", resp.Status)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// TestStreamOutlivesThePace: once a body has been read, the answer may take
// as long as it likes.
func TestStreamOutlivesThePace(t *testing.T) {
	const pace = 20 * time.Millisecond
	_, resp := speak(t, pace, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		late := time.NewTimer(10 * pace)
		defer late.Stop()
		select {
		case <-late.C:
		case <-r.Context().Done():
			t.Error("the request was cut")
		}
		_, _ = io.WriteString(w, "late")
	}, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "late" {
		t.Errorf("got %q, %v", body, err)
	}
}

func TestHiddenSeparatorsAreRefused(t *testing.T) {
	h := plain("", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for path, want := range map[string]int{
		"/api/v1/instances": 200, "/agents/x/message:send": 200, "/agents/x/message%3Asend": 200, "/%61pi/v1": 200,
		"/api%2fv1/instances": 400, "/agents/x%2F..%2Fy": 400, "/agents%5cx": 400, "/agents/x%00": 400,
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, strings.NewReader("")))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", path, rec.Code, want)
		}
	}
}
