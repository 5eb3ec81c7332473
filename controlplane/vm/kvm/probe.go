package kvm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of the KVM API, from linux/kvm.h.
const (
	kvmGetAPIVersion       = 0xAE00
	kvmCreateVM            = 0xAE01
	kvmGetVCPUMmapSize     = 0xAE04
	kvmGetSupportedCPUID   = 0xC008AE05
	kvmCreateVCPU          = 0xAE41
	kvmSetUserMemoryRegion = 0x4020AE46
	kvmSetTSSAddr          = 0xAE47
	kvmSetIdentityMapAddr  = 0x4008AE48
	kvmCreateIRQChip       = 0xAE60
	kvmRun                 = 0xAE80
	kvmSetCPUID2           = 0x4008AE90

	kvmAPIVersion = 12

	exitIO            = 2
	exitHLT           = 5
	exitShutdown      = 8
	exitFailEntry     = 9
	exitIntr          = 10
	exitInternalError = 17
)

// Offsets in struct kvm_run.
const (
	runExitReason = 8
	runUnion      = 32 // of the exit's own data
)

// slowLoop is how much CPU time the image's loop may take. Real hardware
// needs some 30 µs; a "KVM" that emulates every instruction 200 ms or more.
const slowLoop = 50 * time.Millisecond

// report is the probe's last word, one line of JSON after the letters.
type report struct {
	Pass    bool   `json:"pass"`
	Setup   bool   `json:"setup"` // the image was never run
	Trouble string `json:"trouble,omitempty"`
}

// probeDevice is the environment variable that tells ProbeMain which device.
const probeDevice = "SANDBOX_KVM_DEVICE"

// ProbeMain runs the image by raw ioctls, writes the letters of the stages and
// a report to the standard output, and returns the exit status. It may hang:
// only a child process may call it.
func ProbeMain() int {
	device := os.Getenv(probeDevice)
	if device == "" {
		device = "/dev/kvm"
	}
	return probe(device, os.Stdout)
}

func probe(device string, stdout io.Writer) int {
	runtime.LockOSThread() // a VCPU belongs to a thread
	defer runtime.UnlockOSThread()
	var r report
	m, err := newMachine(device)
	if err != nil {
		r = report{Setup: true, Trouble: err.Error()}
	} else if err := m.run(stdout); err != nil {
		r.Trouble = err.Error()
	} else {
		r.Pass = true
	}
	line, err := json.Marshal(r)
	if err != nil {
		return 1
	}
	if _, err := fmt.Fprintf(stdout, "\n%s\n", line); err != nil || !r.Pass {
		return 1
	}
	return 0
}

func ioctl(fd int, request uint, value uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), value)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// ioctlAt passes the address of a structure.
func ioctlAt(fd int, request uint, at unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(at)); errno != 0 {
		return errno
	}
	return nil
}

// machine is one virtual processor with a megabyte of RAM. Its resources end
// with the process.
type machine struct {
	vcpu  int
	state []byte // struct kvm_run
}

// region is struct kvm_userspace_memory_region.
type region struct {
	slot, flags     uint32
	gpa, size, host uint64
}

// cpuid is struct kvm_cpuid2 with room for as many entries as any host has.
type cpuid struct {
	n, padding uint32
	entries    [256][10]uint32
}

func newMachine(device string) (*machine, error) {
	kvm, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", device, err)
	}
	version, err := ioctl(kvm, kvmGetAPIVersion, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s for its version: %w", device, err)
	}
	if version != kvmAPIVersion {
		return nil, fmt.Errorf("%s has API version %d, want %d", device, version, kvmAPIVersion)
	}
	machineFD, err := ioctl(kvm, kvmCreateVM, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot create machine: %w", err)
	}
	// Three pages of the processor's own, where QEMU has them too.
	identity := uint64(0xFEFFC000)
	if err := ioctlAt(machineFD, kvmSetIdentityMapAddr, unsafe.Pointer(&identity)); err != nil {
		return nil, fmt.Errorf("cannot set identity map: %w", err)
	}
	if _, err := ioctl(machineFD, kvmSetTSSAddr, 0xFEFFD000); err != nil {
		return nil, fmt.Errorf("cannot set TSS address: %w", err)
	}
	if _, err := ioctl(machineFD, kvmCreateIRQChip, 0); err != nil {
		return nil, fmt.Errorf("cannot create interrupt controllers: %w", err)
	}
	if err := mapMemory(machineFD); err != nil {
		return nil, err
	}
	vcpu, err := ioctl(machineFD, kvmCreateVCPU, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot create processor: %w", err)
	}
	// Without the host's features long mode cannot be entered.
	features := &cpuid{n: 256}
	if err := ioctlAt(kvm, kvmGetSupportedCPUID, unsafe.Pointer(features)); err != nil {
		return nil, fmt.Errorf("cannot get processor features: %w", err)
	}
	if err := ioctlAt(vcpu, kvmSetCPUID2, unsafe.Pointer(features)); err != nil {
		return nil, fmt.Errorf("cannot set processor features: %w", err)
	}
	size, err := ioctl(kvm, kvmGetVCPUMmapSize, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot get size of processor state: %w", err)
	}
	state, err := unix.Mmap(vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map processor state: %w", err)
	}
	return &machine{vcpu: vcpu, state: state}, nil
}

// mapMemory gives the machine RAM and the image, once below 1 MiB and once,
// the same pages, below 4 GiB.
func mapMemory(fd int) error {
	ram, err := unix.Mmap(-1, 0, romBase+romSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("cannot allocate RAM: %w", err)
	}
	copy(ram[romBase:], buildROM())
	for slot, r := range []region{
		{gpa: 0, size: romBase, host: uint64(uintptr(unsafe.Pointer(&ram[0])))},
		{gpa: romBase, size: romSize, host: uint64(uintptr(unsafe.Pointer(&ram[romBase])))},
		{gpa: 1<<32 - romSize, size: romSize, host: uint64(uintptr(unsafe.Pointer(&ram[romBase])))},
	} {
		r.slot = uint32(slot)
		if err := ioctlAt(fd, kvmSetUserMemoryRegion, unsafe.Pointer(&r)); err != nil {
			return fmt.Errorf("cannot map RAM at %#x: %w", r.gpa, err)
		}
	}
	return nil
}

// run executes until the image ends it. Letters go to stages as they come, so
// that they are known even if the next step hangs.
func (m *machine) run(stages io.Writer) error {
	var before time.Duration
	for {
		_, err := ioctl(m.vcpu, kvmRun, 0)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("cannot run: %w", err)
		}
		if err != nil {
			continue
		}
		reason := binary.LittleEndian.Uint32(m.state[runExitReason:])
		switch reason {
		case exitIntr:
			continue
		case exitIO:
		case exitHLT:
			return errors.New("the processor halted for ever")
		case exitShutdown:
			return errors.New("triple fault")
		case exitFailEntry:
			return fmt.Errorf("entry failed, hardware reason %#x", binary.LittleEndian.Uint64(m.state[runUnion:]))
		case exitInternalError:
			return fmt.Errorf("KVM internal error, suberror %d", binary.LittleEndian.Uint32(m.state[runUnion:]))
		default:
			return fmt.Errorf("unexpected exit %d", reason)
		}
		port, value, ok := m.out()
		if !ok {
			continue // input, or a port of no interest
		}
		switch {
		case port == portExit && value == exitPass:
			return nil
		case port == portExit:
			return errors.New("the image noticed a wrong result")
		}
		if _, err := stages.Write([]byte{value}); err != nil {
			return fmt.Errorf("cannot report stage: %w", err)
		}
		switch value {
		case 'H':
			before = cpuTime()
		case 'I':
			if took := cpuTime() - before; took > slowLoop {
				return fmt.Errorf("50,000 rounds of a loop took %v: instructions are emulated", took.Round(time.Millisecond))
			}
		}
	}
}

// out decodes an output of one byte to one of the image's ports.
func (m *machine) out() (port uint16, value byte, ok bool) {
	io := m.state[runUnion:]
	direction, size, port := io[0], io[1], binary.LittleEndian.Uint16(io[2:])
	count, at := binary.LittleEndian.Uint32(io[4:]), binary.LittleEndian.Uint64(io[8:])
	if direction != 1 || size != 1 || count != 1 || at >= uint64(len(m.state)) || (port != portStage && port != portExit) {
		return 0, 0, false
	}
	return port, m.state[at], true
}

// cpuTime is what this thread has used, in the kernel too: on a busy host it
// tells an emulated processor from one that waits its turn.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
