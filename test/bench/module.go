package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images/build/debian"
	"agentic-sandbox.aiwg.io/sandbox/images/build/kernel"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// serialModule is the driver of virtio-serial ports. No image has it: our
// machines have no such port. Only the peer that we compare with does.
const serialModule = "virtio_console"

// guestParts is what images/build writes about the kernel it took.
type guestParts struct {
	dir     string
	Release string   `json:"release"`
	Package string   `json:"package"` // name=version
	Modules []string `json:"modules"`
}

func readParts(dir string) (guestParts, error) {
	g := guestParts{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, "guest.json"))
	if err != nil {
		return g, fmt.Errorf("cannot find the guest's kernel (run: make images): %w", err)
	}
	if err := json.Unmarshal(data, &g); err != nil {
		return g, fmt.Errorf("cannot read what the guest's kernel is: %w", err)
	}
	return g, nil
}

// serialDriver returns the module for the images' kernel. It is fetched from
// where the kernel came from, once, and kept in cache.
func serialDriver(ctx context.Context, g guestParts, cache string, say func(string)) ([]byte, error) {
	file := filepath.Join(cache, g.Release, serialModule+".ko")
	if data, err := os.ReadFile(file); err == nil {
		return data, nil
	}
	say("fetching " + serialModule + " of kernel " + g.Release + " for the comparison")
	data, err := fetchModule(ctx, g)
	if err != nil {
		return nil, fmt.Errorf("cannot get %s for kernel %s: %w", serialModule, g.Release, err)
	}
	fresh := file + ".new"
	err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(fresh, data, 0o644))
	if err == nil {
		err = os.Rename(fresh, file)
	}
	return data, err
}

func fetchModule(ctx context.Context, g guestParts) ([]byte, error) {
	recipe, err := recipes.Shipped(imageName)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "sandbox-bench-kernel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	name, _, _ := strings.Cut(g.Package, "=")
	// The images are built for the host's architecture, which is called the
	// same by Go and Debian where machines can be made.
	suite := debian.Suite{Name: recipe.Suite, Architecture: runtime.GOARCH, TempDir: tmp}
	packages, err := suite.Download(ctx, tmp, name)
	if err != nil {
		return nil, err
	}
	contents, err := kernel.ReadPackage(ctx, packages[0].File, []string{serialModule}, nil)
	if err != nil {
		return nil, err
	}
	if contents.Release != g.Release {
		return nil, fmt.Errorf("package %s holds kernel %s", name, contents.Release)
	}
	for _, m := range contents.Modules {
		if m.Name == serialModule {
			return m.Data, nil
		}
	}
	return nil, errors.New("this kernel has it built in")
}
