package workspace

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// FileOptions say how a file is written.
type FileOptions struct {
	// Mode holds permission bits; others are dropped. 0 means 0644.
	Mode uint32
	// Owner of the file and of the parents made for it.
	Owner Owner
	// MakeParents makes missing directories, mode 0755.
	MakeParents bool
}

// Writer writes one regular file that appears whole or not at all.
type Writer struct {
	parent *os.File
	file   *os.File
	temp   string
	base   string
	opt    FileOptions
	sum    hash.Hash
	size   uint64
}

// Create begins to write a file below the root. The caller ends with Commit
// or Abort.
func (r *Root) Create(name string, opt FileOptions) (*Writer, error) {
	rel, err := r.relative(name)
	if err != nil {
		return nil, err
	}
	dir, base := path.Split(rel)
	if base == "" || base == "." || base == ".." {
		return nil, fmt.Errorf("cannot write %q below %q: %w: it does not name a file", name, r.path, ErrInvalid)
	}
	var parent *os.File
	if opt.MakeParents {
		parent, err = r.makeDirs(dir, 0o755, opt.Owner)
	} else {
		parent, err = r.open(orDot(dir), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, err
	}
	w := &Writer{parent: parent, base: base, temp: ".sandbox-put-" + rand.Text(), opt: opt, sum: sha256.New()}
	fd, err := unix.Openat(int(parent.Fd()), w.temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		_ = parent.Close()
		return nil, fmt.Errorf("cannot write %q below %q: %w", name, r.path, err)
	}
	w.file = os.NewFile(uintptr(fd), name)
	return w, nil
}

// Write adds data to the file.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.sum.Write(p[:n])
	w.size += uint64(n)
	if err != nil {
		return n, fmt.Errorf("cannot write %q: %w", w.base, err)
	}
	return n, nil
}

// Commit puts the file in its place when size and digest are what the sender
// says they are, and makes it durable. The Writer is done either way.
func (w *Writer) Commit(size uint64, sum []byte) error {
	if err := checkEnd(w.size, w.sum, size, sum); err != nil {
		w.Abort()
		return fmt.Errorf("cannot write %q: %w", w.base, err)
	}
	if err := w.finish(); err != nil {
		w.Abort()
		return fmt.Errorf("cannot write %q: %w", w.base, err)
	}
	_ = w.file.Close()
	_ = w.parent.Close()
	return nil
}

func (w *Writer) finish() error {
	if err := w.opt.Owner.apply(w.file); err != nil {
		return err
	}
	mode := w.opt.Mode & 0o777
	if w.opt.Mode == 0 {
		mode = 0o644
	}
	if err := unix.Fchmod(int(w.file.Fd()), mode); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	dir := int(w.parent.Fd())
	if err := unix.Renameat(dir, w.temp, dir, w.base); err != nil {
		return err
	}
	w.temp = ""
	return w.parent.Sync()
}

// Abort leaves nothing behind.
func (w *Writer) Abort() {
	if w.temp != "" {
		// Nobody can act on a failure to remove a temporary name.
		_ = unix.Unlinkat(int(w.parent.Fd()), w.temp, 0)
		w.temp = ""
	}
	_ = w.file.Close()
	_ = w.parent.Close()
}

func checkEnd(gotSize uint64, got hash.Hash, size uint64, sum []byte) error {
	if gotSize != size {
		return fmt.Errorf("%w: %d bytes came, %d were promised", ErrIncomplete, gotSize, size)
	}
	if !bytes.Equal(got.Sum(nil), sum) {
		return fmt.Errorf("%w: the sha256 differs from the promised one", ErrIncomplete)
	}
	return nil
}

// Reader reads one regular file and remembers what has gone through it.
type Reader struct {
	file  *os.File
	sum   hash.Hash
	size  uint64
	limit uint64
}

// Open begins to read a regular file of at most limit bytes; 0 is no bound.
func (r *Root) Open(name string, limit uint64) (*Reader, error) {
	rel, err := r.relative(name)
	if err != nil {
		return nil, err
	}
	// O_NONBLOCK: opening a FIFO must not wait for its other end.
	f, err := r.open(rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is not a regular file", ErrInvalid)
	}
	if err == nil && limit > 0 && uint64(info.Size()) > limit {
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, info.Size(), limit)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot read %q below %q: %w", name, r.path, err)
	}
	return &Reader{file: f, sum: sha256.New(), limit: limit}, nil
}

// Read reads on. A file that grows beyond its bound meanwhile is an error.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	r.sum.Write(p[:n])
	r.size += uint64(n)
	if r.limit > 0 && r.size > r.limit {
		return 0, fmt.Errorf("cannot read %q: %w: more than %d bytes", r.file.Name(), ErrTooLarge, r.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("cannot read %q: %w", r.file.Name(), err)
	}
	return n, err
}

// End gives size and sha256 of what has been read.
func (r *Reader) End() (uint64, []byte) { return r.size, r.sum.Sum(nil) }

// Close gives the file back.
func (r *Reader) Close() error { return r.file.Close() }
