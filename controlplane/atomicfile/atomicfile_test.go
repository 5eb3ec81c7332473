package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
)

func TestWriteReplacesAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		data string
		mode fs.FileMode
	}{{"a long first content", 0o600}, {"short", 0o644}, {"", 0o755}} {
		if err := atomicfile.Write(path, []byte(c.data), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.data {
			t.Errorf("it holds %q, want %q (%v)", got, c.data, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != c.mode {
			t.Errorf("its mode is %v, want %v (%v)", info.Mode(), c.mode, err)
		}
	}
	onlyFile(t, dir)
}

// TestWriteThatFails leaves what was there, and nothing beside it.
func TestWriteThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	onlyFile(t, dir)
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

// TestWriteKeepsTheOwner of a file that root changes for somebody else.
func TestWriteKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can; run: sudo go test ./controlplane/atomicfile")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 4711, 4712); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 4711 || st.Gid != 4712 {
		t.Errorf("it belongs to %d:%d now", st.Uid, st.Gid)
	}
}

func onlyFile(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "file" {
		t.Errorf("the directory holds %v (%v)", entries, err)
	}
}
