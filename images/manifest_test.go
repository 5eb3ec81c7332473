package images

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func manifest() Manifest {
	return Manifest{
		Version: ManifestVersion, Name: "minimal", Architecture: "amd64",
		RootDisk:  Blob{Digest: hex64, Size: 10, VirtualSize: 1 << 28, Format: FormatQCOW2},
		Kernel:    Blob{Digest: hex64, Size: 20, Format: FormatPVH},
		Initramfs: Blob{Digest: hex64, Size: 30, Format: FormatCPIO},
		Labels:    map[string]string{"b": "2", "a": "1"},
		Provenance: Provenance{InputHash: hex64, Builder: "test", Packages: []string{"a=1"},
			BuiltAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))},
	}
}

func TestManifestRoundTrip(t *testing.T) {
	data, err := manifest().Canonical()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseManifest(data)
	if err != nil {
		t.Fatal(err)
	}
	want := manifest()
	want.Provenance.BuiltAt = want.Provenance.BuiltAt.UTC()
	if d := cmp.Diff(want, m); d != "" {
		t.Errorf("the manifest changed on its way (-want +got):\n%s", d)
	}
	again, err := m.Canonical()
	if err != nil || !bytes.Equal(again, data) {
		t.Errorf("the canonical form is not stable: %v", err)
	}
	if got := m.Ref(); got != (Ref{"minimal", hex64}) {
		t.Errorf("Ref() = %+v", got)
	}
}

func TestManifestValidate(t *testing.T) {
	if err := manifest().Validate(); err != nil {
		t.Fatalf("a good manifest is refused: %v", err)
	}
	for want, breakIt := range map[string]func(*Manifest){
		"version is 2":                  func(m *Manifest) { m.Version = 2 },
		"name":                          func(m *Manifest) { m.Name = "../x" },
		"architecture":                  func(m *Manifest) { m.Architecture = "" },
		"input hash":                    func(m *Manifest) { m.Provenance.InputHash = "x" },
		"of the root disk":              func(m *Manifest) { m.RootDisk.Digest = "../../etc/passwd" },
		"size of the kernel":            func(m *Manifest) { m.Kernel.Size = 0 },
		`format "raw" of the root disk`: func(m *Manifest) { m.RootDisk.Format = "raw" },
		`format "elf" of the kernel`:    func(m *Manifest) { m.Kernel.Format = "elf" },
		"of the initramfs":              func(m *Manifest) { m.Initramfs.Digest = "" },
	} {
		m := manifest()
		breakIt(&m)
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want an error with %q", err, want)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	good, err := manifest().Canonical()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{}"))
	f.Add(append(good, good...))
	f.Add(bytes.Replace(good, []byte(`"version"`), []byte(`"verzion"`), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("an accepted manifest is not valid: %v", err)
		}
		out, err := m.Canonical()
		if err != nil {
			t.Fatalf("an accepted manifest cannot be written: %v", err)
		}
		if _, err := ParseManifest(out); err != nil {
			t.Errorf("an accepted manifest does not parse after writing: %v\n%s", err, out)
		}
	})
}
