package build

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// agent builds a small static program to stand for the guest agent.
func agent(t *testing.T, says string) string {
	t.Helper()
	dir := t.TempDir()
	source := "package main\n\nfunc main() { println(\"" + says + "\") }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", out, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux", "GO111MODULE=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

func options(t *testing.T, agent string) (Options, *bytes.Buffer) {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	return Options{Store: s, WorkDir: filepath.Join(t.TempDir(), "work"), Agent: agent, Progress: &progress}, &progress
}

func TestInitramfsIsTheSameWhenRepeated(t *testing.T) {
	program := agent(t, "x")
	dir := t.TempDir()
	var modules []string
	for _, name := range []string{"01-a.ko", "02-b.ko"} {
		modules = append(modules, filepath.Join(dir, name))
		if err := os.WriteFile(modules[len(modules)-1], []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var archives [2][]byte
	for i := range archives {
		out := filepath.Join(dir, "out")
		if err := Initramfs(out, program, modules); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = data
	}
	if !bytes.Equal(archives[0], archives[1]) || len(archives[0])%4 != 0 {
		t.Errorf("%d and %d bytes", len(archives[0]), len(archives[1]))
	}
	for _, name := range []string{"init\x00", "modules/01-a.ko\x00", "newroot\x00", "proc\x00", "sys\x00", "dev\x00"} {
		if !bytes.Contains(archives[0], []byte(name)) {
			t.Errorf("%q is not in the archive", name)
		}
	}
}

func TestAgentMustBeStatic(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not here; to enable: apt-get install bash")
	}
	for want, file := range map[string]string{"no such file": filepath.Join(dir, "none"), "ELF": text, "CGO_ENABLED=0": shell, "not a file": dir} {
		err := Initramfs(filepath.Join(dir, "out"), file, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one with %q", file, err, want)
		}
	}
}

func TestFullDiskIsSaidBefore(t *testing.T) {
	if err := checkFree(t.TempDir(), 1); err != nil {
		t.Error(err)
	}
	err := checkFree(t.TempDir(), 1<<62)
	if err == nil || !strings.Contains(err.Error(), "MiB are free") {
		t.Errorf("error = %v", err)
	}
}

func TestMissingToolsAreSaidBefore(t *testing.T) {
	program := agent(t, "x")
	t.Setenv("PATH", t.TempDir())
	opts, _ := options(t, program)
	_, err := All(t.Context(), opts, "minimal")
	var missing *hosttool.MissingError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "apt-get install --yes") {
		t.Errorf("error = %v, want *hosttool.MissingError", err)
	}
}

func TestUnknownRecipe(t *testing.T) {
	opts, _ := options(t, "")
	if _, err := All(t.Context(), opts, "nonesuch"); err == nil || !strings.Contains(err.Error(), "minimal") {
		t.Errorf("error = %v", err)
	}
}

func TestInputsSeeEveryPart(t *testing.T) {
	if err := hosttool.Check(hosttool.Mmdebstrap, hosttool.Mke2fs, hosttool.QemuImg); err != nil {
		t.Skip(err)
	}
	opts, _ := options(t, agent(t, "x"))
	b, done, err := start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	r, err := recipes.Shipped("debian-12-agentic-dev")
	if err != nil {
		t.Fatal(err)
	}
	base, err := b.inputs(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.inputs(t.Context(), r)
	if err != nil || again != base {
		t.Fatalf("the hashes are not stable: %+v, %+v, %v", base, again, err)
	}
	for name, c := range map[string]struct {
		change         func(*recipes.Recipe)
		kernel, rootfs bool // what must differ
	}{
		"kernel":      {func(r *recipes.Recipe) { r.Kernel += "x" }, true, false},
		"suite":       {func(r *recipes.Recipe) { r.Suite = "trixie" }, true, true},
		"package":     {func(r *recipes.Recipe) { r.Packages = append(r.Packages[:1:1], "jq") }, false, true},
		"disk":        {func(r *recipes.Recipe) { r.Disk.Size++ }, false, true},
		"description": {func(r *recipes.Recipe) { r.Description += "x" }, false, false},
	} {
		changed := r
		c.change(&changed)
		got, err := b.inputs(t.Context(), changed)
		if err != nil {
			t.Fatal(err)
		}
		if (got.kernel != base.kernel) != c.kernel || (got.rootDisk != base.rootDisk) != c.rootfs || got.all == base.all {
			t.Errorf("%s: hashes %+v against %+v", name, got, base)
		}
	}
	b.Agent = agent(t, "y")
	got, err := b.inputs(t.Context(), r)
	if err != nil || got.agent == base.agent || got.all == base.all || got.rootDisk != base.rootDisk {
		t.Errorf("another agent: %+v against %+v, %v", got, base, err)
	}
}

func TestChangedGuestIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	g := guest{Files: map[string]images.Digest{}}
	if err := g.write(dir, kernelFile, []byte("kernel")); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, guestFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := `{"input": "1", "files": {"vmlinux": "` + string(g.Files[kernelFile]) + `"}}`
	write(whole)
	if _, err := readGuest(dir, "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := readGuest(dir, "2"); err == nil {
		t.Error("made from other inputs: accepted")
	}
	for _, bad := range []string{"", "{}", strings.Replace(whole, "vmlinux", "gone", 1)} {
		write(bad)
		if _, err := readGuest(dir, "1"); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
	write(whole)
	if err := os.WriteFile(filepath.Join(dir, kernelFile), []byte("Kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readGuest(dir, "1"); err == nil {
		t.Error("a changed kernel was accepted")
	}
}

// needDownload skips tests that fetch packages.
func needDownload(t *testing.T) {
	t.Helper()
	if os.Getenv("SANDBOX_TEST_DOWNLOAD") == "" {
		t.Skip("this test downloads 30 MB of packages; to enable: SANDBOX_TEST_DOWNLOAD=1 go test ./images/build")
	}
	if err := hosttool.Check(hosttool.Mmdebstrap, hosttool.DpkgDeb, hosttool.Mke2fs, hosttool.QemuImg); err != nil {
		t.Skip(err)
	}
}

func TestMinimalFromNothingAndAgain(t *testing.T) {
	needDownload(t)
	opts, progress := options(t, agent(t, "x"))
	step := func(want string, opts Options) images.Manifest {
		t.Helper()
		progress.Reset()
		got, err := All(t.Context(), opts, "minimal")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(progress.String(), want) {
			t.Errorf("progress is %q, want %q in it", progress, want)
		}
		return got[0]
	}
	first := step("built in", opts)
	if first.RootDisk.VirtualSize != 256<<20 || first.Kernel.Format != images.FormatPVH || len(first.Provenance.Packages) != 2 {
		t.Errorf("manifest is %+v", first)
	}
	if same := step("up to date", opts); same.RootDisk != first.RootDisk {
		t.Errorf("unchanged inputs gave %+v", same)
	}

	changed := opts
	changed.Agent = agent(t, "y")
	second := step("using the root disk of before", changed)
	if second.RootDisk != first.RootDisk || second.Kernel != first.Kernel || second.Initramfs == first.Initramfs {
		t.Errorf("another agent gave %+v after %+v", second, first)
	}
	if strings.Contains(progress.String(), "fetching") {
		t.Errorf("another agent fetched packages: %q", progress)
	}

	// A broken file in the store is noticed and made again.
	path := filepath.Join(opts.Store.Dir(), "blobs", "sha256", string(first.RootDisk.Digest))
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("broken"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if mended := step("built in", changed); mended.RootDisk != first.RootDisk {
		t.Errorf("built again: %s, before: %s", mended.RootDisk.Digest, first.RootDisk.Digest)
	}

	// In another place, from nothing: the same bytes.
	elsewhere, _ := options(t, opts.Agent)
	got, err := All(t.Context(), elsewhere, "minimal")
	if err != nil {
		t.Fatal(err)
	}
	if got[0].RootDisk != first.RootDisk || got[0].Kernel != first.Kernel || got[0].Initramfs != first.Initramfs {
		t.Errorf("elsewhere the image is\n%+v, here\n%+v", got[0], first)
	}
	if left, err := os.ReadDir(filepath.Join(elsewhere.WorkDir, "tmp")); err == nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	needDownload(t)
	opts, _ := options(t, agent(t, "x"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opts.Verbose = true
	opts.Progress = &trigger{on: "apt-get update", do: cancel}
	if _, err := All(ctx, opts, "minimal"); !errors.Is(err, context.Canceled) {
		t.Fatalf("error = %v, want context.Canceled", err)
	}
	entries, err := os.ReadDir(opts.WorkDir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("the work directory holds %v, %v", entries, err)
	}
	if items, err := opts.Store.List(); err != nil || len(items) != 0 {
		t.Errorf("the store has %v, %v", items, err)
	}
}

// trigger does something once a text has been written to it.
type trigger struct {
	on string
	do func()
}

func (g *trigger) Write(p []byte) (int, error) {
	if strings.Contains(string(p), g.on) {
		g.do()
	}
	return len(p), nil
}
