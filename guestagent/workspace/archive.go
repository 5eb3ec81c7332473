package workspace

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// UnpackOptions bound an archive and say whose its entries become.
type UnpackOptions struct {
	Owner Owner
	// MaxBytes bounds the sum of file sizes, MaxEntries the entries; 0 means
	// the defaults of the agent contract.
	MaxBytes   uint64
	MaxEntries uint32
}

// Unpacked is what an archive came to.
type Unpacked struct {
	Entries uint32
	Bytes   uint64
}

// Unpack writes the entries of a tar stream below the root. Nothing outside
// the root can be reached, not even through links the archive itself or
// somebody else made: an entry behind such a link is refused. Set-id bits and
// owners of the archive are dropped. It stops at the first entry it refuses;
// what came before stays.
func (r *Root) Unpack(src io.Reader, opt UnpackOptions) (Unpacked, error) {
	if opt.MaxBytes == 0 {
		opt.MaxBytes = agentv1.MaxArchiveBytes
	}
	if opt.MaxEntries == 0 {
		opt.MaxEntries = agentv1.MaxArchiveEntries
	}
	u := unpacker{root: r, opt: opt, tar: tar.NewReader(src)}
	defer u.forget()
	for {
		hdr, err := u.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.sum, fmt.Errorf("cannot read archive after entry %d: %w", u.sum.Entries, err)
		}
		if err := u.entry(hdr); err != nil {
			return u.sum, fmt.Errorf("cannot unpack entry %q: %w", hdr.Name, err)
		}
	}
	if err := unix.Syncfs(int(r.dir.Fd())); err != nil {
		return u.sum, fmt.Errorf("cannot sync %q: %w", r.path, err)
	}
	return u.sum, nil
}

// unpacker is the state of one Unpack.
type unpacker struct {
	root *Root
	opt  UnpackOptions
	tar  *tar.Reader
	sum  Unpacked
	// parent is the directory of the last entry: archives list the files of a
	// directory one after another.
	parent     *os.File
	parentName string
}

func (u *unpacker) forget() {
	if u.parent != nil {
		_ = u.parent.Close()
		u.parent = nil
	}
}

func (u *unpacker) entry(hdr *tar.Header) error {
	if u.sum.Entries++; u.sum.Entries > u.opt.MaxEntries {
		return fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.opt.MaxEntries)
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(hdr.Name)
	if err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeDir {
		return u.directory(name, hdr)
	}
	if name == "." {
		return fmt.Errorf("%w: it is the root", ErrInvalid)
	}
	dir, base := path.Split(name)
	parent, err := u.dirOf(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeReg:
		return u.file(parent, base, hdr)
	case tar.TypeSymlink:
		return u.symlink(parent, base, hdr.Linkname)
	case tar.TypeLink:
		return u.hardlink(parent, base, hdr.Linkname)
	default:
		return fmt.Errorf("%w: entries of type %q", ErrInvalid, hdr.Typeflag)
	}
}

// entryName cleans a name of the archive lexically, which is safe because
// names with ".." are refused.
func entryName(name string) (string, error) {
	if err := checkPath(name); err != nil {
		return "", err
	}
	if path.IsAbs(name) {
		return "", fmt.Errorf("%w: an absolute name", ErrInvalid)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: \"..\" in a name", ErrInvalid)
		}
	}
	return path.Clean(name), nil
}

func (u *unpacker) dirOf(name string) (*os.File, error) {
	if u.parent != nil && u.parentName == name {
		return u.parent, nil
	}
	u.forget()
	dir, err := u.root.makeDirs(name, 0o755, u.opt.Owner)
	if err != nil {
		return nil, err
	}
	u.parent, u.parentName = dir, name
	return dir, nil
}

func (u *unpacker) directory(name string, hdr *tar.Header) error {
	if name == "." {
		return nil // the root is there, and whoever made it chose its mode
	}
	dir, err := u.root.makeDirs(name, 0o755, u.opt.Owner)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := u.opt.Owner.apply(dir); err != nil {
		return err
	}
	return unix.Fchmod(int(dir.Fd()), uint32(hdr.Mode)&0o777)
}

func (u *unpacker) file(parent *os.File, base string, hdr *tar.Header) error {
	if hdr.Size < 0 || uint64(hdr.Size) > u.opt.MaxBytes-u.sum.Bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, u.opt.MaxBytes)
	}
	if err := makeWay(parent, base); err != nil {
		return err
	}
	fd, err := unix.Openat(int(parent.Fd()), base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	n, err := io.Copy(f, u.tar)
	u.sum.Bytes += uint64(n)
	if err != nil {
		return err
	}
	if err := u.opt.Owner.apply(f); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(hdr.Mode)&0o777); err != nil {
		return err
	}
	if t := hdr.ModTime; t.After(time.Unix(0, 0)) && t.Year() < 2200 {
		stamp := unix.NsecToTimeval(t.UnixNano())
		// A time that cannot be set is not worth an archive.
		_ = unix.Futimes(fd, []unix.Timeval{stamp, stamp})
	}
	return nil
}

// symlink makes a link whatever its target: it is data to us, and nothing of
// ours follows it out of the root.
func (u *unpacker) symlink(parent *os.File, base, target string) error {
	if err := checkPath(target); err != nil {
		return fmt.Errorf("link target %q: %w", target, err)
	}
	if err := makeWay(parent, base); err != nil {
		return err
	}
	defer u.forget()
	if err := unix.Symlinkat(target, int(parent.Fd()), base); err != nil {
		return err
	}
	if u.opt.Owner.Keep {
		return nil
	}
	return unix.Fchownat(int(parent.Fd()), base, u.opt.Owner.UID, u.opt.Owner.GID, unix.AT_SYMLINK_NOFOLLOW)
}

// hardlink links to a regular file below the root. Its owner stays: the file
// may be older than the archive.
func (u *unpacker) hardlink(parent *os.File, base, target string) error {
	name, err := entryName(target)
	if err != nil {
		return fmt.Errorf("link target %q: %w", target, err)
	}
	f, err := u.root.open(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: a hard link to %q, which is not a regular file", ErrInvalid, target)
	}
	var old unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), base, &old, unix.AT_SYMLINK_NOFOLLOW); err == nil && old.Dev == st.Dev && old.Ino == st.Ino {
		return nil // a link to itself; making way would lose the file
	}
	if err := makeWay(parent, base); err != nil {
		return err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	return unix.Linkat(unix.AT_FDCWD, self, int(parent.Fd()), base, unix.AT_SYMLINK_FOLLOW)
}

// makeWay removes what is not a directory from the place of an entry.
func makeWay(parent *os.File, base string) error {
	err := unix.Unlinkat(int(parent.Fd()), base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: a directory is in its place", ErrInvalid)
	}
	return err
}
