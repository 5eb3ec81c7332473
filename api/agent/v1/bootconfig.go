package agentv1

import (
	"encoding/json"
	"fmt"
)

// BootConfigPath is where the initramfs holds the boot configuration. It is
// an appended cpio segment of its own, mode 0600, gone after switch_root.
const BootConfigPath = "/config.json"

// BootConfigVersion is the version this code writes.
const BootConfigVersion = 1

// RootDiskSerial is the serial number of the virtio-blk disk that holds the
// root file system; the agent finds the disk by it.
const RootDiskSerial = "sandbox-root"

// BootConfig is what the agent must know before the host can speak to it.
// It holds no secrets: secrets come over the link.
type BootConfig struct {
	Version    int    `json:"version"`
	InstanceID string `json:"instance_id"`
	Hostname   string `json:"hostname"`
	// RootSerial names the root disk, normally RootDiskSerial.
	RootSerial string `json:"root_serial"`
	// Users to make sure of in /etc/passwd and /etc/group before runs start.
	Users []BootUser `json:"users,omitempty"`
	// Directories to make sure of, such as the workspace.
	Directories []BootDirectory `json:"directories,omitempty"`
}

// BootUser is one account for workloads.
type BootUser struct {
	Name string `json:"name"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Home string `json:"home"`
}

// BootDirectory is one directory and its owner.
type BootDirectory struct {
	Path string `json:"path"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Mode uint32 `json:"mode"`
}

// ParseBootConfig reads a boot configuration and refuses versions it does not
// know.
func ParseBootConfig(data []byte) (BootConfig, error) {
	var c BootConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return BootConfig{}, fmt.Errorf("cannot parse boot configuration: %w", err)
	}
	if c.Version != BootConfigVersion {
		return BootConfig{}, fmt.Errorf("cannot use boot configuration: version is %d, this agent knows %d", c.Version, BootConfigVersion)
	}
	return c, nil
}
