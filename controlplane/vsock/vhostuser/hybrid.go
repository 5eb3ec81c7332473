package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds on the clients of the CONNECT socket.
const (
	maxRequest     = 32 // bytes of the line
	requestTimeout = 10 * time.Second
	connectTimeout = 60 * time.Second
	maxClients     = 1024
)

// halfCloser is a stream whose two ways end apart.
type halfCloser interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// hybrid serves the CONNECT convention on a unix socket.
type hybrid struct {
	listener *net.UnixListener
	dial     func(context.Context, uint32) (net.Conn, error)
	log      *slog.Logger
	tasks    sync.WaitGroup

	mu      sync.Mutex
	clients map[*net.UnixConn]struct{} // nil once closed
	done    chan struct{}
}

func newHybrid(l *net.UnixListener, dial func(context.Context, uint32) (net.Conn, error), log *slog.Logger) *hybrid {
	return &hybrid{listener: l, dial: dial, log: log, clients: map[*net.UnixConn]struct{}{}, done: make(chan struct{})}
}

func (h *hybrid) serve() {
	defer h.tasks.Wait()
	for {
		conn, err := acceptUnix(h.listener, h.done, h.log)
		if err != nil {
			return
		}
		if !h.add(conn) {
			_ = conn.Close()
			continue
		}
		h.tasks.Go(func() {
			defer h.remove(conn)
			if err := h.client(conn); err != nil {
				h.log.Debug("vsock CONNECT client ended", "error", err)
			}
		})
	}
}

func (h *hybrid) add(c *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.clients == nil || len(h.clients) >= maxClients {
		return false
	}
	h.clients[c] = struct{}{}
	return true
}

func (h *hybrid) remove(c *net.UnixConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
	_ = c.Close()
}

func (h *hybrid) close() error {
	err := h.listener.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		_ = c.Close()
	}
	h.clients = nil
	close(h.done)
	return err
}

// client serves one connection from its request to the end of both ways. A
// request that cannot be met is answered by hanging up.
func (h *hybrid) client(c *net.UnixConn) error {
	if err := c.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	line, err := readRequest(c)
	if err != nil {
		return err
	}
	port, err := parseRequest(line)
	if err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	guest, err := h.connect(port)
	if err != nil {
		return err
	}
	defer func() { _ = guest.Close() }()
	if _, err := fmt.Fprintf(c, "OK %d\n", port); err != nil {
		return err
	}
	g, ok := guest.(halfCloser)
	if !ok {
		return errors.New("guest connection has no half close")
	}
	join(c, g)
	return nil
}

func (h *hybrid) connect(port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(lifetime{h.done}, connectTimeout)
	defer cancel()
	return h.dial(ctx, port)
}

// lifetime is a context that ends with its channel: a client of a socket has
// no caller whose context it could take.
type lifetime struct{ done <-chan struct{} }

func (l lifetime) Deadline() (time.Time, bool) { return time.Time{}, false }
func (l lifetime) Done() <-chan struct{}       { return l.done }
func (l lifetime) Value(any) any               { return nil }

func (l lifetime) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return nil
	}
}

// readRequest reads up to a line feed, byte by byte: what follows is stream.
func readRequest(r io.Reader) ([]byte, error) {
	line := make([]byte, 0, maxRequest)
	for len(line) < maxRequest {
		if _, err := io.ReadFull(r, line[len(line):len(line)+1]); err != nil {
			return nil, fmt.Errorf("cannot read a CONNECT request: %w", err)
		}
		line = line[:len(line)+1]
		if line[len(line)-1] == '\n' {
			return line[:len(line)-1], nil
		}
	}
	return nil, fmt.Errorf("CONNECT request is longer than %d bytes: %q", maxRequest, line)
}

func parseRequest(line []byte) (uint32, error) {
	digits, ok := bytes.CutPrefix(line, []byte("CONNECT "))
	if ok && len(digits) > 0 && digits[0] >= '0' && digits[0] <= '9' {
		if n, err := strconv.ParseUint(string(digits), 10, 32); err == nil {
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("request is %q, want CONNECT and a port", line)
}

// join copies both ways until both have ended. Each way ends apart, so that
// half close goes through; a client that is gone altogether ends both.
func join(c *net.UnixConn, g halfCloser) {
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if _, err := io.Copy(g, c); err != nil {
			_ = g.CloseRead()
			_ = c.CloseRead()
		}
		_ = g.CloseWrite()
		// The end of a unix stream does not tell half close from close, and
		// a guest that says nothing would never make us find out.
		if hungUp(c) {
			_ = g.Close()
		}
	})
	tasks.Go(func() {
		if _, err := io.Copy(c, g); err != nil {
			_ = c.CloseRead()
		}
		_ = c.CloseWrite()
	})
	tasks.Wait()
}

// hungUp waits until the peer of c has closed, and says no if c is closed or
// shut both ways from our side first.
func hungUp(c *net.UnixConn) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	hup := false
	err = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(p, 0); err != nil {
			return err != unix.EINTR
		}
		hup = p[0].Revents&unix.POLLHUP != 0
		return hup
	})
	return err == nil && hup
}
