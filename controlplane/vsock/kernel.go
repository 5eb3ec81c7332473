package vsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/mdlayher/socket"
	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// KernelDialer reaches a guest through the host kernel's vhost-vsock.
type KernelDialer struct {
	cid uint32
}

// Kernel returns a dialer for the guest with the given context identifier.
func Kernel(cid uint32) *KernelDialer {
	return &KernelDialer{cid: cid}
}

// Dial connects to a port of the guest. The kernel gives up after about two
// seconds when the guest does not answer, which is ErrNotReady.
func (d *KernelDialer) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	c, err := socket.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, "vsock", nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open a vsock socket: %w", err)
	}
	if _, err := c.Connect(ctx, &unix.SockaddrVM{CID: d.cid, Port: port}); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("cannot dial vsock %d:%d: %w", d.cid, port, kernelError(err))
	}
	k := &kernelConn{Conn: c, remote: &vsock.Addr{ContextID: d.cid, Port: port}}
	k.local = &vsock.Addr{ContextID: unix.VMADDR_CID_HOST}
	if sa, err := c.Getsockname(); err == nil {
		if vm, ok := sa.(*unix.SockaddrVM); ok {
			k.local = &vsock.Addr{ContextID: vm.CID, Port: vm.Port}
		}
	}
	return k, nil
}

// kernelError puts our word beside the kernel's; both can be asked for.
func kernelError(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%w: %w", ErrDown, err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// kernelConn gives a connected AF_VSOCK socket the addresses net.Conn wants.
type kernelConn struct {
	*socket.Conn
	local, remote net.Addr
}

func (c *kernelConn) LocalAddr() net.Addr  { return c.local }
func (c *kernelConn) RemoteAddr() net.Addr { return c.remote }
