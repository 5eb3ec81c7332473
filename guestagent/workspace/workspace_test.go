package workspace

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// stage makes a root with a secret beside it and links that lead there.
func stage(t testing.TB) (root *Root, outside string) {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "root")
	outside = filepath.Join(top, "outside")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o755),
		os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("content"), 0o600),
		os.Symlink("../outside", filepath.Join(dir, "up")),
		os.Symlink(outside, filepath.Join(dir, "abs")),
		os.Symlink("../outside/secret", filepath.Join(dir, "filelink")),
		os.Symlink("sub", filepath.Join(dir, "inside")),
		os.Symlink("loop", filepath.Join(dir, "loop")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, outside
}

// untouched says that nothing outside the root has changed.
func untouched(t testing.TB, outside string) {
	t.Helper()
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Fatalf("outside the root there are %v, %v", entries, err)
	}
	var st unix.Stat_t
	data, err := os.ReadFile(filepath.Join(outside, "secret"))
	if err := errors.Join(err, unix.Stat(filepath.Join(outside, "secret"), &st)); err != nil {
		t.Fatal(err)
	}
	if string(data) != "secret" || st.Nlink != 1 || st.Mode&0o777 != 0o600 {
		t.Fatalf("the file outside is %q, %d links, mode %o", data, st.Nlink, st.Mode)
	}
}

func put(root *Root, name, text string, opt FileOptions) error {
	w, err := root.Create(name, opt)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		w.Abort()
		return err
	}
	sum := sha256.Sum256([]byte(text))
	return w.Commit(uint64(len(text)), sum[:])
}

func TestPathsThatLeaveAreRefused(t *testing.T) {
	t.Parallel()
	root, outside := stage(t)
	for _, name := range []string{
		"up/secret", "abs/secret", "../outside/secret", "sub/../../outside/secret", outside + "/secret",
		root.path + "/../outside/secret", root.path + "x/secret", "filelink", "loop", "/etc/passwd", "",
		strings.Repeat("a/", agentv1.MaxPath), "a\x00b",
	} {
		if r, err := root.Open(name, 0); err == nil {
			r.Close()
			t.Errorf("read %q", name)
		}
		if name == "filelink" || name == "loop" {
			continue // written over, not through: below
		}
		if err := put(root, name, "evil", FileOptions{MakeParents: true, Owner: Owner{Keep: true}}); err == nil {
			t.Errorf("wrote %q", name)
		}
	}
	if err := put(root, "filelink", "mine", FileOptions{Owner: Owner{Keep: true}}); err != nil {
		t.Errorf("a link is replaced: %v", err)
	}
	untouched(t, outside)
}

func TestPutAndGet(t *testing.T) {
	t.Parallel()
	root, _ := stage(t)
	keep := Owner{Keep: true}
	if err := put(root, "a/b/c.txt", "text", FileOptions{Owner: keep}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without parents: %v", err)
	}
	for _, name := range []string{"a/b/c.txt", "inside/file", root.path + "/sub/abs"} {
		if err := put(root, name, "text of "+name, FileOptions{Mode: 0o4640, MakeParents: true, Owner: keep}); err != nil {
			t.Fatal(err)
		}
		r, err := root.Open(name, 1024)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		size, sum := r.End()
		want := sha256.Sum256(data)
		if err != nil || string(data) != "text of "+name || size != uint64(len(data)) || !bytes.Equal(sum, want[:]) {
			t.Errorf("%q: %q %v", name, data, err)
		}
		info, err := r.file.Stat()
		if err != nil || info.Mode() != 0o640 {
			t.Errorf("%q has mode %v %v", name, info.Mode(), err)
		}
		r.Close()
	}
	if _, err := root.Open("a/b/c.txt", 3); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the bound: %v", err)
	}
	for _, name := range []string{"fifo", "sub", "."} {
		if _, err := root.Open(name, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := root.Open("none", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestFileAppearsWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	root, _ := stage(t)
	for name, end := range map[string]func(w *Writer) error{
		"size":  func(w *Writer) error { s := sha256.Sum256([]byte("new")); return w.Commit(4, s[:]) },
		"sum":   func(w *Writer) error { return w.Commit(3, make([]byte, 32)) },
		"abort": func(w *Writer) error { w.Abort(); return ErrIncomplete },
	} {
		w, err := root.Create("sub/file", FileOptions{Owner: Owner{Keep: true}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "new"); err != nil {
			t.Fatal(err)
		}
		if err := end(w); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%s: %v", name, err)
		}
		entries, err := os.ReadDir(filepath.Join(root.path, "sub"))
		if data, _ := os.ReadFile(filepath.Join(root.path, "sub", "file")); string(data) != "content" || len(entries) != 2 || err != nil {
			t.Errorf("%s: %q, %v, %v", name, data, entries, err)
		}
	}
}

func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = "body of " + h.Name
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func file(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
}
func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink}
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	root, outside := stage(t)
	data := archive(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "pkg/", Typeflag: tar.TypeDir, Mode: 0o750},
		tar.Header{Name: "pkg/tool", Typeflag: tar.TypeReg, Mode: 0o4755},
		file("made/by/name"), file("sub/file"), file("inside/through"),
		link("pkg/bin", "tool"), link("pkg/abs", "/usr/bin/python3"), link("pkg/away", "../../outside/secret"),
		hard("pkg/same", "pkg/tool"), hard("pkg/same", "pkg/same"), file("up"),
	)
	got, err := root.Unpack(bytes.NewReader(data), UnpackOptions{Owner: Owner{Keep: true}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Entries != 12 || got.Bytes == 0 {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]string{
		"pkg/tool": "body of pkg/tool", "pkg/same": "body of pkg/tool", "made/by/name": "body of made/by/name",
		"sub/file": "body of sub/file", "sub/through": "body of inside/through", "up": "body of up",
	} {
		if text, err := os.ReadFile(filepath.Join(root.path, name)); err != nil || string(text) != want {
			t.Errorf("%s: %q %v", name, text, err)
		}
	}
	for name, want := range map[string]fs.FileMode{"pkg": fs.ModeDir | 0o750, "pkg/tool": 0o755, "": fs.ModeDir | 0o755} {
		if info, err := os.Stat(filepath.Join(root.path, name)); err != nil || info.Mode() != want {
			t.Errorf("%q: %v %v", name, info.Mode(), err)
		}
	}
	untouched(t, outside)
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want    error
		headers []tar.Header
	}{
		"absolute":              {ErrInvalid, []tar.Header{file("/etc/evil")}},
		"dot dot":               {ErrInvalid, []tar.Header{file("../evil")}},
		"hidden dot dot":        {ErrInvalid, []tar.Header{file("a/../../evil")}},
		"dot dot directory":     {ErrInvalid, []tar.Header{{Name: "../evil/", Typeflag: tar.TypeDir}}},
		"through its own link":  {ErrOutside, []tar.Header{link("l", "../outside"), file("l/evil")}},
		"through absolute link": {ErrOutside, []tar.Header{link("l", "/tmp"), file("l/evil")}},
		"through a chain":       {ErrOutside, []tar.Header{link("a", "b"), link("b", "../outside"), file("a/evil")}},
		"through an older link": {ErrOutside, []tar.Header{file("up/evil")}},
		"directory by link":     {ErrOutside, []tar.Header{{Name: "up/", Typeflag: tar.TypeDir, Mode: 0o777}}},
		"hard link away":        {ErrInvalid, []tar.Header{hard("h", "../outside/secret")}},
		"hard link by link":     {ErrOutside, []tar.Header{hard("h", "up/secret")}},
		"hard link to link":     {ErrInvalid, []tar.Header{hard("h", "filelink")}},
		"hard link to fifo":     {ErrInvalid, []tar.Header{hard("h", "fifo")}},
		"hard link to nothing":  {fs.ErrNotExist, []tar.Header{hard("h", "nothing")}},
		"device":                {ErrInvalid, []tar.Header{{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}}},
		"character device":      {ErrInvalid, []tar.Header{{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1}}},
		"fifo":                  {ErrInvalid, []tar.Header{{Name: "d", Typeflag: tar.TypeFifo}}},
		"over a directory":      {ErrInvalid, []tar.Header{file("sub")}},
		"file as directory":     {unix.ENOTDIR, []tar.Header{file("sub/file/x")}},
		"too many":              {ErrTooLarge, []tar.Header{file("1"), file("2"), file("3"), file("4"), file("5")}},
		"too large":             {ErrTooLarge, []tar.Header{file(strings.Repeat("n", 90)), file(strings.Repeat("m", 90))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, outside := stage(t)
			_, err := root.Unpack(bytes.NewReader(archive(t, c.headers...)), UnpackOptions{Owner: Owner{Keep: true}, MaxBytes: 150, MaxEntries: 4})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			untouched(t, outside)
		})
	}
}

func TestUnpackSetsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test ./guestagent/workspace")
	}
	path := filepath.Join(t.TempDir(), "made", "root")
	owner := Owner{UID: 1234, GID: 4321}
	root, err := MakeRoot(path, owner)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Unpack(bytes.NewReader(archive(t, file("a/b"), link("a/l", "b"))), UnpackOptions{Owner: owner}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Dir(path), path, path + "/a", path + "/a/b", path + "/a/l"} {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil || st.Uid != 1234 || st.Gid != 4321 {
			t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
		}
	}
}

// Whatever an archive holds, nothing outside the root changes and the bounds
// hold.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, file("a/b"), link("l", "../outside"), file("l/evil")))
	f.Add(archive(f, hard("h", "up/secret"), tar.Header{Name: "abs/", Typeflag: tar.TypeDir, Mode: 0o777}))
	f.Add(archive(f, link("sub/x", "../up"), hard("y", "sub/x"), file("y/secret")))
	f.Add(archive(f, tar.Header{Name: "p", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"path": "../evil"}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, outside := stage(t)
		got, err := root.Unpack(bytes.NewReader(data), UnpackOptions{Owner: Owner{Keep: true}, MaxBytes: 1 << 20, MaxEntries: 64})
		if err == nil && (got.Entries > 64 || got.Bytes > 1<<20) {
			t.Errorf("%+v", got)
		}
		untouched(t, outside)
	})
}

func FuzzRelative(f *testing.F) {
	f.Add("a/b")
	f.Add("/root/../x")
	f.Fuzz(func(t *testing.T, name string) {
		root, outside := stage(t)
		if r, err := root.Open(name, 0); err == nil {
			data, err := io.ReadAll(io.LimitReader(r, 100))
			r.Close()
			if err == nil && string(data) == "secret" {
				t.Errorf("%q leads outside", name)
			}
		}
		untouched(t, outside)
	})
}
