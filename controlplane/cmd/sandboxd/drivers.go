package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/kvm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt"
)

// Provider names, as runtime/v1 publishes them.
const (
	providerLibvirt = "libvirt"
	providerHost    = "host"
)

// openDrivers opens every provider this daemon offers. Close them all, also
// after an error.
func openDrivers(ctx context.Context, c config, log *slog.Logger) (map[string]vm.Driver, error) {
	drivers := map[string]vm.Driver{}
	virt, err := libvirt.Open(ctx, libvirt.Config{
		StateDir:    c.StateDir,
		URI:         c.LibvirtURI,
		User:        c.User,
		Vsock:       vsockWay(c.Vsock),
		Accelerator: accelerator(c, log),
		Log:         log.With("provider", providerLibvirt),
	})
	if err != nil {
		return drivers, err
	}
	drivers[providerLibvirt] = virt
	if !c.HostKind {
		return drivers, nil
	}
	agent, err := agentPath(c)
	if err != nil {
		return drivers, err
	}
	h, err := host.New(host.Config{
		StateDir: filepath.Join(c.StateDir, "host"), AgentBinary: agent, Log: log.With("provider", providerHost),
	})
	if err != nil {
		return drivers, err
	}
	drivers[providerHost] = h
	return drivers, nil
}

// hypervisorCredential is who QEMU runs as: nil for this process's own user,
// also when the user is missing, which the driver reports by itself.
func hypervisorCredential(name string) *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return c
	}
	for _, g := range groups {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(id))
		}
	}
	return c
}

func vsockWay(s string) libvirt.Way {
	if s == "auto" {
		return libvirt.WayAuto
	}
	return libvirt.Way(s)
}

func agentPath(c config) (string, error) {
	if c.AgentPath != "" {
		return c.AgentPath, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find sandbox-agent, set --agent: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "sandbox-agent"), nil
}

// accelerator says whether KVM may be used: only after the proof, since a host
// can have /dev/kvm and still hang every guest.
func accelerator(c config, log *slog.Logger) func(context.Context) (usable bool, reason, remedy string) {
	return func(ctx context.Context) (bool, string, string) {
		switch c.Accel {
		case "tcg":
			return false, "emulation was asked for with --accelerator tcg", "start sandboxd without --accelerator tcg"
		case "kvm":
			return true, "", ""
		}
		opts := kvm.Options{CacheDir: c.StateDir}
		if self, err := os.Executable(); err == nil {
			opts.ProbeCommand = []string{self, "kvm-probe"}
		}
		if qemu, err := exec.LookPath("qemu-system-x86_64"); err == nil {
			opts.QEMU = qemu
			opts.Credential = hypervisorCredential(c.User)
		}
		v, err := kvm.Prove(ctx, opts)
		if err != nil {
			log.WarnContext(ctx, "cannot prove KVM", "error", err)
			return false, "KVM could not be proven: " + err.Error(), ""
		}
		log.InfoContext(ctx, "KVM proof", "usable", v.Usable, "reason", v.Reason)
		return v.Usable, v.Reason, v.Remedy
	}
}
