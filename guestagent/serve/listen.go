package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// maxConns bounds the connections at one time. A host needs a handful; the
// bound leaves room for some that have died without a word.
const maxConns = 64

// anyCID binds to whatever context id the device has, even before there is a
// device: the listener survives every unplug.
const anyCID = 0xffffffff // VMADDR_CID_ANY

// ListenVsock listens on the agent's port and lets nobody in but the host.
func ListenVsock(log *slog.Logger) (net.Listener, error) {
	l, err := vsock.ListenContextID(anyCID, agentv1.Port, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on vsock port %d: %w", agentv1.Port, err)
	}
	return guard(l, log, fromHost), nil
}

// fromHost checks the context id of a vsock peer, which the kernel holds.
func fromHost(c net.Conn) error {
	peer, ok := c.RemoteAddr().(*vsock.Addr)
	if !ok || peer.ContextID != vsock.Host {
		return fmt.Errorf("peer %v is not the host", c.RemoteAddr())
	}
	return nil
}

// Listen listens on "unix:PATH", open to the agent's own user and root only.
// A socket that a dead agent has left is replaced.
func Listen(ctx context.Context, address string, log *slog.Logger) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return nil, fmt.Errorf("cannot listen on %q: want unix:PATH", address)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", address, err)
	}
	old := unix.Umask(0o177)
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", address, err)
	}
	return guard(l, log, sameUser), nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something else than a socket is in its place")
	}
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return errors.New("another agent listens there")
	}
	return os.Remove(path)
}

// sameUser checks the credentials that the kernel holds of a unix peer.
func sameUser(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("peer has no credentials")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("peer has uid %d", cred.Uid)
	}
	return nil
}

// guardedListener hands out the connections of peers that may speak to us, and
// never more than maxConns at one time.
type guardedListener struct {
	net.Listener
	log   *slog.Logger
	check func(net.Conn) error
	slots chan struct{}
}

func guard(l net.Listener, log *slog.Logger, check func(net.Conn) error) net.Listener {
	return &guardedListener{Listener: l, log: log, check: check, slots: make(chan struct{}, maxConns)}
}

// Accept waits for a peer that passes the check. The others learn nothing.
func (g *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			return nil, passing{err}
		}
		if err := g.check(c); err != nil {
			g.log.Warn("refused a connection", "error", err)
			_ = c.Close()
			continue
		}
		select {
		case g.slots <- struct{}{}:
			return &guardedConn{Conn: c, slots: g.slots}, nil
		default:
			g.log.Warn("refused a connection", "error", "too many")
			_ = c.Close()
		}
	}
}

// passing marks a failure to accept that gRPC shall survive: out of files or
// memory, or a peer that left at once.
type passing struct{ error }

func (passing) Temporary() bool { return true }
func (passing) Timeout() bool   { return false }
func (p passing) Unwrap() error { return p.error }

// guardedConn gives its slot back once.
type guardedConn struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

func (c *guardedConn) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}
