package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

func sum(s string) images.Digest {
	h := sha256.Sum256([]byte(s))
	return images.Digest(hex.EncodeToString(h[:]))
}

// sources writes three files to import and returns them with a manifest that
// leaves their digests open.
func sources(t *testing.T, name, disk, kernel, initramfs string) (images.Manifest, Files) {
	t.Helper()
	dir := t.TempDir()
	write := func(base, content string) string {
		p := filepath.Join(dir, base)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	m := images.Manifest{
		Version: images.ManifestVersion, Name: name, Architecture: "amd64",
		RootDisk:   images.Blob{Format: images.FormatQCOW2, VirtualSize: 1 << 20},
		Kernel:     images.Blob{Format: images.FormatPVH},
		Initramfs:  images.Blob{Format: images.FormatCPIO},
		Provenance: images.Provenance{InputHash: sum(disk + kernel + initramfs), Builder: "test", BuiltAt: time.Unix(1, 0).UTC()},
	}
	return m, Files{RootDisk: write("disk", disk), Kernel: write("kernel", kernel), Initramfs: write("initramfs", initramfs)}
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustImport(t *testing.T, s *Store, name, disk, kernel, initramfs string) images.Manifest {
	t.Helper()
	m, files := sources(t, name, disk, kernel, initramfs)
	m, err := s.Import(t.Context(), m, files)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestImportThenEnsure(t *testing.T) {
	s := open(t)
	m := mustImport(t, s, "a", "disk", "kernel", "initramfs")
	if m.RootDisk.Digest != sum("disk") || m.RootDisk.Size != 4 || m.Initramfs.Size != 9 {
		t.Errorf("the manifest was not filled in: %+v", m)
	}
	for _, ref := range []images.Ref{{Name: "a"}, m.Ref()} {
		got, err := s.Ensure(t.Context(), ref)
		if err != nil {
			t.Fatalf("Ensure(%v): %v", ref, err)
		}
		for path, want := range map[string]string{got.RootDisk: "disk", got.Kernel: "kernel", got.Initramfs: "initramfs"} {
			data, err := os.ReadFile(path)
			if err != nil || string(data) != want {
				t.Errorf("%s holds %q, %v; want %q", path, data, err, want)
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o444 {
				t.Errorf("mode of %s is %v, %v; want 0444", path, info.Mode(), err)
			}
		}
	}
}

func TestEnsureUnknownNameListsThoseThatExist(t *testing.T) {
	s := open(t)
	_, err := s.Ensure(t.Context(), images.Ref{Name: "x"})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), Rebuild) {
		t.Errorf("empty store: error = %v", err)
	}
	mustImport(t, s, "b", "1", "2", "3")
	mustImport(t, s, "a", "1", "2", "3")
	_, err = s.Ensure(t.Context(), images.Ref{Name: "x"})
	var notFound *NotFoundError
	if !errors.As(err, &notFound) || strings.Join(notFound.Have, ",") != "a,b" || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("error = %v, want one that names a and b", err)
	}
}

func TestEnsureRefusesAnotherPin(t *testing.T) {
	s := open(t)
	m := mustImport(t, s, "a", "disk", "kernel", "initramfs")
	_, err := s.Ensure(t.Context(), images.Ref{Name: "a", Digest: sum("other")})
	var pin *PinError
	if !errors.As(err, &pin) || len(pin.Have) != 1 || pin.Have[0] != m.RootDisk.Digest {
		t.Fatalf("error = %v, want *PinError", err)
	}
	for _, want := range []string{sum("other").String(), m.RootDisk.Digest.String()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func TestPinsFindOlderRootDisks(t *testing.T) {
	s := open(t)
	old := mustImport(t, s, "a", "disk1", "kernel", "initramfs")
	mustImport(t, s, "a", "disk2", "kernel", "initramfs")
	got, err := s.Ensure(t.Context(), old.Ref())
	if err != nil || got.Manifest.RootDisk.Digest != sum("disk1") {
		t.Errorf("pinned: %+v, %v", got.Manifest, err)
	}
	got, err = s.Ensure(t.Context(), images.Ref{Name: "a"})
	if err != nil || got.Manifest.RootDisk.Digest != sum("disk2") {
		t.Errorf("not pinned: %+v, %v", got.Manifest, err)
	}
	items, err := s.List()
	if err != nil || len(items) != 2 || !items[0].Current || items[1].Current {
		t.Errorf("List() = %+v, %v", items, err)
	}
}

func TestNewerAgentReplacesTheManifestOfItsRootDisk(t *testing.T) {
	s := open(t)
	mustImport(t, s, "a", "disk", "kernel", "agent1")
	m := mustImport(t, s, "a", "disk", "kernel", "agent2")
	got, err := s.Ensure(t.Context(), m.Ref())
	if err != nil || got.Manifest.Initramfs.Digest != sum("agent2") {
		t.Errorf("the pin finds %+v, %v", got.Manifest.Initramfs, err)
	}
	if items, err := s.List(); err != nil || len(items) != 1 {
		t.Errorf("List() = %+v, %v", items, err)
	}
}

// alter changes a file behind the store's back, keeping its size and, as far
// as a program can, its times.
func alter(t *testing.T, path, content string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

func TestChangedFileIsQuarantined(t *testing.T) {
	for _, again := range []bool{true, false} {
		s := open(t)
		mustImport(t, s, "a", "disk", "kernel", "initramfs")
		image, err := s.Ensure(t.Context(), images.Ref{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		alter(t, image.RootDisk, "evil")
		if !again { // a process that meets the file for the first time
			if s, err = Open(s.Dir()); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.Ensure(t.Context(), images.Ref{Name: "a"})
		var bad *MismatchError
		if !errors.As(err, &bad) {
			t.Fatalf("error = %v, want *MismatchError", err)
		}
		for _, want := range []string{sum("disk").String(), sum("evil").String(), Rebuild, "root disk", bad.Quarantine} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not contain %q", err, want)
			}
		}
		if data, err := os.ReadFile(bad.Quarantine); err != nil || string(data) != "evil" {
			t.Errorf("quarantine holds %q, %v", data, err)
		}
		// The next one finds it missing, and importing again mends it.
		if _, err := s.Ensure(t.Context(), images.Ref{Name: "a"}); !errors.As(err, &bad) || bad.Got != "" {
			t.Errorf("second Ensure: %v", err)
		}
		mustImport(t, s, "a", "disk", "kernel", "initramfs")
		if _, err := s.Ensure(t.Context(), images.Ref{Name: "a"}); err != nil {
			t.Errorf("after importing again: %v", err)
		}
	}
}

func TestImportMendsABrokenBlob(t *testing.T) {
	s := open(t)
	m := mustImport(t, s, "a", "disk", "kernel", "initramfs")
	alter(t, s.blobPath(m.Kernel.Digest), "KERNEL")
	mustImport(t, s, "a", "disk", "kernel", "initramfs")
	if _, err := s.Ensure(t.Context(), images.Ref{Name: "a"}); err != nil {
		t.Error(err)
	}
}

func TestBlobThatIsASymlinkIsNotFollowed(t *testing.T) {
	s := open(t)
	m := mustImport(t, s, "a", "disk", "kernel", "initramfs")
	path := s.blobPath(m.RootDisk.Digest)
	moved := filepath.Join(t.TempDir(), "disk")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(moved, path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), images.Ref{Name: "a"}); err == nil {
		t.Error("a symbolic link was taken for a blob")
	}
}

func TestImportRefuses(t *testing.T) {
	for name, breakIt := range map[string]func(*images.Manifest, *Files){
		"another digest": func(m *images.Manifest, _ *Files) { m.RootDisk.Digest = sum("other") },
		"another size":   func(m *images.Manifest, _ *Files) { m.Kernel.Size = 7 },
		"no digest":      func(m *images.Manifest, _ *Files) { m.Kernel.Digest = "../x" },
		"no file":        func(_ *images.Manifest, f *Files) { f.Initramfs = "" },
		"missing file":   func(_ *images.Manifest, f *Files) { f.Initramfs += "x" },
		"bad name":       func(m *images.Manifest, _ *Files) { m.Name = "../a" },
		"bad format":     func(m *images.Manifest, _ *Files) { m.RootDisk.Format = "raw" },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			before := mustImport(t, s, "a", "1", "2", "3")
			m, files := sources(t, "a", "disk", "kernel", "initramfs")
			breakIt(&m, &files)
			if _, err := s.Import(t.Context(), m, files); err == nil {
				t.Fatal("accepted")
			}
			got, err := s.Ensure(t.Context(), images.Ref{Name: "a"})
			if err != nil || got.Manifest.RootDisk != before.RootDisk {
				t.Errorf("the name now stands for %+v, %v", got.Manifest.RootDisk, err)
			}
			if left, _ := filepath.Glob(filepath.Join(s.Dir(), "tmp", "*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestImportEndsWithTheContext(t *testing.T) {
	s := open(t)
	m, files := sources(t, "a", "disk", "kernel", "initramfs")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Import(ctx, m, files); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if _, err := s.Lookup(images.Ref{Name: "a"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("the image is there: %v", err)
	}
}

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	s := open(t)
	left := filepath.Join(s.Dir(), "tmp", "blob-of-a-dead-process")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustImport(t, s, "a", "disk", "kernel", "initramfs")
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestBrokenManifestIsRefused(t *testing.T) {
	s := open(t)
	mustImport(t, s, "a", "disk", "kernel", "initramfs")
	files, err := filepath.Glob(filepath.Join(s.Dir(), "manifests", "sha256", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	alter(t, files[0], strings.Replace(string(data), "amd64", "arm64", 1))
	if _, err := s.Ensure(t.Context(), images.Ref{Name: "a"}); err == nil || !strings.Contains(err.Error(), Rebuild) {
		t.Errorf("error = %v", err)
	}
}

const helper = "SANDBOX_STORE_TEST_DIR"

// TestTwoProcesses imports and reads one store from several processes at once.
func TestTwoProcesses(t *testing.T) {
	if dir := os.Getenv(helper); dir != "" {
		hammer(t, dir)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "store")
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestTwoProcesses$")
			cmd.Env = append(os.Environ(), helper+"="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	group.Wait()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	items, err := s.List()
	if err != nil || len(items) != 5 {
		t.Errorf("the store has %d images, %v; want 5", len(items), err)
	}
	if _, err := s.Ensure(t.Context(), images.Ref{Name: "shared"}); err != nil {
		t.Error(err)
	}
	if bad, _ := filepath.Glob(filepath.Join(dir, "quarantine", "*")); len(bad) > 0 {
		t.Errorf("quarantined: %q", bad)
	}
}

func hammer(t *testing.T, dir string) {
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		m, files := sources(t, "shared", fmt.Sprintf("disk%d", i%5), "kernel", "initramfs")
		if _, err := s.Import(t.Context(), m, files); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ensure(t.Context(), images.Ref{Name: "shared"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyCallersHashOnce(t *testing.T) {
	s := open(t)
	m := mustImport(t, s, "a", "disk", "kernel", "initramfs")
	s, err := Open(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if _, err := s.Ensure(t.Context(), m.Ref()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func BenchmarkEnsureVerified(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "store"))
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 64<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	m := images.Manifest{
		Version: images.ManifestVersion, Name: "a", Architecture: "amd64",
		RootDisk:  images.Blob{Format: images.FormatQCOW2},
		Kernel:    images.Blob{Format: images.FormatPVH},
		Initramfs: images.Blob{Format: images.FormatCPIO},
	}
	if m, err = s.Import(b.Context(), m, Files{RootDisk: big, Kernel: big, Initramfs: big}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Ensure(b.Context(), m.Ref()); err != nil {
			b.Fatal(err)
		}
	}
}
