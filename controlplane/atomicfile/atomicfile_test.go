package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
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

// TestWriteSweeps what dead writers of the same file have left, and nothing
// else.
func TestWriteSweeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".file.1234567", ".file.txt", ".file.", ".other.1234567", ".file.7654321"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	living, err := os.Open(filepath.Join(dir, ".file.7654321"))
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	if err := syscall.Flock(int(living.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{".file.", ".file.7654321", ".file.txt", ".other.1234567", "file"}; !slices.Equal(names, want) {
		t.Errorf("left are %q, want %q", names, want)
	}
}

// TestWriters at the same time all succeed, and leave one file.
func TestWriters(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if err := atomicfile.Write(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	onlyFile(t, dir)
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
