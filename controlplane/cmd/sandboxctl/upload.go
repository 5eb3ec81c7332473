package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// upload sends a directory into a machine as a stream; nothing of it is held
// in memory or written to disk on the way.
func (c *connection) upload(ctx context.Context, ref, dir, to string, skipped func(name, why string)) (managementv1.FilesWritten, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return managementv1.FilesWritten{}, fmt.Errorf("cannot read workspace: %w", err)
	}
	defer root.Close()

	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(root, writer, skipped)
		_ = writer.CloseWithError(err) // never fails
		packed <- err
	}()
	resp, err := c.api.PutFilesWithBody(ctx, ref, &managementv1.PutFilesParams{Path: to}, "application/x-tar", reader)
	// A server that answers early stops reading: let the packer end as well.
	_ = reader.CloseWithError(errNotRead) // never fails
	packErr := <-packed
	written, err := receive[managementv1.FilesWritten](c, resp, err)
	if packErr != nil && !errors.Is(packErr, errNotRead) {
		return written, packErr
	}
	return written, err
}

var errNotRead = errors.New("server did not read the archive to its end")

// pack writes the directory as a tar stream. It never leaves the directory;
// links are sent as links, and what is neither file, directory nor link is
// left out.
func pack(root *os.Root, w io.Writer, skipped func(name, why string)) error {
	tw := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("cannot read workspace: %w", err)
		}
		if name == "." {
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we walk
		}
		if err != nil {
			return fmt.Errorf("cannot read workspace: %w", err)
		}
		return packOne(root, tw, name, info, skipped)
	})
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("cannot send workspace: %w", err)
	}
	return nil
}

func packOne(root *os.Root, tw *tar.Writer, name string, info fs.FileInfo, skipped func(name, why string)) error {
	header := &tar.Header{
		Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case info.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case info.Mode().IsRegular():
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return fmt.Errorf("cannot read workspace: %w", err)
		}
		if path.IsAbs(target) {
			skipped(name, "it links to an absolute path")
			return nil
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, target
	default:
		skipped(name, "it is no file, directory or link")
		return nil
	}
	if header.Typeflag != tar.TypeReg {
		if err := tw.WriteHeader(header); err != nil {
			return fmt.Errorf("cannot send %q: %w", name, err)
		}
		return nil
	}
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("cannot read workspace: %w", err)
	}
	defer f.Close()
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("cannot send %q: %w", name, err)
	}
	// A file that grows is sent as long as it was; one that shrinks cannot be.
	switch _, err := io.CopyN(tw, f, info.Size()); {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("cannot send %q: it became shorter while it was read", name)
	case err != nil:
		return fmt.Errorf("cannot send %q: %w", name, err)
	}
	return nil
}
