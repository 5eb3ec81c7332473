package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

// Files are the paths of an image's files. One that is empty must be in the
// store already, under the digest in the manifest.
type Files struct {
	RootDisk  string
	Kernel    string
	Initramfs string
}

// maxHistory bounds how many root disks a name remembers.
const maxHistory = 64

// Import copies files into the store and makes the manifest the one its name
// stands for. Digests and sizes that the manifest leaves open are filled in;
// those it has must be right. It returns the manifest as stored. What goes
// wrong leaves the name standing for what it stood for.
func (s *Store) Import(ctx context.Context, m images.Manifest, files Files) (images.Manifest, error) {
	fail := func(err error) (images.Manifest, error) {
		return images.Manifest{}, fmt.Errorf("cannot import image %q: %w", m.Name, err)
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	// Whoever holds the lock is the only one with unfinished files.
	if err := s.removeUnfinished(); err != nil {
		return fail(err)
	}
	for _, part := range []struct {
		blob *images.Blob
		file string
		role string
	}{{&m.RootDisk, files.RootDisk, "root disk"}, {&m.Kernel, files.Kernel, "kernel"}, {&m.Initramfs, files.Initramfs, "initramfs"}} {
		if err := s.importBlob(ctx, part.blob, part.file); err != nil {
			return fail(fmt.Errorf("%s: %w", part.role, err))
		}
	}
	if err := m.Validate(); err != nil {
		return fail(err)
	}
	if err := s.point(m); err != nil {
		return fail(err)
	}
	return m, nil
}

func (s *Store) removeUnfinished() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "tmp", "*"))
	if err != nil {
		return err
	}
	for _, n := range names {
		err = errors.Join(err, os.Remove(n))
	}
	return err
}

func (s *Store) importBlob(ctx context.Context, b *images.Blob, file string) error {
	if b.Digest != "" {
		good, err := s.have(ctx, b)
		if err != nil || good {
			return err
		}
	}
	if file == "" {
		return fmt.Errorf("%s is not in the store", b.Digest)
	}
	tmp, got, size, err := s.copyIn(ctx, file)
	if err != nil {
		return err
	}
	defer os.Remove(tmp) // fails once it has been renamed
	switch {
	case b.Digest != "" && b.Digest != got:
		return fmt.Errorf("%q has %s, the manifest says %s", file, got, b.Digest)
	case b.Size != 0 && b.Size != size:
		return fmt.Errorf("%q has %d bytes, the manifest says %d", file, size, b.Size)
	}
	b.Digest, b.Size = got, size
	if good, err := s.have(ctx, b); err != nil || good {
		return err
	}
	if err := os.Rename(tmp, s.blobPath(got)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.blobPath(got)))
}

// have says whether a blob is in the store and right, and fills in its size.
// A wrong one is moved away.
func (s *Store) have(ctx context.Context, b *images.Blob) (bool, error) {
	if _, err := images.ParseDigest(string(b.Digest)); err != nil {
		return false, err
	}
	bad, err := s.check(ctx, b.Digest)
	if err != nil {
		return false, err
	}
	if bad == nil {
		info, err := os.Lstat(s.blobPath(b.Digest))
		if err != nil {
			return false, err
		}
		if b.Size != 0 && b.Size != info.Size() {
			return false, fmt.Errorf("%s has %d bytes, the manifest says %d", b.Digest, info.Size(), b.Size)
		}
		b.Size = info.Size()
		return true, nil
	}
	if bad.Got != "" {
		_, err = s.quarantineLocked(bad)
	}
	return false, err
}

// copyIn copies a file into the store's temporary directory and hashes what it
// copies.
func (s *Store) copyIn(ctx context.Context, file string) (tmp string, d images.Digest, size int64, err error) {
	in, err := os.Open(file)
	if err != nil {
		return "", "", 0, err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "blob-")
	if err != nil {
		return "", "", 0, err
	}
	h := sha256.New()
	size, err = io.Copy(io.MultiWriter(out, h), &ctxReader{ctx: ctx, r: in})
	if err == nil {
		err = out.Chmod(0o444)
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return "", "", 0, errors.Join(err, os.Remove(out.Name()))
	}
	return out.Name(), images.Digest(hex.EncodeToString(h.Sum(nil))), size, nil
}

// point stores the manifest and makes it the first of its name.
func (s *Store) point(m images.Manifest) error {
	data, err := m.Canonical()
	if err != nil {
		return err
	}
	d := digestOf(data)
	if err := s.writeFile(s.manifestPath(d), data, 0o444); err != nil {
		return err
	}
	var notFound *NotFoundError
	old, err := s.readName(m.Name)
	if err != nil && !errors.As(err, &notFound) {
		return err
	}
	n := name{Manifests: []entry{{Manifest: d, RootDisk: m.RootDisk.Digest}}}
	for _, e := range old.Manifests {
		if e.RootDisk != m.RootDisk.Digest && len(n.Manifests) < maxHistory {
			n.Manifests = append(n.Manifests, e)
		}
	}
	data, err = json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return s.writeFile(s.namePath(m.Name), append(data, '\n'), 0o644)
}

// writeFile makes a small file appear whole, or not at all.
func (s *Store) writeFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "file-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it has been renamed
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
