package rootdisk

import (
	"archive/zip"
	"bufio"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
)

// AddWheel adds the wanted files of a Python package file, which is a zip
// archive. An install that finds nothing is an error.
func (t *Tree) AddWheel(ctx context.Context, file string, installs []recipes.Install) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("cannot read wheel: %w", err)
	}
	defer z.Close()
	for _, i := range installs {
		found := false
		for _, entry := range z.File {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("cannot read wheel: %w", context.Cause(ctx))
			}
			rest, ok := strings.CutPrefix(entry.Name, i.From)
			if !ok || rest != "" && rest[0] != '/' || entry.FileInfo().IsDir() {
				continue
			}
			found = true
			if err := t.addZipped(entry, path.Join(i.To, path.Clean("/"+rest)), uint32(i.Mode)); err != nil {
				return fmt.Errorf("cannot read wheel: %w", err)
			}
		}
		if !found {
			return fmt.Errorf("cannot read wheel: it holds no %q", i.From)
		}
	}
	return nil
}

func (t *Tree) addZipped(entry *zip.File, to string, mode uint32) error {
	content, err := entry.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	r := bufio.NewReader(content)
	if mode == 0 {
		mode = 0o644
		if start, err := r.Peek(2); err == nil && string(start) == "#!" {
			mode = 0o755
		} else if err != nil && err != io.EOF {
			return err
		}
	}
	return t.addFile(to, mode, 0, 0, t.epoch, r)
}
