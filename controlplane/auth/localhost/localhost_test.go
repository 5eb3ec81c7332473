package localhost_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
)

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if _, err := localhost.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before: %v, want fs.ErrNotExist", err)
	}
	want := localhost.Endpoint{
		URL: "http://127.0.0.1:8420", TokenFile: filepath.Join(dir, "admin.token"), PID: os.Getpid(), Version: "1.2.3",
	}
	for range 2 { // the second one replaces the first
		if err := localhost.Write(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := localhost.Read(dir)
	if err != nil || got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	if !got.Alive() || (localhost.Endpoint{}).Alive() {
		t.Error("cannot tell a living process from none")
	}
	for range 2 {
		if err := localhost.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWhatIsNotTrusted(t *testing.T) {
	const good = `{"url":"http://127.0.0.1:1","token_file":"/x"}`
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		want          string
	}{
		{"writable by others", good, 0o622, "others can write"},
		{"no JSON", "{", 0o644, "cannot parse"},
		{"no address", `{"url":"127.0.0.1:1","token_file":"/x"}`, 0o644, "not an address"},
		{"file address", `{"url":"file:///etc","token_file":"/x"}`, 0o644, "not an address"},
		{"relative token", `{"url":"http://127.0.0.1:1","token_file":"x"}`, 0o644, "absolute"},
		{"endless", `{"url":"` + strings.Repeat("x", 1<<20), 0o644, "cannot parse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, localhost.File)
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := localhost.Read(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestSearchDirs(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/x/state")
	if got := localhost.SearchDirs(); !slices.Equal(got, []string{"/x/state/agentic-sandbox", localhost.SystemStateDir}) {
		t.Errorf("with XDG_STATE_HOME: %v", got)
	}
	t.Setenv("XDG_STATE_HOME", "relative is not valid")
	t.Setenv("HOME", "/home/x")
	if got := localhost.SearchDirs(); got[0] != "/home/x/.local/state/agentic-sandbox" {
		t.Errorf("with HOME: %v", got)
	}
	t.Setenv("SANDBOX_STATE_DIR", "/only")
	if got := localhost.SearchDirs(); !slices.Equal(got, []string{"/only"}) {
		t.Errorf("with SANDBOX_STATE_DIR: %v", got)
	}
}

// TestDefaultStateDir: a daemon goes where a client of the same environment looks.
func TestDefaultStateDir(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/x/state")
	for _, named := range []string{"", "/elsewhere"} {
		t.Setenv("SANDBOX_STATE_DIR", named)
		dir, err := localhost.DefaultStateDir()
		if err != nil || !slices.Contains(localhost.SearchDirs(), dir) || (named != "" && dir != named) {
			t.Errorf("SANDBOX_STATE_DIR=%q: %q, %v", named, dir, err)
		}
	}
}
