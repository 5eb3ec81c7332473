// Package libvirt is the machine driver on QEMU through libvirt. By default
// libvirt's QEMU driver runs inside this process on a root directory of its
// own (qemu:///embed), so that no libvirtd is needed and machines go on when
// the process dies; any other libvirt URI on this host works by configuration.
//
// Every machine has a directory, <state>/machines/<id>/, that holds all its
// files and a record of what it was made from. libvirt keeps no definition:
// domains are transient and carry the instance id in uuid and metadata.
//
// The package knows machines only: no images store, no loadouts, no agent
// protocol, no database.
package libvirt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
)

// DefaultUser is the account hypervisors run as when the caller is root. The
// project's set-up makes it.
const DefaultUser = "sandbox-qemu"

// Config says where a driver keeps its machines and how it makes them.
type Config struct {
	// StateDir holds machines, sockets and libvirt's own files. The hypervisor
	// user must be able to pass through it.
	StateDir string
	// URI is the libvirt connection; "" is the embedded driver on StateDir.
	URI string
	// User is the account hypervisors run as when we are root; "" is
	// DefaultUser. An ordinary user's machines run as that user.
	User string
	// Vsock forces a way to the guest; "" or WayAuto takes the kernel's where
	// the host has it.
	Vsock Way
	// Accelerator says whether KVM is proven to work here, and if not, why and
	// what mends it. nil means emulation. Called once.
	Accelerator func(ctx context.Context) (kvm bool, reason, remedy string)
	Log         *slog.Logger

	// fail is asked after every step of Create and Start, by tests only.
	fail func(step string) error
}

// Driver implements vm.Driver. One per state directory and process.
type Driver struct {
	cfg  Config
	log  *slog.Logger
	root *embedded.Root
	// owner marks our domains among others of the same libvirt.
	owner string
	user  embedded.Identity
	// host is what the host lacks; empty when machines can be made.
	host      lack
	way       Way
	wayReason string
	accel     accelerator
	// emulator is what libvirt runs; qemu is the program behind it.
	emulator string
	qemu     program

	session *session
	reaper  *embedded.Reaper
	pipe    *embedded.LogPipe
	files   *bounded
	inbox   *inbox

	// life ends the driver's own goroutines, which background counts.
	life       context.Context
	end        context.CancelFunc
	background sync.WaitGroup

	// closing is closed when Close begins: nothing may be begun any more.
	closing chan struct{}

	mu       sync.Mutex
	closed   bool // nothing may be spawned any more
	machines map[instance.ID]*machine
}

var _ vm.Driver = (*Driver)(nil)

// Open claims the state directory and connects to libvirt. A host that lacks
// something is no error: Capabilities then says what.
func Open(ctx context.Context, cfg Config) (*Driver, error) {
	if cfg.StateDir == "" {
		return nil, errors.New("cannot open libvirt driver: no state directory")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	root, err := embedded.Claim(cfg.StateDir)
	if errors.Is(err, embedded.ErrInUse) {
		return nil, &instance.Fault{
			Blame: instance.Caller, Code: "state_dir.in_use", Err: err,
			Hint: "stop the other sandboxd or choose another --state-dir",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open libvirt driver: %w", err)
	}
	sum := sha256.Sum256([]byte(root.StateDir))
	d := &Driver{
		cfg: cfg, log: cfg.Log, root: root, owner: hex.EncodeToString(sum[:8]),
		inbox: newInbox(), closing: make(chan struct{}), machines: map[instance.ID]*machine{},
	}
	d.life, d.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open libvirt driver: %w", err), d.Close())
	}
	return d, nil
}

func (d *Driver) open(ctx context.Context) error {
	if err := os.MkdirAll(d.machinesDir(), 0o711); err != nil {
		return fmt.Errorf("cannot make directory for machines: %w", err)
	}
	var err error
	if d.files, err = watchFiles(d.log); err != nil {
		return err
	}
	if d.host = d.inspect(); d.host.reason != "" {
		d.log.Warn("libvirt driver is not available", "reason", d.host.reason, "remedy", d.host.remedy)
		return nil
	}
	if d.embedded() {
		if err := d.prepareEmbedded(ctx); err != nil {
			return err
		}
	}
	if os.Geteuid() == 0 && kvmClosed(d.prober()) != (lack{}) {
		if d.emulator, err = embedded.Shim(d.root, d.qemu.path); err != nil {
			return err
		}
	}
	d.session, err = connect(d.uri(), d.embedded(), d.inbox)
	if d.pipe != nil {
		d.pipe.Settled()
	}
	if err != nil {
		d.host = connectLack(err, d.uri())
		d.log.Warn("libvirt driver is not available", "reason", d.host.reason, "remedy", d.host.remedy)
		return nil
	}
	d.background.Go(d.dispatch)
	d.background.Go(d.warm)
	return nil
}

// prepareEmbedded does what must come before libvirt's driver starts in this
// process; package embedded says why.
func (d *Driver) prepareEmbedded(ctx context.Context) error {
	var err error
	if d.pipe, err = embedded.OpenLogPipe(d.root.Dir, d.log); err != nil {
		return err
	}
	if d.reaper, err = embedded.StartReaper(); err != nil {
		return err
	}
	swept, err := embedded.Sweep(ctx, d.root)
	if err != nil {
		return err
	}
	if len(swept.Dropped)+len(swept.Killed) > 0 {
		d.log.Warn("swept libvirt's root", "kept", swept.Kept, "dropped", swept.Dropped, "killed", swept.Killed)
	}
	return embedded.WriteConfig(d.root.Dir, d.user)
}

// closeLimit bounds how long Close waits for libvirt calls that hang on a
// hypervisor which does not answer.
const closeLimit = 15 * time.Second

// Close detaches from all machines without touching them.
func (d *Driver) Close() error {
	d.mu.Lock()
	if isClosed(d.closing) {
		d.mu.Unlock()
		return nil
	}
	close(d.closing)
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(d.life, closeLimit)
	defer cancel()
	for _, m := range d.all() {
		m.detach(ctx)
	}
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	idle := make(chan struct{})
	go func() { d.background.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-time.After(closeLimit):
		d.log.Error("libvirt calls still hang; leaving them")
	}
	var errs []error
	forget := true
	if d.session != nil {
		if n, err := d.session.conn.ListDomains(); err != nil || len(n) > 0 {
			forget = false
		}
		errs = append(errs, d.session.close())
	}
	if d.reaper != nil {
		d.reaper.Stop()
	}
	if d.pipe != nil {
		d.pipe.Close()
	}
	if d.files != nil {
		errs = append(errs, d.files.close())
	}
	errs = append(errs, d.root.Release(forget))
	return errors.Join(errs...)
}

// spawn runs f on a goroutine that Close waits for; false after Close.
func (d *Driver) spawn(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.background.Go(f)
	return true
}

func (d *Driver) embedded() bool {
	return d.cfg.URI == "" || strings.HasPrefix(d.cfg.URI, "qemu:///embed")
}

func (d *Driver) uri() string {
	if d.cfg.URI == "" {
		return "qemu:///embed?root=" + d.root.Dir
	}
	return d.cfg.URI
}

func (d *Driver) machinesDir() string { return filepath.Join(d.root.Base, "machines") }
