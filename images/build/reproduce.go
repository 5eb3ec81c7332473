package build

import (
	"context"
	"fmt"
	"slices"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// Reproduce makes the root disks of shipped recipes once more, from nothing,
// and compares each with the one in the store. It returns an error when the
// bytes differ, and says which packages do when the archive has moved on
// meanwhile. The store is not changed.
func Reproduce(ctx context.Context, opts Options, names ...string) error {
	if len(names) == 0 {
		names = recipes.Names()
	}
	b, done, err := start(ctx, opts)
	if err != nil {
		return err
	}
	defer done()
	for _, name := range names {
		r, err := recipes.Shipped(name)
		if err != nil {
			return err
		}
		if err := b.checkTools(ctx, []recipes.Recipe{r}); err != nil {
			return err
		}
		if err := b.reproduce(ctx, r); err != nil {
			return fmt.Errorf("cannot reproduce image %q: %w", name, err)
		}
	}
	return nil
}

func (b *builder) reproduce(ctx context.Context, r recipes.Recipe) error {
	have, err := b.Store.Lookup(images.Ref{Name: r.Name})
	if err != nil {
		return err
	}
	d, err := b.makeRootDisk(ctx, r)
	if err != nil {
		return err
	}
	got, err := hashFile(d.file)
	if err != nil {
		return err
	}
	if got == have.RootDisk.Digest {
		b.say(r.Name, "bit-identical when built again, %s", got)
		return nil
	}
	before := slices.DeleteFunc(slices.Clone(have.Provenance.Packages), isKernelPackage)
	now := slices.Clone(d.packages)
	slices.Sort(before)
	slices.Sort(now)
	if !slices.Equal(before, now) {
		return fmt.Errorf("the archive has other packages now (%v, not %v); build with -refresh first",
			missingFrom(before, now), missingFrom(now, before))
	}
	return fmt.Errorf("the same packages gave %s, not %s", got, have.RootDisk.Digest)
}

// missingFrom returns those of b that are not in a.
func missingFrom(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(b), func(s string) bool { return slices.Contains(a, s) })
}
