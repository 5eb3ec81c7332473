package kernel

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"agentic-sandbox.aiwg.io/sandbox/images/build/hosttool"
)

var errUnknownCompression = errors.New("the kernel's compression is not one this program reads (lz4, gzip, zstd, xz)")

// compression is one way in which kernels and modules are packed.
type compression struct {
	name  string
	magic []byte
	open  func(ctx context.Context, r io.Reader, limit int) (io.ReadCloser, error)
	// sized payloads end in four bytes that hold the unpacked size.
	sized bool
}

func compressions() []compression {
	return []compression{
		{"lz4", []byte{0x02, 0x21, 0x4c, 0x18}, openLZ4, true},
		{"gzip", []byte{0x1f, 0x8b}, openGzip, false},
		{"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd}, openZstd, true},
		{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, openXZ, true},
	}
}

func detect(data []byte) (compression, bool) {
	for _, c := range compressions() {
		if bytes.HasPrefix(data, c.magic) {
			return c, true
		}
	}
	return compression{}, false
}

// decompressPayload unpacks the payload of a bzImage, to at most limit bytes.
func decompressPayload(ctx context.Context, payload []byte, limit int) ([]byte, error) {
	c, ok := detect(payload)
	if !ok {
		return nil, errUnknownCompression
	}
	var want uint32
	if c.sized {
		end := len(payload) - 4
		if end < len(c.magic) {
			return nil, fmt.Errorf("cannot unpack kernel: %s payload of %d bytes is cut short", c.name, len(payload))
		}
		want = binary.LittleEndian.Uint32(payload[end:])
		payload = payload[:end]
	}
	out, err := c.unpack(ctx, payload, limit)
	if err != nil {
		return nil, fmt.Errorf("cannot unpack kernel: %w", err)
	}
	if c.sized && uint64(want) != uint64(len(out)) {
		return nil, fmt.Errorf("cannot unpack kernel: %d bytes came out where the file says %d", len(out), want)
	}
	return out, nil
}

// decompressModule unpacks a kernel module, or returns it as it is.
func decompressModule(ctx context.Context, data []byte) ([]byte, error) {
	c, ok := detect(data)
	if !ok {
		return data, nil
	}
	return c.unpack(ctx, data, maxKernel)
}

func (c compression) unpack(ctx context.Context, data []byte, limit int) ([]byte, error) {
	r, err := c.open(ctx, bytes.NewReader(data), limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if len(out) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes come out", c.name, limit)
	}
	return out, nil
}

func openLZ4(_ context.Context, r io.Reader, _ int) (io.ReadCloser, error) {
	return io.NopCloser(lz4.NewReader(r)), nil
}

func openGzip(_ context.Context, r io.Reader, _ int) (io.ReadCloser, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	z.Multistream(false) // whatever follows is not ours
	return z, nil
}

func openZstd(_ context.Context, r io.Reader, _ int) (io.ReadCloser, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxKernel), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// openXZ leaves the work to the xz program: no Go code for it is among this
// module's dependencies, and only some distributions need it.
func openXZ(ctx context.Context, r io.Reader, limit int) (io.ReadCloser, error) {
	var out bytes.Buffer
	err := hosttool.Run(ctx, hosttool.Command{
		Tool:   hosttool.XZ,
		Args:   []string{"--decompress", "--stdout", "--memlimit=512MiB"},
		Stdin:  r,
		Stdout: &capped{w: &out, left: limit},
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(&out), nil
}

// capped is a writer that fails once too much was written to it.
type capped struct {
	w    io.Writer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	if len(p) > c.left {
		return 0, errors.New("too much comes out")
	}
	c.left -= len(p)
	return c.w.Write(p)
}
