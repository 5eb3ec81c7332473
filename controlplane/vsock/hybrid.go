package vsock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"syscall"
	"time"
)

// maxReply bounds the answer to CONNECT: "OK ", ten digits, a line feed, and
// room for a longer refusal.
const maxReply = 32

// HybridDialer reaches a guest through a unix socket that speaks the CONNECT
// convention: we send "CONNECT <port>\n", it answers "OK <port>\n" or ends.
type HybridDialer struct {
	path string
}

// Hybrid returns a dialer for the unix socket at path.
func Hybrid(path string) *HybridDialer {
	return &HybridDialer{path: path}
}

// Dial connects to a port of the guest. A device that hangs up instead of
// answering is ErrRefused: that is how the convention says no.
func (d *HybridDialer) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "unix", d.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", ErrDown, err)
		}
		return nil, fmt.Errorf("cannot dial guest port %d: %w", port, err)
	}
	if err := handshake(ctx, c, port); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("cannot dial guest port %d by %q: %w", port, d.path, err)
	}
	return c, nil
}

// handshake asks for the port. The end of ctx cuts it short.
func handshake(ctx context.Context, c net.Conn, port uint32) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = c.SetDeadline(time.Unix(1, 0))
	})
	err := connect(c, port)
	if !stop() {
		<-interrupted // or its deadline could fall on the finished stream
		if err == nil {
			err = c.SetDeadline(time.Time{})
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func connect(c io.ReadWriter, port uint32) error {
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", port); err != nil {
		return refusal(err)
	}
	line, err := readLine(c)
	if err != nil {
		return err
	}
	_, err = parseReply(line)
	return err
}

// readLine reads up to a line feed, one byte at a time: what follows belongs
// to the stream.
func readLine(r io.Reader) ([]byte, error) {
	line := make([]byte, 0, maxReply)
	for len(line) < maxReply {
		n, err := r.Read(line[len(line) : len(line)+1])
		line = line[:len(line)+n]
		if n == 1 && line[len(line)-1] == '\n' {
			return line[:len(line)-1], nil
		}
		if err != nil {
			return nil, refusal(err)
		}
	}
	return nil, fmt.Errorf("answer to CONNECT is longer than %d bytes: %q", maxReply, line)
}

// refusal turns the ways a device hangs up into ErrRefused.
func refusal(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w: the device closed the connection", ErrRefused)
	}
	return err
}

// parseReply takes "OK <number>" apart. The number is the host's port on some
// devices and the guest's on others, so it is checked and not compared.
func parseReply(line []byte) (uint32, error) {
	digits, ok := bytes.CutPrefix(line, []byte("OK "))
	if !ok || len(digits) == 0 || digits[0] == '+' || digits[0] == '-' {
		return 0, fmt.Errorf("answer to CONNECT is %q, want OK and a port", line)
	}
	n, err := strconv.ParseUint(string(digits), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("answer to CONNECT is %q, want OK and a port", line)
	}
	return uint32(n), nil
}
