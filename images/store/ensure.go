package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/images"
)

// Image is an image whose files have been checked. The files must not be
// written to.
type Image struct {
	Manifest  images.Manifest
	RootDisk  string // path
	Kernel    string // path
	Initramfs string // path
}

// Ensure returns the files of an image after checking them: each by its full
// hash the first time this Store meets it and whenever the file looks
// different from what was hashed (inode, size, times), by its looks alone
// otherwise. A file that is not what it must be is moved to the quarantine.
//
// Errors are *NotFoundError, *PinError and *MismatchError, or say what could
// not be read.
func (s *Store) Ensure(ctx context.Context, ref images.Ref) (Image, error) {
	m, err := s.Lookup(ref)
	if err != nil {
		return Image{}, err
	}
	for _, b := range m.Blobs() {
		if err := s.verify(ctx, m.Name, b); err != nil {
			return Image{}, err
		}
	}
	return Image{
		Manifest:  m,
		RootDisk:  s.blobPath(m.RootDisk.Digest),
		Kernel:    s.blobPath(m.Kernel.Digest),
		Initramfs: s.blobPath(m.Initramfs.Digest),
	}, nil
}

// looks is what changes when a file is replaced or written to.
type looks struct {
	device, inode uint64
	size          int64
	mtime, ctime  syscall.Timespec
}

func looksOf(info fs.FileInfo) (looks, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return looks{}, fmt.Errorf("%q is not a regular file", info.Name())
	}
	return looks{device: st.Dev, inode: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// verification remembers what a blob looked like when its hash was right. The
// channel holds one token: whoever has it may hash the blob and write looks.
type verification struct {
	token chan struct{}
	looks looks
	done  bool
}

func (s *Store) verification(d images.Digest) *verification {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.verified[d]
	if v == nil {
		v = &verification{token: make(chan struct{}, 1)}
		v.token <- struct{}{}
		s.verified[d] = v
	}
	return v
}

// verify checks one file of an image.
func (s *Store) verify(ctx context.Context, image string, b images.NamedBlob) error {
	bad, err := s.check(ctx, b.Digest)
	if err != nil {
		return fmt.Errorf("cannot check %s of image %q: %w", b.Role, image, err)
	}
	if bad == nil {
		return nil
	}
	bad.Image, bad.Role = image, b.Role
	if bad.Got != "" {
		if bad.Quarantine, err = s.quarantine(ctx, bad); err != nil {
			return errors.Join(bad, err)
		}
	}
	return bad.MismatchError
}

// mismatch is a *MismatchError in the making, with the file it was found in.
type mismatch struct {
	*MismatchError
	looks looks
}

func (s *Store) check(ctx context.Context, d images.Digest) (*mismatch, error) {
	v := s.verification(d)
	select {
	case <-v.token:
		defer func() { v.token <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	path := s.blobPath(d)
	if info, err := os.Lstat(path); err == nil && v.done {
		if now, err := looksOf(info); err == nil && now == v.looks {
			return nil, nil
		}
	}
	v.done = false
	got, seen, err := hashFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return &mismatch{MismatchError: &MismatchError{Path: path, Want: d}}, nil
	}
	if err != nil {
		return nil, err
	}
	if got != d {
		return &mismatch{MismatchError: &MismatchError{Path: path, Want: d, Got: got}, looks: seen}, nil
	}
	// A file changed so lately could change again within the same tick of the
	// file system's clock, and look the same. It is hashed once more next time.
	v.looks, v.done = seen, time.Since(time.Unix(seen.ctime.Unix())) > settled
	return nil, nil
}

// settled is how old a file's last change must be for its looks to be trusted:
// well above the tick of any file system's clock.
const settled = 100 * time.Millisecond

// hashFile hashes a file that nobody may be writing to.
func hashFile(ctx context.Context, path string) (images.Digest, looks, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", looks{}, err
	}
	defer f.Close()
	before, err := statLooks(f)
	if err != nil {
		return "", looks{}, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, &ctxReader{ctx: ctx, r: f}); err != nil {
		return "", looks{}, err
	}
	after, err := statLooks(f)
	if err != nil {
		return "", looks{}, err
	}
	if before != after {
		return "", looks{}, fmt.Errorf("%q changed while it was read", path)
	}
	return images.Digest(hex.EncodeToString(h.Sum(nil))), after, nil
}

func statLooks(f *os.File) (looks, error) {
	info, err := f.Stat()
	if err != nil {
		return looks{}, err
	}
	return looksOf(info)
}

// ctxReader ends reading when the context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

func digestOf(data []byte) images.Digest {
	sum := sha256.Sum256(data)
	return images.Digest(hex.EncodeToString(sum[:]))
}

// quarantine moves a bad file out of the way, unless somebody has already
// replaced it. Machines that have it open keep it.
func (s *Store) quarantine(ctx context.Context, bad *mismatch) (string, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	return s.quarantineLocked(bad)
}

func (s *Store) quarantineLocked(bad *mismatch) (string, error) {
	info, err := os.Lstat(bad.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot move %q to the quarantine: %w", bad.Path, err)
	}
	if now, err := looksOf(info); err != nil || now != bad.looks {
		return "", nil
	}
	to := filepath.Join(s.dir, "quarantine", string(bad.Want)+"-is-"+string(bad.Got))
	if err := os.Rename(bad.Path, to); err != nil {
		return "", fmt.Errorf("cannot move %q to the quarantine: %w", bad.Path, err)
	}
	return to, nil
}
