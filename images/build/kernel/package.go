package kernel

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Contents is what is taken out of a kernel package.
type Contents struct {
	// Release is the kernel's own name, such as "6.1.0-57-cloud-amd64".
	Release string
	Kernel  Image
	// Modules are in the order in which they must be loaded, unpacked.
	Modules []ModuleFile
}

// ModuleFile is a module and its content.
type ModuleFile struct {
	Name string
	Data []byte
}

// FileName is the name under which the i-th module (counted from 0) is kept:
// sorting the names gives the order of loading.
func (m ModuleFile) FileName(i int) string { return fmt.Sprintf("%02d-%s.ko", i+1, m.Name) }

// ReadPackage reads a Debian kernel package and takes out the kernel, the
// required modules, the optional ones that exist, and what they need.
func ReadPackage(ctx context.Context, deb string, required, optional []string) (Contents, error) {
	c, err := readPackage(ctx, deb, required, optional)
	if err != nil {
		return Contents{}, fmt.Errorf("cannot read kernel package %q: %w", filepath.Base(deb), err)
	}
	return c, nil
}

func readPackage(ctx context.Context, deb string, required, optional []string) (Contents, error) {
	files, err := ReadDeb(ctx, deb, func(name string) bool {
		return isKernel(name) || path.Base(name) == "modules.builtin" || isModule(name)
	})
	if err != nil {
		return Contents{}, err
	}
	var c Contents
	var bz []byte
	for name, data := range files {
		if !isKernel(name) {
			continue
		}
		if bz != nil {
			return Contents{}, fmt.Errorf("it holds more than one %s*", kernelPrefix)
		}
		c.Release, bz = strings.TrimPrefix(name, kernelPrefix), data
	}
	if bz == nil {
		return Contents{}, fmt.Errorf("it holds no %s*", kernelPrefix)
	}
	if c.Kernel, err = extract(ctx, bz); err != nil {
		return Contents{}, err
	}
	if c.Modules, err = chooseModules(ctx, files, c.Release, required, optional); err != nil {
		return Contents{}, err
	}
	return c, nil
}

const kernelPrefix = "boot/vmlinuz-"

func isKernel(name string) bool { return strings.HasPrefix(name, kernelPrefix) }

func isModule(name string) bool {
	_, err := moduleName(name)
	return err == nil && strings.Contains(name, "lib/modules/")
}

// chooseModules orders the wanted modules by what they say they need: a
// distribution's package has no modules.dep, which is made where it is
// installed.
func chooseModules(ctx context.Context, files map[string][]byte, release string, required, optional []string) ([]ModuleFile, error) {
	deps := newModuleGraph()
	for name, data := range files {
		switch {
		case isKernel(name):
		case path.Base(name) == "modules.builtin":
			if err := deps.addBuiltin(bytes.NewReader(data)); err != nil {
				return nil, err
			}
		case strings.Contains(name, "lib/modules/"+release+"/"):
			plain, err := decompressModule(ctx, data)
			if err != nil {
				return nil, fmt.Errorf("cannot unpack module %q: %w", name, err)
			}
			files[name] = plain
			needs, err := readNeeds(plain)
			if err != nil {
				return nil, fmt.Errorf("cannot read module %q: %w", name, err)
			}
			if err := deps.add(name, needs); err != nil {
				return nil, err
			}
		}
	}
	order, err := deps.order(required, optional)
	if err != nil {
		return nil, err
	}
	out := make([]ModuleFile, len(order))
	for i, m := range order {
		out[i] = ModuleFile{Name: m.Name, Data: files[m.Path]}
	}
	return out, nil
}
