package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/build/debian"
	"agentic-sandbox.aiwg.io/sandbox/images/build/kernel"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// requiredModules are what every machine needs to find its disk and the host.
func requiredModules() []string {
	return []string{"virtio_pci", "virtio_blk", "vmw_vsock_virtio_transport"}
}

// optionalModules are loaded where the kernel does not have them built in.
func optionalModules() []string { return []string{"virtio_rng"} }

// guest is what a kernel package gave, in a directory:
//
//	vmlinux            the kernel, whatever its format
//	modules/NN-name.ko the modules, in the order of their names
//	guest.json         this
type guest struct {
	dir     string
	Input   images.Digest `json:"input"`
	Release string        `json:"release"`
	Package string        `json:"package"` // name=version
	Format  string        `json:"format"`
	Note    string        `json:"note,omitempty"` // why the format is not the better one
	// Files are the digests of the others, by their paths in the directory.
	Files map[string]images.Digest `json:"files"`
	// Modules are paths in the directory, in order.
	Modules []string `json:"modules"`
}

const (
	guestFile  = "guest.json"
	kernelFile = "vmlinux"
)

func (g guest) kernel() string { return filepath.Join(g.dir, kernelFile) }

// Kernel fetches the kernel of a recipe and its modules, unless they are there
// already, and returns the directory they are in: vmlinux and
// modules/NN-name.ko. WorkDir/guest leads to the latest.
func Kernel(ctx context.Context, r recipes.Recipe, opts Options) (string, error) {
	b, done, err := start(ctx, opts)
	if err != nil {
		return "", err
	}
	defer done()
	g, err := b.guest(ctx, r)
	return g.dir, err
}

func (b *builder) guest(ctx context.Context, r recipes.Recipe) (guest, error) {
	input, err := b.kernelInput(r)
	if err != nil {
		return guest{}, err
	}
	if g, ok := b.guests[string(input)]; ok {
		return g, nil
	}
	dir := filepath.Join(b.WorkDir, "kernels", string(input))
	g, err := readGuest(dir, input)
	if err != nil || b.Refresh {
		if g, err = b.makeGuest(ctx, r, input, dir); err != nil {
			return guest{}, fmt.Errorf("cannot get kernel: %w", err)
		}
	}
	if err := b.linkGuest(dir); err != nil {
		return guest{}, fmt.Errorf("cannot get kernel: %w", err)
	}
	b.guests[string(input)] = g
	return g, nil
}

// readGuest returns what an earlier build left, if it is whole.
func readGuest(dir string, input images.Digest) (guest, error) {
	data, err := os.ReadFile(filepath.Join(dir, guestFile))
	if err != nil {
		return guest{}, err
	}
	g := guest{dir: dir}
	if err := json.Unmarshal(data, &g); err != nil {
		return guest{}, err
	}
	if g.Input != input || g.Files[kernelFile] == "" {
		return guest{}, errors.New("made from something else")
	}
	for name, want := range g.Files {
		if got, err := hashFile(filepath.Join(dir, name)); err != nil || got != want {
			return guest{}, fmt.Errorf("file %q has changed", name)
		}
	}
	return g, nil
}

func (b *builder) makeGuest(ctx context.Context, r recipes.Recipe, input images.Digest, dir string) (guest, error) {
	begin := time.Now()
	b.say("kernel", "fetching %s of Debian %s", r.Kernel, r.Suite)
	tmp, err := b.tempDir("kernel")
	if err != nil {
		return guest{}, err
	}
	packages, err := b.suite(r, tmp, "kernel").Download(ctx, tmp, r.Kernel)
	if err != nil {
		return guest{}, err
	}
	contents, err := kernel.ReadPackage(ctx, packages[0].File, requiredModules(), optionalModules())
	if err != nil {
		return guest{}, err
	}
	g := guest{
		dir: dir, Input: input, Release: contents.Release, Package: packages[0].Name + "=" + packages[0].Version,
		Format: contents.Kernel.Format, Note: contents.Kernel.Reason, Files: map[string]images.Digest{},
	}
	fresh := filepath.Join(tmp, "guest")
	if err := os.MkdirAll(filepath.Join(fresh, "modules"), 0o755); err != nil {
		return guest{}, err
	}
	if err := g.write(fresh, kernelFile, contents.Kernel.Data); err != nil {
		return guest{}, err
	}
	for i, m := range contents.Modules {
		name := filepath.Join("modules", m.FileName(i))
		if err := g.write(fresh, name, m.Data); err != nil {
			return guest{}, err
		}
		g.Modules = append(g.Modules, name)
	}
	data, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return guest{}, err
	}
	if err := os.WriteFile(filepath.Join(fresh, guestFile), append(data, '\n'), 0o644); err != nil {
		return guest{}, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.RemoveAll(dir), os.Rename(fresh, dir)); err != nil {
		return guest{}, err
	}
	b.say("kernel", "%s (%s), %d modules, %s", g.Release, g.Format, len(g.Modules), seconds(begin))
	if g.Note != "" {
		b.say("kernel", "machines will boot slower: %s", g.Note)
	}
	return g, nil
}

// write writes one file of the guest and records its digest.
func (g *guest) write(dir, name string, data []byte) error {
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	d, err := hashFile(file)
	g.Files[name] = d
	return err
}

// linkGuest makes WorkDir/guest lead to the directory.
func (b *builder) linkGuest(dir string) error {
	link := filepath.Join(b.WorkDir, "guest")
	target, err := filepath.Rel(b.WorkDir, dir)
	if err != nil {
		return err
	}
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	fresh := filepath.Join(b.tmp, "guest-link")
	if err := os.Symlink(target, fresh); err != nil {
		return err
	}
	return os.Rename(fresh, link)
}

// suite is the Debian release of a recipe.
func (b *builder) suite(r recipes.Recipe, tmp, what string) debian.Suite {
	return debian.Suite{Name: r.Suite, Architecture: b.architecture, Mirrors: b.Mirrors, TempDir: tmp, Line: b.line(what)}
}
