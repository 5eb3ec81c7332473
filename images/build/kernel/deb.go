package kernel

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sync/errgroup"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

// maxTaken bounds what is taken out of one package, in bytes.
const maxTaken = 1 << 30

// ReadDeb returns the regular files of a Debian package that want accepts, by
// their names without a leading "./" or "/".
func ReadDeb(ctx context.Context, deb string, want func(name string) bool) (map[string][]byte, error) {
	g, ctx := errgroup.WithContext(ctx)
	r, w := io.Pipe()
	g.Go(func() error {
		err := hosttool.Run(ctx, hosttool.Command{Tool: hosttool.DpkgDeb, Args: []string{"--fsys-tarfile", deb}, Stdout: w})
		w.CloseWithError(err)
		return err
	})
	files := map[string][]byte{}
	g.Go(func() error {
		err := takeFiles(r, files, want)
		if err == nil {
			// dpkg-deb pads the end; let it finish.
			_, err = io.Copy(io.Discard, r)
		}
		r.CloseWithError(err)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return files, nil
}

func takeFiles(r io.Reader, files map[string][]byte, want func(name string) bool) error {
	var total int64
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read package: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag != tar.TypeReg || !want(name) {
			continue
		}
		if total += h.Size; total > maxTaken {
			return fmt.Errorf("cannot read package: more than %d bytes are wanted", maxTaken)
		}
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(t, data); err != nil {
			return fmt.Errorf("cannot read package: %q: %w", name, err)
		}
		files[name] = data
	}
}
