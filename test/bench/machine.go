package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/agentlink"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/kvm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// The machine that is measured, as the loadout "minimal" describes it.
const (
	imageName     = "minimal"
	machineCPUs   = 1
	machineMemory = 256 << 20
)

// redial is the bound that the supervisor has for dialing a booting machine.
const redial = 50 * time.Millisecond

// sandbox makes machines with the real driver.
type sandbox struct {
	driver *libvirt.Driver
	image  store.Image
	caps   vm.Capabilities
	log    *slog.Logger
	store  string // directory of images that the hypervisor can read
}

// openSandbox opens the driver on a directory of its own below dir.
func openSandbox(ctx context.Context, o options, dir string, log *slog.Logger) (*sandbox, error) {
	if _, err := os.Stat(o.images); err != nil {
		return nil, fmt.Errorf("%w (%w)", rig.ErrNotBuilt, err)
	}
	images, err := rig.Reachable(o.images, dir)
	if err != nil {
		return nil, err
	}
	s := &sandbox{log: log, store: images}
	if s.image, err = ensure(ctx, images); err != nil {
		return nil, err
	}
	s.driver, err = libvirt.Open(ctx, libvirt.Config{
		StateDir: filepath.Join(dir, "state"), Log: log,
		Accelerator: func(ctx context.Context) (kvm bool, reason, remedy string) {
			kvm, reason = accelerator(ctx, o.accel)
			return kvm, reason, ""
		},
	})
	if err != nil {
		return nil, err
	}
	if s.caps, err = s.driver.Capabilities(ctx); err == nil && !s.caps.Available {
		err = fmt.Errorf("no machine can be made here: %s (run: %s)", s.caps.Reason, s.caps.Remedy)
	}
	if err != nil {
		return nil, errors.Join(err, s.driver.Close())
	}
	return s, nil
}

func ensure(ctx context.Context, dir string) (store.Image, error) {
	s, err := store.Open(dir)
	if err != nil {
		return store.Image{}, err
	}
	return s.Ensure(ctx, images.Ref{Name: imageName})
}

// probeCommand makes this program prove KVM instead, as a child of itself.
const probeCommand = "kvm-probe"

func accelerator(ctx context.Context, want string) (usable bool, reason string) {
	switch want {
	case "tcg":
		return false, "emulation was asked for with -accel tcg"
	case "kvm":
		return true, ""
	}
	var o kvm.Options
	if self, err := os.Executable(); err == nil {
		o.ProbeCommand = []string{self, probeCommand}
	}
	if qemu, err := exec.LookPath("qemu-system-x86_64"); err == nil {
		o.QEMU = qemu
	}
	v, err := kvm.Prove(ctx, o)
	if err != nil {
		return false, "KVM could not be proven: " + err.Error()
	}
	return v.Usable, v.Reason
}

// machine is one machine whose agent has answered.
type machine struct {
	id   instance.ID
	inst vm.Instance
	link *agentlink.Link
}

// bootTimes are the host's clock during one boot.
type bootTimes struct {
	begin, created, started, answered time.Time
}

// boot makes a machine and waits for the first answer of its agent. Close it.
func (s *sandbox) boot(ctx context.Context) (*machine, bootTimes, error) {
	id, err := instance.NewID()
	if err != nil {
		return nil, bootTimes{}, err
	}
	config, err := bootConfig(id)
	if err != nil {
		return nil, bootTimes{}, err
	}
	m := &machine{id: id}
	t := bootTimes{begin: time.Now()}
	m.inst, _, err = s.driver.Create(ctx, vm.Spec{
		ID: id, Name: "bench", CPUs: machineCPUs, Memory: machineMemory,
		Kernel: s.image.Kernel, Initramfs: s.image.Initramfs, RootDisk: s.image.RootDisk,
		BootConfig: config,
	})
	t.created = time.Now()
	if err != nil {
		return nil, t, err
	}
	if err = m.inst.Start(ctx); err == nil {
		t.started = time.Now()
		m.link, err = agentlink.Connect(ctx,
			func(ctx context.Context) (net.Conn, error) { return m.inst.Dial(ctx, agentv1.Port) },
			agentlink.Options{InstanceID: id, HostVersion: "bench", Log: s.log, MaxBackoff: redial})
		t.answered = time.Now()
	}
	if err != nil {
		err = fmt.Errorf("%w\nconsole: %q", err, m.inst.Diagnose(context.WithoutCancel(ctx)).Console)
		return nil, t, errors.Join(err, m.close(ctx))
	}
	return m, t, nil
}

// bootConfig is what a plan makes for the loadout "minimal".
func bootConfig(id instance.ID) ([]byte, error) {
	const uid = 1000
	return json.Marshal(agentv1.BootConfig{
		Version: agentv1.BootConfigVersion, InstanceID: id.String(), Hostname: "bench", RootSerial: agentv1.RootDiskSerial,
		Users:       []agentv1.BootUser{{Name: "agent", UID: uid, GID: uid, Home: "/home/agent"}},
		Directories: []agentv1.BootDirectory{{Path: "/workspace", UID: uid, GID: uid, Mode: 0o755}},
	})
}

// closeLimit bounds the removal of one machine.
const closeLimit = time.Minute

// close removes the machine, also when ctx has ended.
func (m *machine) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	var err error
	if m.link != nil {
		err = m.link.Close()
	}
	return errors.Join(err, m.inst.Close(ctx))
}

// hypervisor returns the command line of the machine's QEMU, and the directory
// that holds the machine's files.
func (m *machine) hypervisor(ctx context.Context) (args []string, dir string, err error) {
	facts := m.inst.Diagnose(ctx).Facts
	pid, err := strconv.Atoi(facts["pid"])
	if err != nil {
		return nil, "", errors.New("cannot find the hypervisor of a running machine")
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, "", fmt.Errorf("cannot read the hypervisor's command line: %w", err)
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00"), facts["directory"], nil
}
