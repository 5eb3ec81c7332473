package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/build/debian"
	"agentic-sandbox.aiwg.io/sandbox/images/build/kernel"
	"agentic-sandbox.aiwg.io/sandbox/images/build/rootdisk"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// disk is a finished root disk.
type disk struct {
	blob images.Blob
	// file is empty when the disk is in the store already.
	file     string
	packages []string
}

// rootDisk makes the root disk of a recipe, or finds in the store one that was
// made of the same inputs.
func (b *builder) rootDisk(ctx context.Context, r recipes.Recipe, input images.Digest) (disk, error) {
	if !b.Refresh {
		for _, item := range b.stored(r.Name) {
			m := item.Manifest
			if m.Labels[labelRootDiskInput] != input.String() {
				continue
			}
			if _, err := b.Store.Ensure(ctx, m.Ref()); err == nil {
				b.say(r.Name, "using the root disk of before")
				return disk{blob: m.RootDisk, packages: m.Provenance.Packages}, nil
			}
		}
	}
	d, err := b.makeRootDisk(ctx, r)
	if err != nil {
		return disk{}, fmt.Errorf("cannot make root disk: %w", err)
	}
	return d, nil
}

func (b *builder) makeRootDisk(ctx context.Context, r recipes.Recipe) (disk, error) {
	if err := checkFree(b.WorkDir, need(r)); err != nil {
		return disk{}, err
	}
	if len(r.Wheels) > 0 { // said now, not after minutes
		if err := debian.CheckPip(ctx); err != nil {
			return disk{}, err
		}
	}
	work, err := b.tempDir("root")
	if err != nil {
		return disk{}, err
	}
	stage := filepath.Join(work, "tree")
	if err := os.Mkdir(stage, 0o755); err != nil {
		return disk{}, err
	}
	tree, err := rootdisk.NewTree(stage, epoch)
	if err != nil {
		return disk{}, err
	}
	packages, err := b.fill(ctx, tree, r, work)
	if err == nil {
		err = tree.Finish(r)
	}
	if err = errors.Join(err, tree.Close()); err != nil {
		return disk{}, err
	}
	begin := time.Now()
	raw, out := filepath.Join(work, "disk.raw"), filepath.Join(work, "disk.qcow2")
	size := int64(r.Disk.Size)
	if err := tree.WriteExt4(ctx, stage, work, raw, rootdisk.Disk{Size: size, UUID: r.Disk.UUID}); err != nil {
		return disk{}, err
	}
	b.say(r.Name, "file system written, %s", seconds(begin))
	begin = time.Now()
	if err := rootdisk.WriteQCOW2(ctx, raw, out); err != nil {
		return disk{}, err
	}
	b.say(r.Name, "disk compressed, %s", seconds(begin))
	// Only the compressed disk is wanted from here on.
	if err := errors.Join(os.RemoveAll(stage), os.Remove(raw)); err != nil {
		return disk{}, err
	}
	return disk{blob: images.Blob{Format: images.FormatQCOW2, VirtualSize: size}, file: out, packages: packages}, nil
}

// fill puts packages and wheels into the tree and returns what was installed.
func (b *builder) fill(ctx context.Context, tree *rootdisk.Tree, r recipes.Recipe, work string) ([]string, error) {
	var packages []string
	var err error
	switch r.From {
	case recipes.FromBusybox:
		packages, err = b.fillBusybox(ctx, tree, r, work)
	case recipes.FromDebian:
		packages, err = b.fillDebian(ctx, tree, r, work)
	default:
		err = fmt.Errorf("cannot build from %q", r.From)
	}
	if err != nil {
		return nil, err
	}
	for _, w := range r.Wheels {
		if err := b.fillWheel(ctx, tree, r, w); err != nil {
			return nil, err
		}
		packages = append(packages, w.Name+"="+w.Version)
	}
	return packages, nil
}

func (b *builder) fillBusybox(ctx context.Context, tree *rootdisk.Tree, r recipes.Recipe, work string) ([]string, error) {
	b.say(r.Name, "fetching %s of Debian %s", r.Packages[0], r.Suite)
	got, err := b.suite(r, work, r.Name).Download(ctx, work, r.Packages[0])
	if err != nil {
		return nil, err
	}
	files, err := kernel.ReadDeb(ctx, got[0].File, func(name string) bool { return name == "bin/busybox" || name == "usr/bin/busybox" })
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("cannot find busybox in package %s", got[0].Name)
	}
	program := filepath.Join(work, "busybox")
	for _, data := range files {
		if err := os.WriteFile(program, data, 0o755); err != nil {
			return nil, err
		}
	}
	return []string{got[0].Name + "=" + got[0].Version}, tree.AddBusybox(ctx, program)
}

// leftOut is what a tree never keeps: what the agent mounts over, and what
// tells of the building host (its proxies, its mirrors, its names).
func leftOut() []string {
	return []string{
		"/dev", "/proc", "/sys", "/run", "/tmp",
		"/etc/apt/apt.conf.d/99mmdebstrap", "/etc/dpkg/dpkg.cfg.d/99mmdebstrap",
		"/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/hostname", "/etc/resolv.conf", "/etc/machine-id",
	}
}

func (b *builder) fillDebian(ctx context.Context, tree *rootdisk.Tree, r recipes.Recipe, work string) ([]string, error) {
	begin := time.Now()
	b.say(r.Name, "installing Debian %s (a few minutes)", r.Suite)
	archive := filepath.Join(work, "debian.tar")
	if err := b.suite(r, work, r.Name).Bootstrap(ctx, archive, time.Unix(epoch, 0), r.Packages); err != nil {
		return nil, err
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	err = tree.AddTar(ctx, f, append(leftOut(), r.Exclude...))
	if err = errors.Join(err, f.Close(), os.Remove(archive)); err != nil {
		return nil, err
	}
	packages, err := tree.Packages()
	if err != nil {
		return nil, err
	}
	b.say(r.Name, "%d packages installed, %s", len(packages), seconds(begin))
	return packages, nil
}

// fillWheel adds files of a wheel, which is kept for the next build.
func (b *builder) fillWheel(ctx context.Context, tree *rootdisk.Tree, r recipes.Recipe, w recipes.Wheel) error {
	kept := filepath.Join(b.WorkDir, "wheels", w.SHA256+".whl")
	if got, err := hashFile(kept); err != nil || string(got) != w.SHA256 {
		b.say(r.Name, "fetching %s %s", w.Name, w.Version)
		dir, err := b.tempDir("wheel")
		if err != nil {
			return err
		}
		wheel := debian.Wheel{Name: w.Name, Version: w.Version, Platform: w.Platform, SHA256: w.SHA256}
		file, err := debian.DownloadWheel(ctx, wheel, dir, b.line(r.Name))
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o755), os.Rename(file, kept)); err != nil {
			return err
		}
	}
	return tree.AddWheel(ctx, kept, w.Install)
}

// need is how much free space a recipe takes while it is built, in bytes.
func need(r recipes.Recipe) int64 {
	const gib = 1 << 30
	if r.From == recipes.FromDebian {
		return 4 * gib
	}
	return gib
}

// checkFree says so early when a disk is too full, instead of failing after
// minutes with half a file.
func checkFree(dir string, want int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("cannot find out free space of %q: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < want {
		const mib = 1 << 20
		return fmt.Errorf("cannot build in %q: %d MiB are free, %d are needed; free some, or choose another work directory",
			dir, free/mib, want/mib)
	}
	return nil
}
