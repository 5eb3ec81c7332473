package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
)

// TestConsoleOnATerminal gets what a guest writes in pieces that tear its
// characters, over a connection that breaks, until the machine is no more.
func TestConsoleOnATerminal(t *testing.T) {
	var (
		mu             sync.Mutex
		streams, looks int
	)
	_ = connected(t, func(w http.ResponseWriter, r *http.Request) { // sets where the server is
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasSuffix(r.URL.Path, "/console") {
			looks++
			if streams == 2 {
				w.WriteHeader(http.StatusNotFound)
				io.WriteString(w, `{"code":"instance.not_found","status":404,"title":"","type":""}`)
				return
			}
			io.WriteString(w, `{"id":"i","name":"one","state":"running"}`)
			return
		}
		streams++
		q := r.URL.Query()
		flush := http.NewResponseController(w)
		if want := map[int]string{1: "7", 2: "0"}[streams]; q.Get("tail") != want || q.Get("follow") != "true" {
			t.Errorf("stream %d is asked for as %v", streams, q)
		}
		for _, piece := range map[int][]string{1: {"gr\xc3", "\xbc\xc3\x9f\x1b[2J\n"}, 2: {"bye\xe2\x82"}}[streams] {
			io.WriteString(w, piece)
			flush.Flush()
		}
		if streams == 1 {
			panic(http.ErrAbortHandler)
		}
	})
	ptmx, tty := openTerminal(t)
	a := &app{stdout: tty, stderr: io.Discard, format: formatTable}
	if err := a.console(t.Context(), "one", true, 7); err != nil {
		t.Fatal(err)
	}
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	shown, _ := io.ReadAll(ptmx) // ends with an error: the other side has closed
	const want = "grüß\\x1b[2J\r\nbye\\xe2\\x82"
	if string(shown) != want || streams != 2 || looks < 3 {
		t.Errorf("the terminal got %q, want %q; %d streams, %d looks", shown, want, streams, looks)
	}
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if text := (&app{stdout: file}).shown("\x1b[2J"); text != "\x1b[2J" {
		t.Errorf("a file gets %q", text)
	}
}
