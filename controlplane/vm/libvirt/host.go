package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"

	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vsock"
)

// lack is what keeps a host from making machines, and what mends it.
type lack struct {
	reason string
	remedy string
}

// inspect finds out what the host lacks, and sets the user and the way.
func (d *Driver) inspect() lack {
	if runtime.GOARCH != "amd64" {
		return lack{reason: "machines are described for x86_64 only, this host is " + runtime.GOARCH}
	}
	path, err := exec.LookPath("qemu-system-x86_64")
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return lack{fmt.Sprintf("cannot find QEMU: %v", err), "apt-get install --no-install-recommends qemu-system-x86"}
	}
	d.qemu.path, d.emulator = path, path
	if _, err := exec.LookPath("qemu-img"); err != nil {
		return lack{fmt.Sprintf("cannot find qemu-img: %v", err), "apt-get install --no-install-recommends qemu-utils"}
	}
	var l lack
	if d.user, l = hypervisorUser(d.cfg.User); l.reason != "" {
		return l
	}
	d.way, d.wayReason, l = chooseWay(d.cfg.Vsock, vsock.Probe())
	return l
}

// hypervisorUser looks up who runs the hypervisors. Only root has a choice.
func hypervisorUser(name string) (embedded.Identity, lack) {
	if uid := os.Geteuid(); uid != 0 {
		groups, err := os.Getgroups()
		if err != nil {
			groups = nil
		}
		return embedded.Identity{Name: strconv.Itoa(uid), UID: uid, GID: os.Getegid(), Groups: groups}, lack{}
	}
	if name == "" {
		name = DefaultUser
	}
	remedy := addUser(name)
	account, err := user.Lookup(name)
	if err != nil {
		return embedded.Identity{}, lack{fmt.Sprintf("cannot find user %q, which is to run the hypervisors", name), remedy}
	}
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return embedded.Identity{}, lack{fmt.Sprintf("cannot use user %q: %v", name, err), remedy}
	}
	id := embedded.Identity{Name: name, UID: uid, GID: gid}
	names, err := account.GroupIds()
	if err != nil {
		names = nil
	}
	for _, group := range names {
		if n, err := strconv.Atoi(group); err == nil {
			id.Groups = append(id.Groups, n)
		}
	}
	return id, lack{}
}

// missingAccount is libvirt's complaint about the account it was built to run
// QEMU as. It looks for it before it reads that we want another.
var missingAccount = regexp.MustCompile(`Failed to parse (?:user|group) '([a-z_][a-z0-9_-]*)'`)

// addUser is the command that makes an account for hypervisors.
func addUser(name string) string {
	return "useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin " + name
}

// connectLack explains a failed connection.
func connectLack(err error, uri string) lack {
	l := lack{reason: err.Error(), remedy: "look at libvirt's lines in the log"}
	if account := missingAccount.FindStringSubmatch(err.Error()); account != nil {
		return lack{err.Error(), addUser(account[1])}
	}
	var e lv.Error
	if !errors.As(err, &e) {
		return l
	}
	switch {
	case e.Code == lv.ERR_NO_CONNECT, e.Code == lv.ERR_NO_SUPPORT, e.Code == lv.ERR_CONFIG_UNSUPPORTED,
		strings.Contains(e.Message, "libvirt_driver_qemu"):
		l.remedy = "apt-get install --no-install-recommends libvirt-daemon-driver-qemu"
	case !strings.HasPrefix(uri, "qemu:///embed"):
		l.remedy = "apt-get install --no-install-recommends libvirt-daemon-system, and start libvirtd"
	}
	return l
}

// accelerator asks once whether KVM may be used.
type accelerator struct {
	mu    sync.Mutex
	known bool
	kvm   bool
	why   lack
}

func (a *accelerator) ask(ctx context.Context, prove func(context.Context) (bool, string, string)) (kvm bool, why lack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known {
		return a.kvm, a.why
	}
	if prove == nil {
		a.known, a.why.reason = true, "nobody has proven that KVM works here"
		return a.kvm, a.why
	}
	kvm, why.reason, why.remedy = prove(ctx)
	if ctx.Err() != nil {
		return false, lack{reason: ctx.Err().Error()} // no verdict; ask again
	}
	a.known, a.kvm, a.why = true, kvm, why
	return kvm, why
}

func (d *Driver) kvm(ctx context.Context) (bool, lack) {
	if l := kvmClosed(d.user); l.remedy != "" {
		return false, l
	}
	return d.accel.ask(ctx, d.cfg.Accelerator) // also of a device that is not there
}

const kvmDevice = "/dev/kvm"

// kvmClosed says why a hypervisors' user may not use KVM, whether or not it
// works, and the command that lets it; nothing when it may.
func kvmClosed(who embedded.Identity) lack {
	ok, err := permits(who, kvmDevice, mayRead|mayWrite)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return lack{reason: "there is no " + kvmDevice}
	case err != nil:
		return lack{reason: err.Error()}
	case !ok:
		return lack{
			fmt.Sprintf("user %q, which runs the hypervisors, may not open %s", who.Name, kvmDevice), "usermod -a -G kvm " + who.Name,
		}
	}
	return lack{}
}

// prober is the user as which libvirt believes to run QEMU. The embedded driver
// has our settings; a libvirtd has its own, which name the distribution's user.
func (d *Driver) prober() embedded.Identity {
	if !d.embedded() {
		if who, l := hypervisorUser("libvirt-qemu"); l.reason == "" {
			return who
		}
	}
	return d.user
}

// program is a binary whose version is asked for once.
type program struct {
	path string

	mu    sync.Mutex
	known string
}

var versionText = regexp.MustCompile(`\bversion (\d+(?:\.\d+)+)`)

// version runs the program with --version. libvirt's own answer would be about
// the QEMU it finds first, and may cost seconds.
func (p *program) version(ctx context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != "" {
		return p.known, nil
	}
	out, err := exec.CommandContext(ctx, p.path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask %q for its version: %w", p.path, err)
	}
	match := versionText.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("cannot read the version of %q", p.path)
	}
	p.known = string(match[1])
	return p.known, nil
}

// warm makes libvirt ask QEMU what it can do, which takes seconds on a new
// root and would otherwise be part of the first start.
func (d *Driver) warm() {
	kvm, _ := d.kvm(d.life)
	if d.life.Err() != nil {
		return
	}
	if _, err := d.session.conn.GetDomainCapabilities(d.emulator, "x86_64", "q35", domainType(kvm), 0); err != nil {
		d.log.Warn("cannot ask QEMU for its capabilities", "error", err)
	}
}

func domainType(kvm bool) string {
	if kvm {
		return "kvm"
	}
	return "qemu"
}

// restart is the rest of each remedy: a host is looked at when the daemon starts.
const restart = "; then restart sandboxd"

// Capabilities says what the driver can do here.
func (d *Driver) Capabilities(ctx context.Context) (vm.Capabilities, error) {
	c := vm.Capabilities{
		Driver: driverName, RuntimeKind: "vm",
		Available: d.host.reason == "", Reason: d.host.reason, Remedy: d.host.remedy,
		Vsock: string(d.way), VsockReason: d.wayReason,
		Operations: []string{"instance.start", "instance.stop", "instance.pause", "instance.resume", "instance.destroy"},
		Versions:   map[string]string{},
	}
	if c.Remedy != "" {
		c.Remedy += restart
	}
	kvm, why := d.kvm(ctx)
	c.Accelerator, c.AcceleratorReason, c.AcceleratorRemedy = "tcg", why.reason, why.remedy
	if kvm {
		c.Accelerator, c.AcceleratorReason, c.AcceleratorRemedy = "kvm", "", ""
	}
	if d.session == nil {
		return c, nil
	}
	err := d.call(ctx, func() error {
		v, err := d.session.conn.GetLibVersion()
		if err == nil {
			c.Versions["libvirt"] = version(v)
		}
		return err
	})
	if err != nil {
		return vm.Capabilities{}, fmt.Errorf("cannot ask libvirt for its version: %w", err)
	}
	if c.Versions["qemu"], err = d.qemu.version(ctx); err != nil {
		return vm.Capabilities{}, err
	}
	return c, nil
}

// version spells libvirt's 1000000·major + 1000·minor + release.
func version(n uint32) string {
	return fmt.Sprintf("%d.%d.%d", n/1_000_000, n/1_000%1_000, n%1_000)
}
