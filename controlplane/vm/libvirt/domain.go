package libvirt

import (
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// metadataSpace is the XML name space of our element in a domain.
const metadataSpace = "https://agentic-sandbox.aiwg.io/xmlns/machine/1"

// Root ports, by controller index; libvirt names the one of index N "pci.N".
// Every device of ours has a fixed one, so that the rest stay free for
// hot-plugged devices and a machine made anew is the same machine.
const (
	portDisk  = 1
	portRNG   = 2
	portVsock = 3 // the kernel's vsock device, or ours when plugged
	ports     = 8 // five stay free
)

// defaultArgs are the kernel arguments of every machine. panic=-1 makes a
// panic end the machine; cryptomgr.notests saves a fifth of the boot.
const defaultArgs = "console=ttyS0 quiet panic=-1 cryptomgr.notests"

// design is all that a domain's XML depends on.
type design struct {
	spec     vm.Spec
	name     string // libvirt's name
	owner    string
	emulator string
	kvm      bool
	way      Way
	files    files
	// label runs the hypervisor as "+uid:+gid" and keeps libvirt from
	// relabelling files. Empty where the driver's settings say so already.
	label string
}

// domainName returns libvirt's name of a machine. The last digits of an id are
// random in version 4 and 7, the first are not.
func domainName(id instance.ID) string {
	return "sbx-" + string(id[len(id)-12:])
}

// domainXML describes the machine to libvirt.
func domainXML(d design) (string, error) {
	dom := libvirtxml.Domain{
		Type: "qemu", Name: d.name, UUID: string(d.spec.ID), Title: d.spec.Name,
		GenID: &libvirtxml.DomainGenID{},
		Metadata: &libvirtxml.DomainMetadata{XML: fmt.Sprintf(
			`<sandbox:machine xmlns:sandbox=%q id=%q owner=%q/>`, metadataSpace, d.spec.ID, d.owner)},
		Memory: &libvirtxml.DomainMemory{Value: uint(d.spec.Memory >> 10), Unit: "KiB"},
		VCPU:   &libvirtxml.DomainVCPU{Placement: "static", Value: uint(d.spec.CPUs)},
		OS: &libvirtxml.DomainOS{
			Type:    &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
			Kernel:  d.spec.Kernel,
			Initrd:  d.files.initramfs(),
			Cmdline: strings.Join(append([]string{defaultArgs}, d.spec.KernelArgs...), " "),
		},
		Features: &libvirtxml.DomainFeatureList{
			ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{},
			VMPort: &libvirtxml.DomainFeatureState{State: "off"},
		},
		CPU:        &libvirtxml.DomainCPU{Mode: "maximum", Check: "none"},
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy", OnReboot: "destroy", OnCrash: "destroy",
		Devices: devices(d),
	}
	if d.kvm {
		dom.Type = "kvm"
		dom.CPU.Mode = "host-passthrough"
	}
	if d.way == WayVhostUser {
		// The device backend maps the guest's memory; nobody else needs to.
		dom.MemoryBacking = &libvirtxml.DomainMemoryBacking{
			MemorySource: &libvirtxml.DomainMemorySource{Type: "memfd"},
			MemoryAccess: &libvirtxml.DomainMemoryAccess{Mode: "shared"},
		}
	}
	if d.label != "" {
		dom.SecLabel = []libvirtxml.DomainSecLabel{{Type: "static", Model: "dac", Relabel: "no", Label: d.label}}
	}
	xml, err := dom.Marshal()
	if err != nil {
		return "", fmt.Errorf("cannot describe machine %q: %w", d.spec.ID, err)
	}
	return xml, nil
}

func devices(d design) *libvirtxml.DomainDeviceList {
	list := &libvirtxml.DomainDeviceList{
		Emulator:    d.emulator,
		Controllers: controllers(),
		Disks:       []libvirtxml.DomainDisk{rootDisk(d)},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{
				File: &libvirtxml.DomainChardevSourceFile{Path: d.files.console(), Append: "on"},
			},
			Target: &libvirtxml.DomainSerialTarget{Type: "isa-serial", Port: number(0)},
		}},
		Audios:     []libvirtxml.DomainAudio{{ID: 1, None: &libvirtxml.DomainAudioNone{}}},
		MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
		RNGs: []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			Address: onPort(portRNG),
		}},
		Panics: []libvirtxml.DomainPanic{{Model: "isa"}},
	}
	if d.way == WayKernel {
		// libvirt takes the first context id that the kernel accepts and
		// hands the open device to QEMU: unique on this host without a race.
		list.VSock = &libvirtxml.DomainVSock{
			Model: "virtio", CID: &libvirtxml.DomainVSockCID{Auto: "yes"}, Address: onPort(portVsock),
		}
	}
	return list
}

func controllers() []libvirtxml.DomainController {
	list := []libvirtxml.DomainController{
		{Type: "usb", Index: number(0), Model: "none"},
		{Type: "pci", Index: number(0), Model: "pcie-root"},
	}
	for n := uint(1); n <= ports; n++ {
		list = append(list, libvirtxml.DomainController{Type: "pci", Index: number(n), Model: "pcie-root-port"})
	}
	return list
}

func rootDisk(d design) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2", Discard: "unmap"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.files.overlay()}},
		// Told here, so that nothing follows what the overlay's header says.
		BackingStore: &libvirtxml.DomainDiskBackingStore{
			Format:       &libvirtxml.DomainDiskFormat{Type: "qcow2"},
			Source:       &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.spec.RootDisk}},
			BackingStore: &libvirtxml.DomainDiskBackingStore{},
		},
		Target:  &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		Serial:  agentv1.RootDiskSerial,
		Address: onPort(portDisk),
	}
}

func onPort(index uint) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: number(0), Bus: number(index), Slot: number(0), Function: number(0),
	}}
}

func number(n uint) *uint { return &n }

// mark is our element in a domain's metadata.
type mark struct {
	ID    string `xml:"id,attr"`
	Owner string `xml:"owner,attr"`
}

// contextID reads the vsock address libvirt gave to a machine, 0 for none.
func contextID(xml string) (uint32, error) {
	var dom libvirtxml.Domain
	if err := dom.Unmarshal(xml); err != nil {
		return 0, fmt.Errorf("cannot read domain: %w", err)
	}
	if dom.Devices == nil || dom.Devices.VSock == nil || dom.Devices.VSock.CID == nil {
		return 0, nil
	}
	cid, err := strconv.ParseUint(dom.Devices.VSock.CID.Address, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("cannot read vsock address: %w", err)
	}
	return uint32(cid), nil
}
