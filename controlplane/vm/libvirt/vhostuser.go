package libvirt

import (
	"log/slog"
	"os"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock/vhostuser"
)

// listenVhostUser offers a device backend on a socket for one machine's QEMU,
// which runs as user.
func listenVhostUser(socket string, user embedded.Identity, log *slog.Logger) (link, error) {
	owner := -1
	if os.Geteuid() == 0 {
		owner = user.UID
	}
	return vhostuser.Listen(vhostuser.Config{Socket: socket, Owner: owner, GuestCID: guestCID, Log: log})
}
