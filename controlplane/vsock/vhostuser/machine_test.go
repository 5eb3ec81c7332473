package vhostuser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp"

	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
)

// machine is a real QEMU with a real kernel and testdata/guest in it.
type machine struct {
	t      testing.TB
	cmd    *exec.Cmd
	mon    *qmp.SocketMonitor
	events chan qmp.Event
	exited chan struct{}
	plugs  int

	mu      sync.Mutex
	console bytes.Buffer
	changed chan struct{} // closed at every console line
}

// guestDir is where the kernel and its modules are, or the test is skipped.
func guestDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SANDBOX_TEST_GUEST")
	if dir == "" {
		t.Skip("no guest kernel in SANDBOX_TEST_GUEST; run: make images, then make test")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("no QEMU here; run: apt-get install qemu-system-x86")
	}
	return dir
}

// buildInitramfs packs the guest program and the modules.
func buildInitramfs(t testing.TB, dir string) string {
	t.Helper()
	tmp := t.TempDir()
	init := filepath.Join(tmp, "init")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", init, "./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the guest program: %v\n%s", err, out)
	}
	entries := []initramfs.Entry{{Name: "modules", Mode: 0o755, Dir: true}}
	modules, err := filepath.Glob(filepath.Join(dir, "modules", "*.ko"))
	if err != nil || len(modules) == 0 {
		t.Fatalf("no modules in %s: %v", dir, err)
	}
	for name, path := range map[string]string{"init": init} {
		entries = append(entries, initramfs.Entry{Name: name, Mode: 0o755, Data: readFile(t, path)})
	}
	for _, m := range modules {
		entries = append(entries, initramfs.Entry{Name: "modules/" + filepath.Base(m), Mode: 0o644, Data: readFile(t, m)})
	}
	var archive bytes.Buffer
	if err := initramfs.Write(&archive, entries); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(tmp, "initramfs")
	if err := os.WriteFile(out, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// boot starts a machine that has no vsock device yet.
func boot(t testing.TB) *machine {
	t.Helper()
	dir := guestDir(t)
	m := &machine{t: t, exited: make(chan struct{}), changed: make(chan struct{})}
	qmpPath := filepath.Join(t.TempDir(), "qmp")
	m.cmd = exec.Command("qemu-system-x86_64", //nolint:noctx // killed by the test, which may be over before
		"-machine", "q35,memory-backend=mem", "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "1",
		"-object", "memory-backend-memfd,id=mem,size=256M,share=on",
		"-nodefaults", "-no-user-config", "-display", "none",
		"-device", "pcie-root-port,id=rp0,bus=pcie.0,chassis=1,slot=1",
		"-kernel", filepath.Join(dir, "vmlinux"), "-initrd", buildInitramfs(t, dir),
		"-append", "console=ttyS0 quiet panic=-1 cryptomgr.notests",
		"-serial", "stdio", "-qmp", "unix:"+qmpPath+",server=on,wait=off")
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go m.read(stdout)
	t.Cleanup(m.kill)
	m.connect(qmpPath)
	return m
}

// read keeps the console, then reaps QEMU.
func (m *machine) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		m.mu.Lock()
		m.console.Write(append(lines.Bytes(), '\n'))
		close(m.changed)
		m.changed = make(chan struct{})
		m.mu.Unlock()
	}
	_ = m.cmd.Wait()
	close(m.exited)
}

func (m *machine) connect(path string) {
	m.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		mon, err := qmp.NewSocketMonitor("unix", path, patience)
		if err == nil {
			if err = mon.Connect(); err != nil {
				m.t.Fatal(err)
			}
			m.mon = mon
			break
		}
		select {
		case <-tick.C:
		case <-m.exited:
			m.t.Fatalf("QEMU ended: %s", m.text())
		case <-deadline:
			m.t.Fatal(err)
		}
	}
	events, err := m.mon.Events(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	// The monitor stalls while an event waits, so they are kept elsewhere.
	m.events = make(chan qmp.Event, 1024)
	go func() {
		for ev := range events {
			select {
			case m.events <- ev:
			default:
			}
		}
	}()
}

func (m *machine) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.console.String()
}

// waitConsole waits until the console has said text.
func (m *machine) waitConsole(ctx context.Context, text string) {
	m.t.Helper()
	for {
		m.mu.Lock()
		changed, said := m.changed, strings.Contains(m.console.String(), text)
		m.mu.Unlock()
		if said {
			return
		}
		select {
		case <-changed:
		case <-m.exited:
			m.t.Fatalf("QEMU ended before it said %q:\n%s", text, m.text())
		case <-ctx.Done():
			m.t.Fatalf("console never said %q:\n%s", text, m.text())
		}
	}
}

// kill ends QEMU and waits for its end.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	<-m.exited
	if m.mon != nil {
		_ = m.mon.Disconnect()
	}
}

func (m *machine) qmp(command string, args any) {
	m.t.Helper()
	b, err := json.Marshal(map[string]any{"execute": command, "arguments": args})
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.mon.Run(b); err != nil {
		m.t.Fatalf("%s: %v", command, err)
	}
}

type object = map[string]any

// plug gives the machine the device behind socket.
func (m *machine) plug(socket string) {
	m.t.Helper()
	m.plugs++
	chardev := fmt.Sprintf("vs%d", m.plugs)
	m.qmp("chardev-add", object{"id": chardev, "backend": object{"type": "socket", "data": object{
		"server": false, "addr": object{"type": "unix", "data": object{"path": socket}},
	}}})
	m.qmp("device_add", object{"driver": "vhost-user-vsock-pci", "id": "vsock0", "bus": "rp0", "chardev": chardev})
}

// unplug takes the device away.
func (m *machine) unplug(ctx context.Context) {
	m.t.Helper()
	m.qmp("device_del", object{"id": "vsock0"})
	for {
		ev := m.event(ctx, "DEVICE_DELETED")
		if ev.Data["device"] == "vsock0" { // another tells of its inner part
			break
		}
	}
	m.qmp("chardev-remove", object{"id": fmt.Sprintf("vs%d", m.plugs)})
}

func (m *machine) event(ctx context.Context, name string) qmp.Event {
	m.t.Helper()
	for {
		select {
		case ev := <-m.events:
			if ev.Event == name {
				return ev
			}
		case <-ctx.Done():
			m.t.Fatalf("no %s event", name)
		}
	}
}
