package rig

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Reachable returns an image store that any user can read: the given one, or
// a copy in dir when some directory above it is closed to others, as the home
// of root is. The hypervisor runs as an unprivileged user.
func Reachable(store, dir string) (string, error) {
	open, err := openToAll(store)
	if err != nil || open || os.Getuid() != 0 {
		return store, err
	}
	target := filepath.Join(dir, "image-store")
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	err = filepath.WalkDir(store, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(store, path)
		if err != nil {
			return err
		}
		to := filepath.Join(target, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(to, 0o755) //nolint:gosec // that is the point
		case e.Type().IsRegular():
			return linkOrCopy(path, to)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("cannot make the images readable for the hypervisor: %w", err)
	}
	return target, nil
}

func openToAll(path string) (bool, error) {
	for p := path; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return false, err
		}
		if info.Mode().Perm()&0o005 == 0 {
			return false, nil
		}
		if p == filepath.Dir(p) {
			return true, nil
		}
	}
}

func linkOrCopy(from, to string) (err error) {
	if os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	return err
}
