package doctor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// verdictFile is where a daemon keeps what it has found out about KVM.
const verdictFile = "kvm-verdict.json"

// verdict is what stands in it.
type verdict struct {
	Key struct {
		BootID string `json:"boot_id"` // of the host: another boot proves anew
	} `json:"key"`
	Verdict struct {
		Usable bool   `json:"usable"`
		Reason string `json:"reason"`
		Remedy string `json:"remedy"`
	} `json:"verdict"`
}

const maxVerdict = 64 << 10

// proof reads the verdict of this boot of the host, if there is one.
func (o Options) proof() (v verdict, ok bool) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return v, false
	}
	f, err := os.Open(filepath.Join(o.StateDir, verdictFile))
	if err != nil {
		return v, false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxVerdict))
	if err != nil || json.Unmarshal(data, &v) != nil {
		return v, false
	}
	return v, v.Key.BootID == strings.TrimSpace(string(boot))
}

// elsewhere is the remedy where nothing on this host is one. It and the others
// here are in the words of a running daemon.
const elsewhere = "run on a host whose KVM works; everything works without it, slower"

// accelerator tells what is known of KVM. A device alone proves nothing: a
// host can have one and still hang every guest.
func accelerator(o Options) Check {
	const emulated = "machines are emulated, which is slower: "
	device := filepath.Join(o.Dev, "kvm")
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Check{"kvm", Warning, emulated + "there is no " + device,
			"enable virtualization in the firmware, or nested virtualization on the outer host, then: modprobe -a kvm_intel kvm_amd"}
	case errors.Is(err, fs.ErrPermission):
		return Check{"kvm", Warning, emulated + "permission denied on " + device, "usermod -aG kvm $USER, and log in again"}
	case err != nil:
		return Check{"kvm", Warning, emulated + err.Error(), elsewhere}
	}
	info, err := f.Stat()
	_ = f.Close() // nothing was written
	if err == nil && os.Getuid() == 0 && !o.hypervisorMay(info) {
		const form = emulated + "user %s, as whom QEMU runs when sandboxd is root, may not open %s"
		return Check{"kvm", Warning, fmt.Sprintf(form, o.User, device), "usermod -a -G kvm " + o.User}
	}
	v, ok := o.proof()
	switch {
	case !ok:
		return Check{"kvm", OK, device + " can be opened; whether it runs guests is not proven yet: sandboxd does that when it starts", ""}
	case v.Verdict.Usable:
		return Check{"kvm", OK, "proven: it has run a guest since this host booted", ""}
	}
	return Check{"kvm", Warning, emulated + v.Verdict.Reason,
		cmp.Or(v.Verdict.Remedy, elsewhere)}
}

// hypervisorMay reports whether the user that QEMU runs as may open a device.
// Of a user that does not exist another check tells.
func (o Options) hypervisorMay(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	u, err := user.Lookup(o.User)
	if !ok || err != nil || info.Mode().Perm()&0o006 == 0o006 {
		return true
	}
	groups, err := u.GroupIds()
	return err != nil ||
		(u.Uid == strconv.Itoa(int(st.Uid)) && info.Mode().Perm()&0o600 == 0o600) ||
		(slices.Contains(groups, strconv.Itoa(int(st.Gid))) && info.Mode().Perm()&0o060 == 0o060)
}

// guestVsock tells which way to guests sandboxd takes here, and why.
func guestVsock(o Options) Check {
	device := filepath.Join(o.Dev, "vhost-vsock")
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close() // nothing was written
		return Check{"vsock", OK, "vhost-vsock: the kernel reaches guests", ""}
	}
	why, then := "there is no "+device, "modprobe vhost_vsock"
	switch {
	case errors.Is(err, fs.ErrPermission):
		why, then = "permission denied on "+device, "access to it"
	case !errors.Is(err, fs.ErrNotExist):
		why = err.Error()
	}
	const form = "vhost-user-vsock: sandboxd reaches guests by a device of its own, since %s (%s would let the kernel do it)"
	return Check{"vsock", OK, fmt.Sprintf(form, why, then), ""}
}
