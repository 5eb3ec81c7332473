package libvirt

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/atomicfile"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// files is a machine's directory: the only place that spells its paths.
type files string

func (f files) dir() string       { return string(f) }
func (f files) overlay() string   { return filepath.Join(string(f), "overlay.qcow2") }
func (f files) initramfs() string { return filepath.Join(string(f), "initramfs") }
func (f files) console() string   { return filepath.Join(string(f), "console.log") }
func (f files) socket() string    { return filepath.Join(string(f), "vsock.sock") }
func (f files) record() string    { return filepath.Join(string(f), "machine.json") }

func (d *Driver) filesOf(id instance.ID) files {
	return files(filepath.Join(d.machinesDir(), string(id)))
}

// recordVersion is the version this code writes; others are refused.
const recordVersion = 1

// record is what a later process must know to take a machine over. It is
// written last when a machine is made: a directory without it is unfinished.
type record struct {
	Version int         `json:"version"`
	ID      instance.ID `json:"id"`
	Name    string      `json:"name"`
	// What the machine was made from. The boot configuration is in the
	// initramfs and nowhere else.
	CPUs       int      `json:"cpus"`
	Memory     int64    `json:"memory"`
	Kernel     string   `json:"kernel"`
	KernelArgs []string `json:"kernel_args,omitempty"`
	RootDisk   string   `json:"root_disk"`
	DiskSize   int64    `json:"disk_size,omitempty"`
	// Run is the current or last run; nil before the first.
	Run *run `json:"run,omitempty"`
}

// run is one boot of a machine.
type run struct {
	Started time.Time `json:"started"`
	Way     Way       `json:"way"`
	KVM     bool      `json:"kvm"`
	CID     uint32    `json:"cid,omitempty"`
	// Resumed is set when the guest began to execute. A domain without it was
	// caught half-way by our death.
	Resumed bool     `json:"resumed"`
	Ended   *vm.Exit `json:"ended,omitempty"`
}

func newRecord(s vm.Spec) record {
	return record{
		Version: recordVersion, ID: s.ID, Name: s.Name, CPUs: s.CPUs, Memory: s.Memory,
		Kernel: s.Kernel, KernelArgs: s.KernelArgs, RootDisk: s.RootDisk, DiskSize: s.DiskSize,
	}
}

func (r record) spec() vm.Spec {
	return vm.Spec{
		ID: r.ID, Name: r.Name, CPUs: r.CPUs, Memory: r.Memory,
		Kernel: r.Kernel, KernelArgs: r.KernelArgs, RootDisk: r.RootDisk, DiskSize: r.DiskSize,
	}
}

// errNoRecord means that the machine's directory is missing or unfinished.
var errNoRecord = errors.New("no record of the machine")

// errBadRecord means that what is in the record is not what was written.
var errBadRecord = errors.New("the record of the machine is damaged")

func loadRecord(f files) (record, error) {
	raw, err := os.ReadFile(f.record())
	if errors.Is(err, os.ErrNotExist) {
		return record{}, errNoRecord
	}
	if err != nil {
		return record{}, fmt.Errorf("cannot read record: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("cannot read record %q: %w: %w", f.record(), errBadRecord, err)
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("cannot use record %q: version is %d, want %d", f.record(), r.Version, recordVersion)
	}
	if string(r.ID) != filepath.Base(f.dir()) {
		return record{}, fmt.Errorf("cannot use record %q: %w: it belongs to %q", f.record(), errBadRecord, r.ID)
	}
	return r, nil
}

// save replaces the record in one step.
func (r record) save(f files) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write record: %w", err)
	}
	if err := atomicfile.Write(f.record(), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("cannot write record: %w", err)
	}
	return nil
}
