package rootdisk

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

const testEpoch = 1704067200

// newTree returns a tree and the directory it keeps its contents in.
func newTree(t *testing.T) (*Tree, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := NewTree(dir, testEpoch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree, dir
}

func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestAddTar(t *testing.T) {
	tree, dir := newTree(t)
	err := tree.AddTar(t.Context(), archive(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./usr/bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"},
		tar.Header{Name: "./bin/su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 7, Gid: 8},
		tar.Header{Name: "./usr/bin/also", Typeflag: tar.TypeLink, Linkname: "./bin/su"},
		tar.Header{Name: "./usr/share/doc/x", Typeflag: tar.TypeReg},
		tar.Header{Name: "./usr/share/doc/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		tar.Header{Name: "./etc/hostname", Typeflag: tar.TypeReg, Mode: 0o600},
	), []string{"/usr/share/doc", "/dev", "/etc/hostname"})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tree.paths(), " "); got != "/ /bin /usr /usr/bin /usr/bin/also /usr/bin/su /usr/share /usr/share/doc" {
		t.Errorf("paths are %q", got)
	}
	if n := tree.nodes["/usr/bin/su"]; n.mode != 0o4755 || n.uid != 7 || n.gid != 8 {
		t.Errorf("su is %+v", n)
	}
	if n := tree.nodes["/usr/bin/also"]; n.linkTo != "/usr/bin/su" {
		t.Errorf("also is %+v", n)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "usr/bin/also")); err != nil || string(data) != "content of ./bin/su" {
		t.Errorf("also holds %q, %v", data, err)
	}
	if data, err := tree.ReadFile("/bin/su"); err != nil || string(data) != "content of ./bin/su" {
		t.Errorf("ReadFile through a link = %q, %v", data, err)
	}
}

func TestAddTarRefuses(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"device":    {Name: "./disk", Typeflag: tar.TypeBlock},
		"fifo":      {Name: "./fifo", Typeflag: tar.TypeFifo},
		"attribute": {Name: "./ping", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}},
		"quote":     {Name: "./a\"b", Typeflag: tar.TypeReg},
		"newline":   {Name: "./a\nb", Typeflag: tar.TypeReg},
		"dead link": {Name: "./x", Typeflag: tar.TypeLink, Linkname: "./nothing"},
		"no target": {Name: "./x", Typeflag: tar.TypeSymlink},
	} {
		tree, _ := newTree(t)
		if err := tree.AddTar(t.Context(), archive(t, h), nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Nothing an archive says makes a file outside the tree's directory.
func TestTreeCannotBeLeft(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]tar.Header{
		"dots":           {{Name: "../../../../.." + outside + "/evil", Typeflag: tar.TypeReg}},
		"absolute link":  {{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "./a/evil", Typeflag: tar.TypeReg}},
		"relative link":  {{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("../", 20) + outside}, {Name: "./a/evil", Typeflag: tar.TypeReg}},
		"link to itself": {{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: outside + "/evil"}, {Name: "./a", Typeflag: tar.TypeReg}},
		"hard link":      {{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "./f", Typeflag: tar.TypeReg}, {Name: "./a/evil", Typeflag: tar.TypeLink, Linkname: "./f"}},
		"loop":           {{Name: "./a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "./b", Typeflag: tar.TypeSymlink, Linkname: "a"}, {Name: "./a/evil", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, _ := newTree(t)
			err := tree.AddTar(t.Context(), archive(t, headers...), nil) // may be refused or kept inside
			if _, statErr := os.Stat(filepath.Join(outside, "evil")); !errors.Is(statErr, fs.ErrNotExist) {
				t.Fatalf("a file was made outside (%v)", err)
			}
			if name == "loop" && err == nil {
				t.Error("a loop of links was accepted")
			}
		})
	}
}

func FuzzAddTar(f *testing.F) {
	f.Add("a", "b", "a/c", byte(tar.TypeSymlink))
	f.Add("a", "/", "a/c", byte(tar.TypeSymlink))
	f.Add("a", "a", "a", byte(tar.TypeReg))
	f.Fuzz(func(t *testing.T, one, target, two string, kind byte) {
		outside := t.TempDir()
		dir := filepath.Join(outside, "tree")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		tree, err := NewTree(dir, testEpoch)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: one, Linkname: target, Typeflag: kind})
		_ = w.WriteHeader(&tar.Header{Name: two, Typeflag: tar.TypeReg})
		_ = w.Close()
		_ = tree.AddTar(t.Context(), &b, nil)
		entries, err := os.ReadDir(outside)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the tree there is %v, %v", entries, err)
		}
	})
}

func TestUsers(t *testing.T) {
	tree, _ := newTree(t)
	for _, f := range []recipes.File{
		{Path: "/etc/passwd", Content: "root:x:0:0:root:/root:/bin/sh\n"},
		{Path: "/etc/group", Content: "root:x:0:\n"},
	} {
		if err := tree.addText(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.addFile("/etc/shadow", 0o640, 0, 42, testEpoch, strings.NewReader("root:*:0::::::\n")); err != nil {
		t.Fatal(err)
	}
	u := recipes.User{Name: "agent", UID: 1000, GID: 1001, Home: "/home/agent", Shell: "/bin/bash"}
	if err := tree.addUser(u); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001:agent:/home/agent:/bin/bash\n",
		"/etc/group":  "root:x:0:\nagent:*:1001:\n",
		"/etc/shadow": "root:*:0::::::\nagent:!:0::::::\n",
	} {
		if got, err := tree.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", file, got, err, want)
		}
	}
	if n := tree.nodes["/etc/shadow"]; n.mode != 0o640 || n.gid != 42 {
		t.Errorf("shadow is %+v: its owner was lost", n)
	}
	if n := tree.nodes["/home/agent"]; n.uid != 1000 || n.gid != 1001 {
		t.Errorf("the home is %+v", n)
	}
	if err := tree.addUser(u); err == nil {
		t.Error("the same user was added twice")
	}
	if tree.Has("/etc/gshadow") {
		t.Error("gshadow was made where there is none")
	}
}

func TestPackages(t *testing.T) {
	tree, _ := newTree(t)
	if got, err := tree.Packages(); err != nil || got != nil {
		t.Errorf("without dpkg: %v, %v", got, err)
	}
	status := "Package: git\nStatus: install ok installed\nVersion: 1:2.39\nDescription: x\n Package: no\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: apt\nStatus: install ok installed\nVersion: 2.6"
	if err := tree.addText(recipes.File{Path: "/var/lib/dpkg/status", Content: status}); err != nil {
		t.Fatal(err)
	}
	got, err := tree.Packages()
	if err != nil || strings.Join(got, " ") != "apt=2.6 git=1:2.39" {
		t.Errorf("Packages() = %q, %v", got, err)
	}
}

func TestAddWheel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.whl")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for name, content := range map[string]string{
		"pkg/bin/node": "ELF", "pkg/bin/node2": "no", "pkg/lib/npm/cli.js": "#!/usr/bin/env node\n", "pkg/lib/npm/a/b.js": "x",
		"pkg/lib/npm/empty": "", "pkg/lib/npm/../../../evil": "x",
	} {
		entry, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := entry.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	tree, _ := newTree(t)
	err = tree.AddWheel(t.Context(), file, []recipes.Install{
		{From: "pkg/bin/node", To: "/usr/local/bin/node", Mode: 0o755}, {From: "pkg/lib/npm", To: "/opt/npm"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]uint32{
		"/usr/local/bin/node": 0o755, "/opt/npm/cli.js": 0o755, "/opt/npm/a/b.js": 0o644, "/opt/npm/empty": 0o644,
	} {
		if n := tree.nodes[name]; n == nil || n.mode != mode {
			t.Errorf("%s is %+v, want mode %#o", name, n, mode)
		}
	}
	for _, name := range tree.paths() {
		if strings.Contains(name, "node2") || name == "/evil" {
			t.Errorf("%s was taken", name)
		}
	}
	if err := tree.AddWheel(t.Context(), file, []recipes.Install{{From: "pkg/none", To: "/x"}}); err == nil {
		t.Error("an install that finds nothing was accepted")
	}
}
