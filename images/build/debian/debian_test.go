package debian

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func writeSources(t *testing.T, files map[string]string) string {
	t.Helper()
	apt := t.TempDir()
	if err := os.Mkdir(filepath.Join(apt, "sources.list.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(apt, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return apt
}

const deb822 = `# a comment
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://vendor.example/repo
Suites: nodistro
Components: main

Types: deb
URIs: http://vendor.example/stable
Suites: bookworm
Components: stable
`

func TestHostSources(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  map[string]string // file → what it holds
	}{
		{"nothing", nil, map[string]string{}},
		{"another release", map[string]string{"sources.list": "deb http://a.example/ubuntu noble main\n"}, map[string]string{}},
		{"only updates", map[string]string{"sources.list": "deb http://a.example/debian bookworm-updates main\n"}, map[string]string{}},
		{
			"lines", map[string]string{
				"sources.list": "# x\ndeb http://a.example/debian bookworm main # y\ndeb-src http://a.example/debian bookworm main\n",
				"sources.list.d/s.list": "deb [arch=amd64 signed-by=/k.gpg] http://b.example/debian-security bookworm-security main\n" +
					"deb [ arch=amd64 ] http://c.example/x bookworm stable\ndeb [broken\n",
				"sources.list.d/off.disabled": "deb http://d.example/debian bookworm main\n",
			},
			map[string]string{"host.list": "deb http://a.example/debian bookworm main\n" +
				"deb [arch=amd64 signed-by=/k.gpg] http://b.example/debian-security bookworm-security main\n"},
		},
		{
			"stanzas", map[string]string{"sources.list.d/debian.sources": deb822},
			map[string]string{"host.sources": strings.Join(strings.Split(strings.TrimPrefix(deb822, "# a comment\n"), "\n\n")[:2], "\n\n") + "\n"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			files, err := hostSources(writeSources(t, c.files), "bookworm", dir)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, f := range files {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				got[filepath.Base(f)] = string(data)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("sources (-want +got):\n%s", d)
			}
		})
	}
}

func FuzzSources(f *testing.F) {
	f.Add(deb822)
	f.Add("deb [a=b c=d] http://x bookworm main\n Types: deb\n\n :\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range matchingLines(text, "bookworm") {
			if !strings.HasPrefix(line, "deb") || strings.Contains(line, "\n") {
				t.Errorf("line %q was taken for a source", line)
			}
		}
		for _, s := range matchingStanzas(text, "bookworm") {
			if strings.Contains(s, "\n\n") {
				t.Errorf("stanza %q is more than one", s)
			}
		}
	})
}

func TestParseFileName(t *testing.T) {
	got, err := parseFileName("busybox-static_1%3a1.35.0-4+deb12u1+b1_amd64.deb")
	if err != nil || got.Name != "busybox-static" || got.Version != "1:1.35.0-4+deb12u1+b1" {
		t.Errorf("parseFileName() = %+v, %v", got, err)
	}
	for _, bad := range []string{"", "x.deb", "a_b.deb", "_1_amd64.deb", "a__amd64.deb", "a_%zz_amd64.deb"} {
		if _, err := parseFileName(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func TestTakePackages(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "x.tar")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, name := range []string{"./debs/b_2_amd64.deb", "./debs/a_1_amd64.deb", "./etc/passwd", "./debs/sub/c_3_amd64.deb", "./debs/note.txt"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(name)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := takePackages(archive, dir)
	if err != nil || len(got) != 2 || got[0].Name != "a" || got[1].Version != "2" {
		t.Fatalf("takePackages() = %+v, %v", got, err)
	}
	if data, err := os.ReadFile(got[0].File); err != nil || string(data) != "./debs/a_1_amd64.deb" {
		t.Errorf("%s holds %q, %v", got[0].File, data, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "passwd")); err == nil {
		t.Error("a file outside /debs was taken")
	}
}
