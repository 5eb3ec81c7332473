package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// driverName is the runtime/v1 provider name and the handle's driver.
const driverName = "libvirt"

// handleVersion is the version of the handles this code writes.
const handleVersion = 1

// handleData is what a handle holds. Everything else is in the record.
type handleData struct {
	ID instance.ID `json:"id"`
}

func newHandle(id instance.ID) (vm.Handle, error) {
	data, err := json.Marshal(handleData{ID: id})
	if err != nil {
		return vm.Handle{}, fmt.Errorf("cannot write handle: %w", err)
	}
	return vm.Handle{Driver: driverName, Version: handleVersion, Data: data}, nil
}

func readHandle(h vm.Handle) (instance.ID, error) {
	if h.Driver != driverName || h.Version != handleVersion {
		return "", fmt.Errorf("cannot use handle: it is %q version %d, want %q version %d",
			h.Driver, h.Version, driverName, handleVersion)
	}
	var data handleData
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return "", fmt.Errorf("cannot read handle: %w", err)
	}
	return instance.ParseID(string(data.ID))
}

// Limits of a spec that libvirt or the kernel would refuse in worse words.
const (
	minMemory  = 64 << 20
	maxMemory  = 4 << 40
	maxCPUs    = 255
	maxCmdline = 1024
)

func checkSpec(s vm.Spec) error {
	_, err := instance.ParseID(string(s.ID))
	switch {
	case err != nil:
	case s.CPUs < 1 || s.CPUs > maxCPUs:
		err = fmt.Errorf("number of CPUs is %d, want 1 to %d", s.CPUs, maxCPUs)
	case s.Memory < minMemory || s.Memory > maxMemory || s.Memory%(1<<20) != 0:
		err = fmt.Errorf("memory is %d bytes, want a multiple of 1 MiB, at least %d", s.Memory, minMemory)
	case s.DiskSize < 0 || s.DiskSize%512 != 0:
		err = fmt.Errorf("disk size is %d bytes, want a multiple of 512", s.DiskSize)
	default:
		err = checkText(s)
	}
	if err != nil {
		return &instance.Fault{Blame: instance.Caller, Code: "spec.invalid", Err: err}
	}
	return nil
}

// checkText refuses control characters, which XML and the kernel cannot take.
func checkText(s vm.Spec) error {
	length := len(defaultArgs)
	for _, arg := range s.KernelArgs {
		length += 1 + len(arg)
	}
	if length > maxCmdline {
		return fmt.Errorf("kernel arguments have %d bytes, at most %d are allowed", length, maxCmdline)
	}
	for _, text := range append([]string{s.Name, s.Kernel, s.Initramfs, s.RootDisk}, s.KernelArgs...) {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }) {
			return fmt.Errorf("%q holds characters that cannot be passed on", text)
		}
	}
	return nil
}

// Create prepares a machine's files.
func (d *Driver) Create(ctx context.Context, spec vm.Spec) (vm.Instance, vm.Handle, error) {
	m, h, err := d.create(ctx, spec)
	if err != nil {
		return nil, vm.Handle{}, fmt.Errorf("cannot create machine %q: %w", spec.ID, err)
	}
	return m, h, nil
}

func (d *Driver) create(ctx context.Context, spec vm.Spec) (*machine, vm.Handle, error) {
	if d.host.reason != "" {
		return nil, vm.Handle{}, &instance.Fault{
			Blame: instance.Host, Code: "driver.unavailable", Hint: "run: " + d.host.remedy,
			Err: fmt.Errorf("%w: %s", vm.ErrUnavailable, d.host.reason),
		}
	}
	if err := checkSpec(spec); err != nil {
		return nil, vm.Handle{}, err
	}
	handle, err := newHandle(spec.ID)
	if err != nil {
		return nil, vm.Handle{}, err
	}
	m, unlock, err := d.acquire(ctx, spec.ID)
	if err != nil {
		return nil, vm.Handle{}, err
	}
	defer unlock()
	if m.made() {
		return m, handle, nil
	}
	old, err := loadRecord(m.files)
	switch {
	case err == nil: // made by an earlier process that did not live to tell
		err = m.adopt(ctx, old)
	case errors.Is(err, errNoRecord):
		err = m.make(ctx, spec)
	}
	if err != nil {
		d.forget(m)
		return nil, vm.Handle{}, err
	}
	return m, handle, nil
}

// make writes the machine's files; what an earlier attempt left is removed.
func (m *machine) make(ctx context.Context, spec vm.Spec) error {
	user := m.d.user
	if err := checkPass(user, m.d.machinesDir()); err != nil {
		return err
	}
	if err := checkShared(user, spec.Kernel); err != nil {
		return err
	}
	if err := checkShared(user, spec.RootDisk); err != nil {
		return err
	}
	base, err := filepath.EvalSymlinks(spec.RootDisk)
	if err != nil {
		return fmt.Errorf("cannot find root disk: %w", err)
	}
	spec.RootDisk = base
	rec := newRecord(spec)
	err = perform(ctx, []step{
		{
			name: "directory",
			do: func(context.Context) error {
				if err := os.RemoveAll(m.files.dir()); err != nil {
					return fmt.Errorf("cannot remove unfinished machine: %w", err)
				}
				return os.Mkdir(m.files.dir(), 0o711)
			},
			undo: func(context.Context) error { return os.RemoveAll(m.files.dir()) },
		},
		{name: "console", do: func(context.Context) error { return touch(m.files.console()) }},
		{name: "initramfs", do: func(context.Context) error {
			return writeInitramfs(m.files.initramfs(), spec.Initramfs, spec.BootConfig, user.UID, user.GID)
		}},
		{name: "overlay", do: func(ctx context.Context) error {
			return createOverlay(ctx, m.files.overlay(), spec.RootDisk, spec.DiskSize, user.UID, user.GID)
		}},
		{name: "record", do: func(context.Context) error { return rec.save(m.files) }},
	}, m.d.cfg.fail)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.record = rec
	m.mu.Unlock()
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make console file: %w", err)
	}
	return f.Close()
}
