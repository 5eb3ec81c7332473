// Package kvm proves that KVM can run a guest on this host, instead of
// believing /dev/kvm: a host can have one, offer every ioctl, enter long mode,
// and still hang a stock kernel at its first exception.
//
// The proof is a firmware image of our own (rom.go) that does what a kernel
// does first, and says how far it got. It runs by raw ioctls in a child
// process, then once by the QEMU that will run the machines. Both can hang,
// and are killed at their deadline.
//
// The package knows no driver and no libvirt.
package kvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
)

// Verdict says whether KVM may be used for machines on this host.
type Verdict struct {
	Usable bool `json:"usable"`
	// Stage holds the letters of the stages that were passed, "ABCDEFGHI"
	// being all.
	Stage string `json:"stage"`
	// Reason says in words why KVM is not usable. Empty when it is.
	Reason string `json:"reason,omitempty"`
	// Remedy is what an operator can do about it, if anything.
	Remedy string `json:"remedy,omitempty"`
	// passing marks a verdict that may be another one in a minute.
	passing bool
}

// Options of a proof.
type Options struct {
	// ProbeCommand runs ProbeMain in a child process, normally {the program
	// itself, "kvm-probe"}. Empty: the ioctl way is left out.
	ProbeCommand []string
	// QEMU is the path of the hypervisor binary. Empty: that way is left out.
	QEMU string
	// Credential is the user that QEMU will run as; nil is our own.
	Credential *syscall.Credential
	// CacheDir holds the verdict of this host boot. Empty: nothing is kept.
	CacheDir string
	// BootID is the boot the verdict is kept for. Empty: the host's.
	BootID string
	// Device is /dev/kvm unless set.
	Device string
	// Deadline bounds each of the two ways. Default 5 s.
	Deadline time.Duration
}

// Prove answers whether KVM can be used. It never takes longer than twice the
// deadline and a few seconds, and is immediate once the verdict is cached. An
// error means that ctx ended; everything else is a verdict.
func Prove(ctx context.Context, o Options) (Verdict, error) {
	if o.Device == "" {
		o.Device = "/dev/kvm"
	}
	if o.Deadline <= 0 {
		o.Deadline = 5 * time.Second
	}
	if err := ctx.Err(); err != nil {
		return Verdict{}, err
	}
	if v, ok := openable(o.Device); !ok {
		return v, nil
	}
	k := o.key()
	if v, ok := readCache(o.CacheDir, k); ok {
		return v, nil
	}
	v, err := o.run(ctx)
	if err != nil {
		return Verdict{}, err
	}
	if !v.passing {
		// A verdict that cannot be kept is only found again.
		_ = writeCache(o.CacheDir, k, v)
	}
	return v, nil
}

// openable answers what needs no proof.
func openable(device string) (Verdict, bool) {
	if runtime.GOARCH != "amd64" {
		return Verdict{Reason: "nothing proves KVM on " + runtime.GOARCH + " yet"}, false
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
		return Verdict{}, true
	}
	return unopenable(device, err), false
}

// elsewhere is the remedy where nothing on this host is one.
const elsewhere = "run on a host whose KVM works; everything works without it, slower"

// unopenable explains why a device cannot be opened.
func unopenable(device string, err error) Verdict {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Verdict{
			Reason: "there is no " + device,
			Remedy: "enable virtualization in the firmware, or nested virtualization on the outer host, " +
				"then: modprobe -a kvm_intel kvm_amd",
		}
	case errors.Is(err, fs.ErrPermission):
		return Verdict{
			Reason: "permission denied on " + device,
			Remedy: "usermod -aG kvm $USER, and log in again",
		}
	default:
		return Verdict{Reason: fmt.Sprintf("%s cannot be opened: %v", device, err), Remedy: elsewhere}
	}
}

// run proves by all the ways there are. The first failure is the verdict.
func (o Options) run(ctx context.Context) (Verdict, error) {
	v := Verdict{Reason: "there is neither a probe program nor a QEMU to prove it with", passing: true}
	if len(o.ProbeCommand) > 0 {
		out, err := o.probe(ctx)
		if err != nil {
			return Verdict{}, err
		}
		if v = out.verdict(); !v.Usable {
			return v, nil
		}
	}
	if o.QEMU != "" {
		out, err := o.qemu(ctx, "kvm", "host")
		if err != nil {
			return Verdict{}, err
		}
		v = out.verdict()
	}
	return v, nil
}

// outcome is what one run of the image came to.
type outcome struct {
	way     string // who ran it, for the reason
	letters string // the stages passed
	pass    bool   // the image ended the run itself, successfully
	late    bool   // the deadline came first
	trouble string // what the runner says of it, one line, may be empty
	setup   bool   // the image was never run
	passing bool   // for a reason that may be gone in a minute
}

// verdict explains an outcome.
func (o outcome) verdict() Verdict {
	passed := 0
	for passed < len(stages) && passed < len(o.letters) && o.letters[passed] == stages[passed].letter {
		passed++
	}
	v := Verdict{Stage: o.letters[:passed], passing: o.late || o.passing}
	if o.pass && passed == len(stages) && len(o.letters) == passed && o.trouble == "" {
		v.Usable = true
		return v
	}
	where := "before its first stage"
	if passed > 0 {
		where = fmt.Sprintf("after stage %c (%s)", stages[passed-1].letter, stages[passed-1].name)
	}
	if passed < len(stages) {
		where += fmt.Sprintf(", at %q", stages[passed].name)
	}
	why := ""
	if o.trouble != "" {
		why = ": " + o.trouble
	}
	switch {
	case o.setup:
		v.Reason = fmt.Sprintf("KVM cannot be set up (%s)%s", o.way, why)
	case o.late:
		v.Reason = fmt.Sprintf("guest code hangs %s (%s)%s", where, o.way, why)
	default:
		v.Reason = fmt.Sprintf("guest code faults %s (%s)%s", where, o.way, why)
	}
	v.Remedy = elsewhere
	return v
}
