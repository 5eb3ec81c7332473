// Package debian fetches Debian packages and installs them into a tree, with
// the distribution's own programs (mmdebstrap, apt, dpkg) and pip, none of
// which needs a machine of that release: any Debian or Ubuntu host will do.
//
// Where packages come from is those programs' own configuration: the host's
// apt sources when they hold the wanted release, mmdebstrap's own choice
// otherwise. The package must not know what becomes of the packages.
package debian

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

// cleanUp is how long mmdebstrap may take to unmount and remove what it made.
const cleanUp = 30 * time.Second

// Suite is a Debian release for one architecture, and how to reach it.
type Suite struct {
	Name string
	// Architecture is Debian's name, such as "amd64".
	Architecture string
	// Mirrors are given to mmdebstrap as they are: URIs, apt lines, or paths
	// of apt source files. Empty takes the host's own sources when they hold
	// the release.
	Mirrors []string
	// TempDir is where big temporary files go. It is not cleaned up.
	TempDir string
	// Line is given what the programs say, line by line; may be nil.
	Line func(string)
}

// Package is one downloaded package file.
type Package struct {
	Name    string
	Version string
	File    string // path
}

// download is run by mmdebstrap with the tree as its first argument, after it
// has fetched and verified the release's indexes. A package that only points
// to the current kernel is replaced by that kernel.
const download = `set -eu; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; mkdir "$1/debs"; cd "$1/debs"; ` +
	`for p in $SANDBOX_PACKAGES; do ` +
	`d=$(apt-cache depends "$p" | sed -n 's/^ *Depends: \(linux-image-[a-z0-9.+-]*\)$/\1/p' | head -n 1); ` +
	`apt-get --quiet --option APT::Sandbox::User=root download "${d:-$p}"; done`

// Download fetches packages, without those they depend on, into dir. A
// package that only depends on the current kernel image is followed to it.
func (s Suite) Download(ctx context.Context, dir string, packages ...string) ([]Package, error) {
	out := filepath.Join(s.TempDir, "packages.tar")
	defer os.Remove(out)
	err := s.mmdebstrap(ctx, out, []string{"--variant=custom", "--customize-hook=" + download},
		"SANDBOX_PACKAGES="+strings.Join(packages, " "))
	if err != nil {
		return nil, fmt.Errorf("cannot download packages %s of %s: %w", strings.Join(packages, ", "), s.Name, err)
	}
	found, err := takePackages(out, dir)
	if err != nil {
		return nil, fmt.Errorf("cannot download packages %s of %s: %w", strings.Join(packages, ", "), s.Name, err)
	}
	if len(found) != len(packages) {
		return nil, fmt.Errorf("cannot download packages %s of %s: %d files came", strings.Join(packages, ", "), s.Name, len(found))
	}
	return found, nil
}

// takePackages copies the package files out of the tree that mmdebstrap made.
func takePackages(archive, dir string) ([]Package, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []Package
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			sort.Slice(found, func(i, j int) bool { return found[i].Name < found[j].Name })
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %q: %w", archive, err)
		}
		folder, base := path.Split(path.Clean("/" + h.Name))
		if folder != "/debs/" || h.Typeflag != tar.TypeReg || !strings.HasSuffix(base, ".deb") {
			continue
		}
		p, err := parseFileName(base)
		if err != nil {
			return nil, err
		}
		p.File = filepath.Join(dir, base)
		if err := writeFile(p.File, t); err != nil {
			return nil, err
		}
		found = append(found, p)
	}
}

// parseFileName reads "name_version_arch.deb", as apt names what it fetches.
func parseFileName(base string) (Package, error) {
	parts := strings.Split(strings.TrimSuffix(base, ".deb"), "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Package{}, fmt.Errorf("cannot read package name: %q is not name_version_architecture.deb", base)
	}
	version, err := url.PathUnescape(parts[1])
	if err != nil {
		return Package{}, fmt.Errorf("cannot read package name: %q: %w", base, err)
	}
	return Package{Name: parts[0], Version: version}, nil
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// Bootstrap installs the release's essential packages, and those given with
// what they depend on, and writes the tree to the tar file out. The same
// packages give the same bytes: no time in it is later than epoch.
func (s Suite) Bootstrap(ctx context.Context, out string, epoch time.Time, packages []string) error {
	err := s.mmdebstrap(ctx, out,
		[]string{"--variant=minbase", "--dpkgopt=force-unsafe-io", "--include=" + strings.Join(packages, ",")},
		"SOURCE_DATE_EPOCH="+strconv.FormatInt(epoch.Unix(), 10))
	if err != nil {
		return fmt.Errorf("cannot install packages of %s: %w", s.Name, err)
	}
	return nil
}

// mmdebstrap runs it with the options that are always the same.
func (s Suite) mmdebstrap(ctx context.Context, out string, options []string, env ...string) error {
	if err := hosttool.Check(hosttool.Mmdebstrap, hosttool.AptConfig); err != nil {
		return err
	}
	mirrors := s.Mirrors
	if len(mirrors) == 0 {
		var err error
		if mirrors, err = hostSources("/etc/apt", s.Name, s.TempDir); err != nil {
			return err
		}
	}
	args := append([]string{"--format=tar", "--architectures=" + s.Architecture}, options...)
	network, err := s.networkOptions(ctx)
	if err != nil {
		return err
	}
	args = append(args, network...)
	if os.Geteuid() == 0 {
		// Root's temporary directory may be small; other users' subordinate
		// ids may not be let into ours.
		args = append(args, "--mode=root")
		env = append(env, "TMPDIR="+s.TempDir)
	} else {
		args = append(args, "--mode=unshare")
	}
	args = append(append(args, s.Name, out), mirrors...)
	err = hosttool.Run(ctx, hosttool.Command{Tool: hosttool.Mmdebstrap, Args: args, Env: env, Line: s.Line, Grace: cleanUp})
	if err != nil && os.Geteuid() != 0 && ctx.Err() == nil {
		return fmt.Errorf("%w\nwithout root this needs user namespaces, and entries in /etc/subuid and /etc/subgid; "+
			"or run: sudo make images", err)
	}
	return err
}

// networkOptions are the host's apt settings about the network (proxies,
// certificates). Root's go through a file, because a proxy's address may hold
// a password that only root can read. Other users' cannot: the part of
// mmdebstrap that reads the file is yet another user.
func (s Suite) networkOptions(ctx context.Context) ([]string, error) {
	dump, err := hosttool.Output(ctx, hosttool.Command{Tool: hosttool.AptConfig, Args: []string{"dump"}})
	if err != nil {
		return nil, err
	}
	keep := []string{`Acquire::Retries "3";`}
	for line := range strings.SplitSeq(dump, "\n") {
		key, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(key, "Acquire::http::") || strings.HasPrefix(key, "Acquire::https::") {
			keep = append(keep, line)
		}
	}
	if os.Geteuid() != 0 {
		for i, line := range keep {
			keep[i] = "--aptopt=" + strings.TrimSuffix(line, ";")
		}
		return keep, nil
	}
	name := filepath.Join(s.TempDir, "network.conf")
	if err := os.WriteFile(name, []byte(strings.Join(keep, "\n")+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("cannot write apt settings: %w", err)
	}
	return []string{"--aptopt=" + name}, nil
}
