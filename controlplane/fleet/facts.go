package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
)

// lowDisk is the free space below which doctor warns, in bytes.
const lowDisk = 5 << 30

// Facts describes the host: providers, images and what is wrong. Of instances and
// orphans it tells those of the tenant.
func (f *Fleet) Facts(ctx context.Context) (HostFacts, error) {
	facts := HostFacts{Host: f.cfg.Host, Version: f.cfg.Version, StateDir: f.cfg.StateDir, ImageDir: f.cfg.ImageDir}
	tenant := tenantOf(ctx, "")
	for _, s := range f.all() {
		s.Peek(func(r *supervise.Record) {
			if r.Tenant == tenant {
				facts.Instances++
			}
		})
	}
	for name, d := range f.cfg.Drivers {
		p, err := f.describe(ctx, name, d)
		if err != nil {
			return HostFacts{}, err
		}
		facts.Providers = append(facts.Providers, p)
		facts.Checks = append(facts.Checks, providerChecks(p)...)
	}
	slices.SortFunc(facts.Providers, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	items, err := f.cfg.Images.List()
	if err != nil {
		return HostFacts{}, fmt.Errorf("cannot list the images: %w", err)
	}
	for _, item := range items {
		facts.Images = append(facts.Images, imageOf(item.Manifest))
	}
	facts.Checks = append(facts.Checks, imageCheck(len(items), f.cfg.ImageDir), diskCheck(f.cfg.StateDir))
	for _, o := range f.orphansOf(ctx) {
		facts.Checks = append(facts.Checks, o.check())
	}
	rank := map[string]int{"error": 0, "warning": 1, "ok": 2}
	slices.SortStableFunc(facts.Checks, func(a, b Check) int { return cmp.Compare(rank[a.Status], rank[b.Status]) })
	return facts, nil
}

func (f *Fleet) describe(ctx context.Context, name string, d vm.Driver) (Provider, error) {
	c, err := d.Capabilities(ctx)
	if err != nil {
		return Provider{}, fmt.Errorf("cannot ask provider %q what it can do: %w", name, err)
	}
	return Provider{
		Name: name, Kind: c.RuntimeKind, Default: name == f.cfg.Default,
		Available: c.Available, Reason: c.Reason, Remedy: c.Remedy,
		Accelerator: c.Accelerator, AcceleratorReason: c.AcceleratorReason, AcceleratorRemedy: c.AcceleratorRemedy,
		Vsock: c.Vsock, VsockReason: c.VsockReason, Versions: c.Versions, Operations: c.Operations,
	}, nil
}

func providerChecks(p Provider) []Check {
	if !p.Available {
		return []Check{{Name: "provider " + p.Name, Status: "error", Detail: p.Reason, Remedy: p.Remedy}}
	}
	checks := []Check{{Name: "provider " + p.Name, Status: "ok", Detail: "can make machines"}}
	switch {
	case p.Accelerator == "kvm":
		checks = append(checks, Check{Name: "accelerator", Status: "ok", Detail: "KVM, proven on this host"})
	case p.Accelerator != "":
		checks = append(checks, Check{
			Name: "accelerator", Status: "warning",
			Detail: "machines are emulated (" + p.Accelerator + "): " + p.AcceleratorReason,
			Remedy: cmp.Or(p.AcceleratorRemedy, "run on a host whose KVM works; everything works without it, slower"),
		})
	}
	if p.Vsock != "" {
		checks = append(checks, Check{Name: "vsock", Status: "ok", Detail: p.Vsock + ": " + cmp.Or(p.VsockReason, "chosen")})
	}
	return checks
}

func imageOf(m images.Manifest) Image {
	return Image{
		Name: m.Name, Ref: m.Ref().URL(), Size: m.RootDisk.Size + m.Kernel.Size + m.Initramfs.Size,
		BuiltAt: m.Provenance.BuiltAt, Packages: len(m.Provenance.Packages),
	}
}

func imageCheck(n int, dir string) Check {
	if n == 0 {
		return Check{
			Name: "images", Status: "error", Detail: "no image is in " + dir,
			Remedy: "`make images` builds some into .build/images: start sandboxd with --image-dir and that directory, or `make install`",
		}
	}
	return Check{Name: "images", Status: "ok", Detail: fmt.Sprintf("%d in %s", n, dir)}
}

func diskCheck(dir string) Check {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Check{
			Name: "disk", Status: "error", Detail: fmt.Sprintf("cannot measure %q: %v", dir, err),
			Remedy: "check the state directory",
		}
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // block counts fit
	c := Check{Name: "disk", Status: "ok", Detail: fmt.Sprintf("%d GiB free in %s", free>>30, dir)}
	if free < lowDisk {
		c.Status = "warning"
		c.Remedy = "remove instances you do not need, or move the state directory"
	}
	return c
}
