package main

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

func connected(t *testing.T, h http.HandlerFunc) *connection {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("SANDBOX_SERVER", s.URL)
	t.Setenv("SANDBOX_TOKEN", "sbx_test")
	c, err := (&app{stderr: io.Discard}).connect()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// endless sends text until the client has had enough.
func endless(w io.Writer, text string) {
	block := strings.Repeat(text, 64<<10/len(text))
	for {
		if _, err := io.WriteString(w, block); err != nil {
			return
		}
	}
}

func TestEndlessAnswers(t *testing.T) {
	t.Run("document", func(t *testing.T) {
		c := connected(t, func(w http.ResponseWriter, _ *http.Request) { endless(w, " ") })
		if _, err := c.instance(t.Context(), "demo"); err == nil || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("event", func(t *testing.T) {
		c := connected(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			endless(w, "data: x")
		})
		_, err := c.follow(t.Context(), managementv1.Operation{Id: "o"}, nil)
		if err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("list", func(t *testing.T) {
		c := connected(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"items":[],"next_cursor":"again"}`) })
		if _, err := c.list(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "no end") {
			t.Errorf("got %v", err)
		}
	})
}

// TestNoRedirect wants the token to stay with the server it is for.
func TestNoRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer other.Close()
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if _, err := c.instance(t.Context(), "demo"); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("got %v", err)
	}
	agent, err := c.agent(other.URL + "/agents/x")
	if err != nil || !strings.HasPrefix(agent.Base, c.server+"/agents/x") {
		t.Errorf("machine is asked at %q, %v", agent.Base, err)
	}
}

// TestUploadIsAStream packs far more than it may hold in memory.
func TestUploadIsAStream(t *testing.T) {
	const size = 256 << 20
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	c := connected(t, func(w http.ResponseWriter, r *http.Request) {
		tr := tar.NewReader(r.Body)
		h, err := tr.Next()
		if err != nil || h.Size != size || r.ContentLength != -1 {
			t.Errorf("got %+v, %v, length %d", h, err, r.ContentLength)
		}
		n, err := io.Copy(io.Discard, tr)
		if err != nil || n != size {
			t.Errorf("got %d bytes, %v", n, err)
		}
		if _, err := tr.Next(); err != io.EOF {
			t.Errorf("after the last entry: %v", err)
		}
		io.WriteString(w, `{"entries":1,"bytes":1}`)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := c.upload(t.Context(), "demo", dir, "/workspace", nil); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("%d MiB were allocated for %d MiB", used>>20, size>>20)
	}
}

// TestUploadToServerThatRefuses wants the refusal, not a broken pipe, and no
// packer left behind.
func TestUploadToServerThatRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c := connected(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"code":"instance.state","cause":"it is stopped","status":409,"title":"","type":""}`)
	})
	_, err := c.upload(t.Context(), "demo", dir, "/workspace", nil)
	var problem *problemError
	if !errors.As(err, &problem) || problem.Code != "instance.state" {
		t.Errorf("got %v", err)
	}
}

func TestDescribesSizesAndAssignments(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 512 << 20: "512 MiB", 3 << 40: "3 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) is %q, want %q", n, got, want)
		}
	}
	got, err := assignments("env", []string{"A=b=c", "EMPTY="}, nil)
	if err != nil || got["A"] != "b=c" || got["EMPTY"] != "" || len(got) != 2 {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := assignments("env", []string{"=secret"}, nil); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}
