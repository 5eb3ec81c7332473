package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/images"
)

// Host is what the numbers were measured on. Without it they mean nothing.
type Host struct {
	Time     time.Time `json:"time"`
	Version  string    `json:"version"` // of this project
	OS       string    `json:"os"`
	Kernel   string    `json:"kernel"`
	Virt     string    `json:"virt"` // what this host runs in itself
	CPU      string    `json:"cpu"`
	CPUs     int       `json:"cpus"`
	Governor string    `json:"governor"`
	Memory   uint64    `json:"memory"` // bytes
	Go       string    `json:"go"`

	Accelerator       string            `json:"accelerator"`
	AcceleratorReason string            `json:"accelerator_reason,omitempty"`
	Vsock             string            `json:"vsock"`
	VsockReason       string            `json:"vsock_reason,omitempty"`
	Versions          map[string]string `json:"versions"`

	Image       string `json:"image"` // pinned reference
	GuestKernel string `json:"guest_kernel"`
	KernelSum   string `json:"kernel_sha256"`
	Initramfs   string `json:"initramfs_sha256"`

	// LoadBefore and LoadAfter are the load averages of one, five and fifteen
	// minutes; Stolen is the share of processor time that whoever runs this
	// host gave to others meanwhile.
	LoadBefore string        `json:"load_before"`
	LoadAfter  string        `json:"load_after"`
	Stolen     float64       `json:"stolen"`
	Took       time.Duration `json:"took_ns"`

	began ticks
}

// stamp describes the host before anything is measured.
func stamp(ctx context.Context, version string, c vm.Capabilities, m images.Manifest) Host {
	h := Host{
		Time: time.Now().UTC().Truncate(time.Second), Version: version,
		OS: match("/etc/os-release", `(?m)^PRETTY_NAME="?([^"\n]*)`), Virt: virtualization(ctx),
		CPU: match("/proc/cpuinfo", `(?m)^model name\s*: (.*)`), CPUs: runtime.NumCPU(),
		Governor: governor(), Go: runtime.Version(),
		Accelerator: c.Accelerator, AcceleratorReason: c.AcceleratorReason,
		Vsock: c.Vsock, VsockReason: c.VsockReason, Versions: c.Versions,
		Image: m.Ref().String(), GuestKernel: m.Labels["kernel.release"],
		KernelSum: string(m.Kernel.Digest), Initramfs: string(m.Initramfs.Digest),
		LoadBefore: loads(), began: readTicks(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if kib, err := strconv.ParseUint(match("/proc/meminfo", `(?m)^MemTotal:\s*(\d+)`), 10, 64); err == nil {
		h.Memory = kib << 10
	}
	return h
}

// end adds what is known only afterwards.
func (h *Host) end() {
	h.LoadAfter = loads()
	now := readTicks()
	if all := now.all - h.began.all; all > 0 {
		h.Stolen = float64(now.stolen-h.began.stolen) / float64(all)
	}
	h.Took = time.Since(h.Time).Round(time.Second)
}

func (h *Host) write(w io.Writer) {
	row := func(name, text string) { fmt.Fprintf(w, "%s\t%s\n", name, text) }
	because := func(what, why string) string {
		if why == "" {
			return what
		}
		return what + ": " + why
	}
	row("measured", fmt.Sprintf("%s, version %s, took %s", h.Time.Format("2006-01-02 15:04 MST"), h.Version, h.Took))
	row("host", fmt.Sprintf("%s, kernel %s, virt %s", h.OS, h.Kernel, h.Virt))
	row("cpu", fmt.Sprintf("%d x %s, governor %s, %.1f GiB memory", h.CPUs, h.CPU, h.Governor, float64(h.Memory)/(1<<30)))
	row("load", fmt.Sprintf("%s before, %s after, %.1f %% stolen", h.LoadBefore, h.LoadAfter, 100*h.Stolen))
	if before, after := firstLoad(h.LoadBefore), firstLoad(h.LoadAfter); max(before, after) > float64(h.CPUs) {
		row("", fmt.Sprintf("more than the %d processors can do: ratios spread, and times say little", h.CPUs))
	}
	row("accelerator", because(h.Accelerator, h.AcceleratorReason))
	row("vsock", because(h.Vsock, h.VsockReason))
	row("versions", fmt.Sprintf("QEMU %s, libvirt %s, %s", h.Versions["qemu"], h.Versions["libvirt"], h.Go))
	row("image", h.Image)
	row("guest", fmt.Sprintf("kernel %s, sha256 %.12s; initramfs sha256 %.12s", h.GuestKernel, h.KernelSum, h.Initramfs))
}

const unknown = "unknown"

// match returns the first group of a pattern in a file.
func match(path, pattern string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return unknown
	}
	if m := regexp.MustCompile(pattern).FindSubmatch(data); m != nil {
		return string(m[1])
	}
	return unknown
}

// virtualization asks systemd, which knows the most, or else the processor.
func virtualization(ctx context.Context) string {
	// The command ends with status 1 when it answers "none".
	out, err := exec.CommandContext(ctx, "systemd-detect-virt").Output()
	if word := strings.TrimSpace(string(out)); word != "" {
		return word
	}
	if match("/proc/cpuinfo", `(?m)^flags\s*:.* (hypervisor)(?: |$)`) != unknown {
		return fmt.Sprintf("a hypervisor of unknown kind (%v)", err)
	}
	return unknown
}

func governor() string {
	data, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(data))
}

func loads() string { return match("/proc/loadavg", `^(\S+ \S+ \S+)`) }

// firstLoad is the average of the last minute, 0 where it is unknown.
func firstLoad(averages string) float64 {
	first, _, _ := strings.Cut(averages, " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return v
}

// ticks are processor times since the host's boot.
type ticks struct{ all, stolen uint64 }

func readTicks() ticks {
	var t ticks
	for i, field := range strings.Fields(match("/proc/stat", `(?m)^cpu +(.*)`)) {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil || i > 7 { // guest time is counted in user time already
			break
		}
		t.all += n
		if i == 7 {
			t.stolen = n
		}
	}
	return t
}

// absolute is for paths that go to other programs.
func absolute(paths ...*string) error {
	for _, p := range paths {
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}
