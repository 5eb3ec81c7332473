package embedded

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestClaim(t *testing.T) {
	dir := t.TempDir()
	r, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("a second claim answers %v", err)
	}
	if err := r.Release(true); err != nil {
		t.Fatal(err)
	}
	if r, err = Claim(dir); err != nil {
		t.Fatalf("claim after a release: %v", err)
	}
	if err := r.Release(true); err != nil {
		t.Fatal(err)
	}
}

// TestClaimLongPath checks that any directory gets a path on which libvirt's
// sockets fit, always the same, and that nothing of it stays.
func TestClaimLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	r, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := r.Dir + "/lib/qemu/domain-99999-sbx-0123456789ab/monitor.sock"
	own := r.Base + "/machines/01980a5e-7c31-7a02-b1c5-0123456789ab/vsock.sock"
	if len(r.Dir) > 51 || len(socket) > 107 || len(own) > 107 {
		t.Errorf("paths are too long: %q %q %q", r.Dir, socket, own)
	}
	if real, err := filepath.EvalSymlinks(r.Base); err != nil || real != r.StateDir {
		t.Errorf("alias leads to %q, %v; want %q", real, err, r.StateDir)
	}
	if len(r.Names()) != 2 {
		t.Errorf("names are %q", r.Names())
	}
	base := r.Base
	if err := r.Release(false); err != nil {
		t.Fatal(err)
	}
	if r, err = Claim(dir); err != nil {
		t.Fatal(err)
	}
	if r.Base != base {
		t.Errorf("alias changed from %q to %q", base, r.Base)
	}
	if err := r.Release(true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(base); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("alias stays: %v", err)
	}
}

func TestWriteConfig(t *testing.T) {
	dir := t.TempDir()
	if err := WriteConfig(dir, Identity{Name: "sandbox-qemu", UID: 999, GID: 995}); err != nil {
		t.Fatal(err)
	}
	text := content(t, filepath.Join(dir, "etc", "qemu.conf"))
	for _, want := range []string{
		`stdio_handler = "file"`, `user = "+999"`, `group = "+995"`, "dynamic_ownership = 0", "remember_owner = 0",
		`security_driver = "none"`, "namespaces = []", "cgroup_controllers = []",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if err := WriteConfig(dir, Identity{}); err != nil {
		t.Fatal(err)
	}
	if text := content(t, filepath.Join(dir, "etc", "qemu.conf")); strings.Contains(text, "user") || !strings.Contains(text, "stdio_handler") {
		t.Errorf("settings for an ordinary user are\n%s", text)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestParseLogLine(t *testing.T) {
	tests := []struct {
		line    string
		level   slog.Level
		message string
	}{
		{"2026-11-30 13:57:46.810+0000: 17: error : virX:28777 : internal error: a: b", slog.LevelError, "virX:28777 : internal error: a: b"},
		{"2026-11-30 13:57:46.810+0000: 17: warning : virX:1 : slow", slog.LevelWarn, "virX:1 : slow"},
		{"2026-11-30 13:57:46.810+0000: 17: info : libvirt version: 9.0.0", slog.LevelDebug, "libvirt version: 9.0.0"},
		{"2026-11-30 13:57:46.810+0000: 17: warning : x:1 : Domain id=1 is tainted: custom-monitor", slog.LevelDebug, "x:1 : Domain id=1 is tainted: custom-monitor"},
		{"what else", slog.LevelWarn, "what else"},
		{"", slog.LevelWarn, ""},
	}
	for _, test := range tests {
		if level, message := parseLogLine(test.line); level != test.level || message != test.message {
			t.Errorf("%q: %v %q", test.line, level, message)
		}
	}
}

func FuzzParseLogLine(f *testing.F) {
	f.Add("2026-11-30 13:57:46.810+0000: 17: error : virX:28777 : internal error")
	f.Add(": : : : ")
	f.Fuzz(func(t *testing.T, line string) {
		if _, message := parseLogLine(line); !strings.HasSuffix(line, message) {
			t.Errorf("%q became %q", line, message)
		}
	})
}

// TestForwardIsBounded floods the log: lines are cut, and left out with a count.
func TestForwardIsBounded(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	now := time.Unix(1000, 0)
	in := strings.Repeat(strings.Repeat("y", 10*maxLogLine)+"\n", 3*logPerWindow)
	forward(strings.NewReader(in), log, func() time.Time { return now })
	if n := strings.Count(out.String(), "\n"); n != logPerWindow {
		t.Errorf("%d lines", n)
	}
	if out.Len() > logPerWindow*(maxLogLine+200) {
		t.Errorf("%d bytes", out.Len())
	}
	out.Reset()
	calls := 0
	forward(strings.NewReader(in+"last\n"), log, func() time.Time {
		if calls++; calls > 3*logPerWindow {
			return now.Add(2 * logWindow)
		}
		return now
	})
	if text := out.String(); !strings.Contains(text, "count=200") || !strings.Contains(text, "message=last") {
		t.Errorf("the end is %q", text[max(0, len(text)-300):])
	}
}

// TestLogPipe writes as libvirt does, and never blocks the writer.
func TestLogPipe(t *testing.T) {
	t.Setenv(logVariable, "") // restored at the end
	if err := os.Unsetenv(logVariable); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	seen := make(chan string, 10)
	p, err := OpenLogPipe(dir, slog.New(slog.NewTextHandler(lineWriter(seen), nil)))
	if err != nil {
		t.Fatal(err)
	}
	path, ok := strings.CutPrefix(os.Getenv(logVariable), "3:file:")
	if !ok {
		t.Fatalf("variable is %q", os.Getenv(logVariable))
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p.Settled()
	if _, ok := os.LookupEnv(logVariable); ok {
		t.Error("children would inherit the setting")
	}
	if _, err := w.WriteString("2026-11-30 13:57:46.810+0000: 17: error : virX:1 : broken\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case line := <-seen:
		if !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "virX:1 : broken") {
			t.Errorf("line is %q", line)
		}
	case <-time.After(time.Minute):
		t.Fatal("no line arrives")
	}
	p.Close()
	// A driver opened later takes the same pipe, which libvirt still holds.
	if p, err = OpenLogPipe(dir, slog.New(slog.NewTextHandler(lineWriter(seen), nil))); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := w.WriteString("again\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case line := <-seen:
		if !strings.Contains(line, "again") {
			t.Errorf("line is %q", line)
		}
	case <-time.After(time.Minute):
		t.Fatal("no line arrives")
	}
}

type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
