// Package vsock dials vsock ports of guests from the host.
//
// There are three ways to one guest port, and each has the same shape: the
// kernel's AF_VSOCK (Kernel), a unix socket with the CONNECT convention that
// cloud-hypervisor and others offer (Hybrid), and our own device backend
// (package vhostuser). A caller holds a Dialer and three errors, and need not
// know which way it is.
//
// The package knows no machines, no drivers and no protocol above the byte
// stream. It never retries: a guest that is not there yet is the caller's to
// wait for.
package vsock

import (
	"context"
	"errors"
	"net"
)

// What a failed Dial means. Every Dialer wraps one of these where it can tell.
var (
	// ErrRefused means that the guest is up and nobody listens on the port.
	ErrRefused = errors.New("nobody listens on the guest's port")
	// ErrNotReady means that the guest has no vsock driver running yet, or
	// that the device is not plugged at the moment.
	ErrNotReady = errors.New("guest has no vsock driver yet")
	// ErrDown means that the device or the machine is gone for good. Streams
	// that were open at that time end with it, too; those errors are also
	// syscall.ECONNRESET.
	ErrDown = errors.New("vsock device is gone")
)

// Dialer connects to a port of one guest. Safe for concurrent use.
type Dialer interface {
	Dial(ctx context.Context, port uint32) (net.Conn, error)
}
