package build

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// image builds one image, as far as it has to be built.
func (b *builder) image(ctx context.Context, r recipes.Recipe) (images.Manifest, error) {
	begin := time.Now()
	in, err := b.inputs(ctx, r)
	if err != nil {
		return images.Manifest{}, err
	}
	if !b.Refresh {
		m, ok, err := b.reuse(ctx, r.Name, in)
		if err != nil {
			return images.Manifest{}, err
		}
		if ok {
			b.say(r.Name, "up to date, %s", m.RootDisk.Digest)
			return m, nil
		}
	}
	g, err := b.guest(ctx, r)
	if err != nil {
		return images.Manifest{}, err
	}
	initramfs := filepath.Join(b.tmp, "initramfs.cpio")
	var modules []string
	for _, m := range g.Modules {
		modules = append(modules, filepath.Join(g.dir, m))
	}
	if err := Initramfs(initramfs, b.Agent, modules); err != nil {
		return images.Manifest{}, err
	}
	disk, err := b.rootDisk(ctx, r, in.rootDisk)
	if err != nil {
		return images.Manifest{}, err
	}
	m := images.Manifest{
		Version: images.ManifestVersion, Name: r.Name, Architecture: b.architecture,
		RootDisk:  disk.blob,
		Kernel:    images.Blob{Digest: g.Files[kernelFile], Format: g.Format},
		Initramfs: images.Blob{Format: images.FormatCPIO},
		Labels: map[string]string{
			labelKernelInput: in.kernel.String(), labelRootDiskInput: in.rootDisk.String(),
			labelAgent: in.agent.String(), labelKernelRelease: g.Release,
		},
		Provenance: images.Provenance{
			InputHash: in.all, Builder: "agentic-sandbox images/build", Packages: withKernel(disk.packages, g.Package),
			BuiltAt: time.Now().UTC().Truncate(time.Second),
		},
	}
	if g.Note != "" {
		m.Labels[labelKernelNote] = g.Note
	}
	if r.Description != "" {
		m.Labels["description"] = r.Description
	}
	m, err = b.Store.Import(ctx, m, store.Files{RootDisk: disk.file, Kernel: g.kernel(), Initramfs: initramfs})
	if err != nil {
		return images.Manifest{}, err
	}
	b.say(r.Name, "built in %s, %s", seconds(begin), m.RootDisk.Digest)
	return m, nil
}

// inputHashes are the digests over what goes into an image and its parts.
type inputHashes struct {
	kernel, rootDisk, agent, all images.Digest
}

func (b *builder) inputs(ctx context.Context, r recipes.Recipe) (inputHashes, error) {
	var in inputHashes
	var err error
	if in.agent, err = hashFile(b.Agent); err != nil {
		return in, fmt.Errorf("cannot read guest agent: %w", err)
	}
	if in.kernel, err = b.kernelInput(r); err != nil {
		return in, err
	}
	if in.rootDisk, err = b.rootDiskInput(ctx, r); err != nil {
		return in, err
	}
	in.all, err = hashInputs("image", initramfsVersion, r.Name, r.Description, in.kernel, in.rootDisk, in.agent)
	return in, err
}

// reuse finds an image that was made of the same inputs, and whose files are
// still what they were, and makes it the current one of its name.
func (b *builder) reuse(ctx context.Context, name string, in inputHashes) (images.Manifest, bool, error) {
	for _, item := range b.stored(name) {
		if item.Manifest.Provenance.InputHash != in.all {
			continue
		}
		if !item.Current {
			m, err := b.Store.Import(ctx, item.Manifest, store.Files{})
			if ctx.Err() != nil {
				return images.Manifest{}, false, err
			}
			return m, err == nil, nil // what cannot be used again is built again
		}
		_, err := b.Store.Ensure(ctx, images.Ref{Name: name})
		var mismatch *store.MismatchError
		if errors.As(err, &mismatch) {
			b.say(name, "%v", mismatch)
			return images.Manifest{}, false, nil
		}
		return item.Manifest, err == nil, err
	}
	return images.Manifest{}, false, nil
}

// stored returns what the store has under a name. A store that cannot be
// listed has nothing to use again: building and importing mends it.
func (b *builder) stored(name string) []store.Item {
	all, err := b.Store.List()
	if err != nil {
		b.say(name, "%v", err)
		return nil
	}
	var out []store.Item
	for _, item := range all {
		if item.Manifest.Name == name {
			out = append(out, item)
		}
	}
	return out
}

func isKernelPackage(p string) bool { return strings.HasPrefix(p, "linux-image-") }

// withKernel adds the kernel's package to those of the root disk.
func withKernel(packages []string, kernel string) []string {
	out := append(slices.DeleteFunc(slices.Clone(packages), isKernelPackage), kernel)
	slices.Sort(out)
	return out
}
