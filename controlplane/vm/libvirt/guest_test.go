package libvirt

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/libvirt/embedded"
	"agentic-sandbox.aiwg.io/sandbox/images/initramfs"
)

// patience bounds one step of an emulated machine on a loaded host.
const patience = 120 * time.Second

// testPort is where testguest listens.
const testPort = 512

// guestFiles are what the driver's own machines boot from.
type guestFiles struct{ kernel, initramfs, disk string }

// guestParts is the directory of the guest's kernel and modules; the test is
// skipped without.
func guestParts(t *testing.T) string {
	t.Helper()
	parts := os.Getenv("SANDBOX_TEST_GUEST")
	if _, err := os.Stat(filepath.Join(parts, "vmlinux")); parts == "" || err != nil {
		t.Skip("no guest kernel in SANDBOX_TEST_GUEST; run: make images, then make test")
	}
	return parts
}

// guestVar names kernel, initramfs and disk of a test guest that is built.
const guestVar = "SANDBOX_LIBVIRT_GUEST"

// guest builds the test guest once per test, or skips.
func guest(t *testing.T) guestFiles {
	t.Helper()
	parts := guestParts(t)
	if g := strings.Fields(os.Getenv(guestVar)); len(g) == 3 {
		return guestFiles{g[0], g[1], g[2]}
	}
	dir := openDir(t)
	g := guestFiles{kernel: filepath.Join(dir, "vmlinux"), initramfs: filepath.Join(dir, "initramfs"), disk: filepath.Join(dir, "disk.qcow2")}
	kernel, err := os.ReadFile(filepath.Join(parts, "vmlinux"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, g.kernel, kernel)
	init := filepath.Join(dir, "init")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", init, "./testguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the test guest: %v\n%s", err, out)
	}
	entries := []initramfs.Entry{{Name: "modules", Mode: 0o755, Dir: true}, {Name: "init", Mode: 0o755, Data: read(t, init)}}
	modules, err := filepath.Glob(filepath.Join(parts, "modules", "*.ko"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		entries = append(entries, initramfs.Entry{Name: "modules/" + filepath.Base(m), Mode: 0o644, Data: read(t, m)})
	}
	var archive strings.Builder
	if err := initramfs.Write(&archive, entries); err != nil {
		t.Fatal(err)
	}
	put(t, g.initramfs, []byte(archive.String()))
	if _, err := qemuImg(t.Context(), "create", "-q", "-f", "qcow2", g.disk, "64M"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(g.disk, 0o444); err != nil {
		t.Fatal(err)
	}
	return g
}

// openDir is a directory that the hypervisor's user can pass through; that of
// t.TempDir is closed to others.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o444); err != nil {
		t.Fatal(err)
	}
}

func (g guestFiles) spec(id instance.ID) vm.Spec {
	return vm.Spec{
		ID: id, Name: "test", CPUs: 1, Memory: 256 << 20, Kernel: g.kernel, Initramfs: g.initramfs, RootDisk: g.disk,
		BootConfig: fmt.Appendf(nil, `{"id":%q}`, id),
	}
}

func newID(t *testing.T) instance.ID {
	t.Helper()
	id, err := instance.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// testLog shows what is logged when the test fails.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// ask sends a word to the guest and returns its answer, once it listens.
func ask(t *testing.T, m vm.Instance, word string) string {
	t.Helper()
	c := dial(t, m)
	defer func() { _ = c.Close() }()
	return say(t, c, word)
}

func say(t *testing.T, c net.Conn, word string) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c, word); err != nil {
		t.Fatalf("cannot write to guest: %v", err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "" // the machine ended, which some words ask for
	}
	return strings.TrimSpace(line)
}

// dial dials until the guest listens.
func dial(t *testing.T, m vm.Instance) net.Conn {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := m.Dial(ctx, testPort)
		if err == nil {
			return c
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			d := m.Diagnose(t.Context())
			t.Fatalf("guest does not answer: %v\n%+v", err, d)
		}
	}
}

// leftovers lists what a machine has left on the host.
func leftovers(t *testing.T, d *Driver, id instance.ID) []string {
	t.Helper()
	var left []string
	name := domainName(id)
	found, err := embedded.Processes(func(p embedded.Process) bool { return p.IsMachine(name, string(id)) })
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		left = append(left, fmt.Sprintf("process %d", p.PID))
	}
	if _, _, err := d.state(id); !noDomain(err) {
		left = append(left, fmt.Sprintf("domain %s (%v)", name, err))
	}
	err = filepath.WalkDir(d.root.StateDir, func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(path, string(id)) || strings.Contains(path, name) {
			left = append(left, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// pidOf is the pid of a machine's hypervisor.
func pidOf(t *testing.T, id instance.ID) int {
	t.Helper()
	found, err := embedded.Processes(func(p embedded.Process) bool { return p.IsMachine(domainName(id), string(id)) })
	if err != nil || len(found) != 1 {
		t.Fatalf("cannot find the one hypervisor of %q: %v, %v", id, found, err)
	}
	return found[0].PID
}

// lines yields what a process prints until it ends.
func lines(r io.Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(r); s.Scan() && yield(s.Text()); {
		}
	}
}
