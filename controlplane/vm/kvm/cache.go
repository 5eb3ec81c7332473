package kvm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
)

// key is everything a verdict depends on.
type key struct {
	BootID  string `json:"boot_id"`
	Image   string `json:"image"` // digest of our own image: a new one proves anew
	Device  string `json:"device"`
	QEMU    string `json:"qemu"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mod_time"` // ns
	Probe   bool   `json:"probe"`
	User    string `json:"user"`
}

func (o Options) key() key {
	k := key{BootID: o.BootID, Device: o.Device, QEMU: o.QEMU, Probe: len(o.ProbeCommand) > 0,
		User: fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())}
	if k.BootID == "" {
		if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			k.BootID = strings.TrimSpace(string(b))
		}
	}
	if c := o.Credential; c != nil {
		k.User = fmt.Sprintf("%d:%d:%d", c.Uid, c.Gid, c.Groups)
	}
	sum := sha256.Sum256(buildROM())
	k.Image = hex.EncodeToString(sum[:8])
	if fi, err := os.Stat(o.QEMU); err == nil {
		k.Size, k.ModTime = fi.Size(), fi.ModTime().UnixNano()
	}
	return k
}

// entry is the cache file.
type entry struct {
	Key     key     `json:"key"`
	Verdict Verdict `json:"verdict"`
}

const cacheName = "kvm-verdict.json"

// readCache finds the verdict of this very key. An unreadable cache is none.
func readCache(dir string, k key) (Verdict, bool) {
	if dir == "" || k.BootID == "" {
		return Verdict{}, false
	}
	data, err := os.ReadFile(filepath.Join(dir, cacheName))
	if err != nil {
		return Verdict{}, false
	}
	var e entry
	if json.Unmarshal(data, &e) != nil || e.Key != k {
		return Verdict{}, false
	}
	return e.Verdict, true
}

// writeCache replaces the one verdict that is kept.
func writeCache(dir string, k key, v Verdict) error {
	if dir == "" || k.BootID == "" {
		return nil
	}
	data, err := json.MarshalIndent(entry{k, v}, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot keep KVM verdict: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot keep KVM verdict: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, cacheName), data, 0o600); err != nil {
		return fmt.Errorf("cannot keep KVM verdict: %w", err)
	}
	return nil
}
