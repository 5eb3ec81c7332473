// Package build makes images: a kernel and its modules out of a distribution's
// package, an initramfs around the guest agent, and root disks from recipes.
//
// Everything is made in a work directory, imported into a store at the end,
// and not made again while nothing that goes into it has changed. The package
// must not know who boots images; what a root disk holds is said by recipes.
package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
	"agentic-sandbox.aiwg.io/sandbox/images/filelock"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// Options say where and with what to build.
type Options struct {
	Store *store.Store
	// WorkDir keeps what can be used again: about 100 MiB, and some GiB while
	// a root disk is being made.
	WorkDir string
	// Agent is the path of the static guest agent.
	Agent string
	// Mirrors are where Debian packages come from, as for mmdebstrap. Empty
	// means the host's apt sources, or mmdebstrap's own choice.
	Mirrors []string
	// Refresh builds everything anew, with the packages of the day.
	Refresh bool
	// Progress is told what is being done, line by line; may be nil.
	Progress io.Writer
	// Verbose also gives Progress what the programs say.
	Verbose bool
}

// builder is the work of one call.
type builder struct {
	Options
	tmp string // removed at the end
	// architecture is a GOARCH, and Debian's name for it.
	architecture string
	guests       map[string]guest
}

// All builds the named shipped recipes, or every one of them when none is
// named, and imports each image into the store as soon as it is made. What has
// not changed since it was last built is there already. It stops at the first
// that fails.
func All(ctx context.Context, opts Options, names ...string) ([]images.Manifest, error) {
	if len(names) == 0 {
		names = recipes.Names()
	}
	var wanted []recipes.Recipe
	for _, n := range names {
		r, err := recipes.Shipped(n)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, r)
	}
	b, done, err := start(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := b.checkTools(ctx, wanted); err != nil {
		return nil, err
	}
	var out []images.Manifest
	for _, r := range wanted {
		m, err := b.image(ctx, r)
		if err != nil {
			return out, fmt.Errorf("cannot build image %q: %w", r.Name, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// start takes the work directory for this call.
func start(ctx context.Context, opts Options) (b *builder, done func(), err error) {
	if runtime.GOARCH != "amd64" {
		return nil, nil, fmt.Errorf("cannot build images on %s: only amd64 is known so far", runtime.GOARCH)
	}
	if opts.WorkDir, err = filepath.Abs(opts.WorkDir); err != nil {
		return nil, nil, fmt.Errorf("cannot use work directory: %w", err)
	}
	if err := os.MkdirAll(opts.WorkDir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("cannot make work directory: %w", err)
	}
	unlock, err := filelock.Lock(ctx, filepath.Join(opts.WorkDir, "lock"))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use work directory: %w", err)
	}
	// Whoever holds the lock is the only one with unfinished work.
	tmp := filepath.Join(opts.WorkDir, "tmp")
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o755)); err != nil {
		unlock()
		return nil, nil, fmt.Errorf("cannot clean work directory: %w", err)
	}
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	b = &builder{Options: opts, tmp: tmp, architecture: runtime.GOARCH, guests: map[string]guest{}}
	return b, func() {
		_ = os.RemoveAll(tmp) // what stays is removed by the next build
		unlock()
	}, nil
}

func (b *builder) checkTools(ctx context.Context, wanted []recipes.Recipe) error {
	tools := []hosttool.Tool{
		hosttool.Mmdebstrap, hosttool.AptConfig, hosttool.DpkgDeb, hosttool.Mke2fs, hosttool.Debugfs, hosttool.E2fsck, hosttool.QemuImg,
	}
	if os.Geteuid() != 0 {
		tools = append(tools, hosttool.NewUIDMap)
	}
	for _, r := range wanted {
		if len(r.Wheels) > 0 {
			tools = append(tools, hosttool.Python)
			break
		}
	}
	if err := hosttool.Check(tools...); err != nil {
		return fmt.Errorf("cannot build images: %w", err)
	}
	return ctx.Err()
}

// say reports progress. A reader that has gone away is no reason to stop.
func (b *builder) say(what, format string, args ...any) {
	_, _ = fmt.Fprintf(b.Progress, "%-24s %s\n", what+":", fmt.Sprintf(format, args...))
}

// line reports what a program says, when that is wanted.
func (b *builder) line(what string) func(string) {
	if !b.Verbose {
		return nil
	}
	return func(text string) { b.say(what, "  %s", text) }
}

// tempDir makes a directory that is gone when the build has ended.
func (b *builder) tempDir(name string) (string, error) {
	dir, err := os.MkdirTemp(b.tmp, name+"-")
	if err != nil {
		return "", fmt.Errorf("cannot make temporary directory: %w", err)
	}
	// Programs that give up root's rights must be able to pass.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot make temporary directory: %w", err)
	}
	return dir, nil
}

func seconds(since time.Time) string { return fmt.Sprintf("%.1f s", time.Since(since).Seconds()) }
