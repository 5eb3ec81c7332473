package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// Way is how the host reaches the guest's vsock ports.
type Way string

// The ways. WayAuto takes the kernel's where the host has it.
const (
	WayAuto      Way = "auto"
	WayKernel    Way = "vhost-vsock"
	WayVhostUser Way = "vhost-user-vsock"
)

// guestCID is every machine's context id on the vhost-user way: the device is
// the machine's own, nobody else sees its addresses.
const guestCID = 3

const (
	plugChardev = "sandbox-vsock-backend"
	plugDevice  = "sandbox-vsock"
	// unplugAgain is how long a guest may take to give the device up before it
	// is asked again. One that still boots loses the request.
	unplugAgain = 3 * time.Second
)

// link is a machine's way to its guest's ports.
type link interface {
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// DropAll ends all streams.
	DropAll()
	Close() error
}

// kernelLink is the way through the host's kernel, which owns the streams.
type kernelLink struct{ vsock.Dialer }

func (kernelLink) DropAll()     {}
func (kernelLink) Close() error { return nil }

// chooseWay picks the way to the guests and says why.
func chooseWay(want Way, kernel vsock.Support) (Way, string, lack) {
	switch want {
	case WayVhostUser:
		return WayVhostUser, "as configured", lack{}
	case WayKernel:
		if kernel.Usable {
			return WayKernel, "as configured", lack{}
		}
		return WayKernel, kernel.Reason, lack{"the vsock way vhost-vsock is configured, but " + kernel.Reason, kernel.Remedy}
	case WayAuto, "":
		if kernel.Usable {
			return WayKernel, "the host has it", lack{}
		}
		return WayVhostUser, kernel.Reason, lack{}
	}
	return "", "", lack{
		fmt.Sprintf("there is no vsock way %q", want),
		fmt.Sprintf("use %s, %s or %s", WayAuto, WayKernel, WayVhostUser),
	}
}

// plug gives the machine its vhost-user device, whose backend already listens
// on the machine's socket.
func (m *machine) plug(ctx context.Context) error {
	mon := m.monitor(ctx)
	server := false
	_, err := raw.NewMonitor(mon).ChardevAdd(plugChardev, raw.ChardevBackendSocket{
		Addr:   raw.SocketAddressLegacyUnix{Path: m.files.socket()},
		Server: &server,
	})
	if err != nil {
		return fmt.Errorf("cannot connect QEMU to the vsock device: %w", err)
	}
	err = mon.execute("device_add", map[string]any{
		"driver": "vhost-user-vsock-pci", "id": plugDevice, "chardev": plugChardev,
		"bus": fmt.Sprintf("pci.%d", portVsock),
	})
	if err != nil {
		return errors.Join(
			fmt.Errorf("cannot plug the vsock device: %w", err),
			raw.NewMonitor(mon).ChardevRemove(plugChardev))
	}
	return nil
}

// unplug takes the device from the guest, which must agree, and waits until
// it is gone. A device that is not there is no error.
func (m *machine) unplug(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mon := m.monitor(ctx)
	events, err := mon.Events(ctx)
	if err != nil {
		return err
	}
	for gone := false; !gone; {
		err := raw.NewMonitor(mon).DeviceDel(plugDevice)
		if isQMP(err, deviceNotFound) {
			break
		}
		// A request that is under way already is as good as ours.
		if err != nil && !strings.Contains(err.Error(), "process of unplug") {
			return fmt.Errorf("cannot unplug the vsock device: %w", err)
		}
		again := time.NewTimer(unplugAgain)
		for waiting := true; waiting && !gone; {
			select {
			case e := <-events:
				// An event about the device's inner part comes without a name.
				gone = e.Event == "DEVICE_DELETED" && e.Data["device"] == plugDevice
			case <-again.C:
				waiting = false
			case <-ctx.Done():
				return fmt.Errorf("cannot unplug the vsock device: the guest does not give it up: %w", ctx.Err())
			}
		}
		again.Stop()
	}
	err = raw.NewMonitor(mon).ChardevRemove(plugChardev)
	if err != nil && !strings.Contains(err.Error(), "not found") {
		return fmt.Errorf("cannot remove the vsock device's connection: %w", err)
	}
	return nil
}
