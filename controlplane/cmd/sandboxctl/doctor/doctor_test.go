package doctor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/doctor"
)

// host is a host of nothing but what a test puts there.
type host struct {
	t    *testing.T
	dir  string
	user string // whom QEMU runs as; empty: the usual one
}

func (h host) write(name, content string, mode os.FileMode) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// see looks at the host and returns its checks by name.
func (h host) see() map[string]doctor.Check {
	h.t.Helper()
	all := map[string]doctor.Check{}
	for _, c := range doctor.Local(h.t.Context(), doctor.Options{
		StateDir: filepath.Join(h.dir, "state"), Path: filepath.Join(h.dir, "bin"), Dev: filepath.Join(h.dir, "dev"),
		LibvirtDrivers: []string{filepath.Join(h.dir, "lib", "*.so")}, User: h.user,
	}) {
		if c.Status != doctor.OK && c.Remedy == "" {
			h.t.Errorf("%+v has no remedy", c)
		}
		all[c.Name] = c
	}
	return all
}

func TestHostWithoutAnything(t *testing.T) {
	h := host{t: t, dir: t.TempDir()}
	all := h.see()
	for name, want := range map[string]string{
		"sandboxd": doctor.Error, "qemu": doctor.Error, "libvirt": doctor.Error, "kvm": doctor.Warning, "vsock": doctor.OK,
		"state directory": doctor.OK, "image directory": doctor.Warning,
	} {
		if all[name].Status != want {
			t.Errorf("%s: %+v, want %s", name, all[name], want)
		}
	}
	if !strings.Contains(all["qemu"].Remedy, "qemu-system-x86") || !strings.Contains(all["vsock"].Detail, "vhost-user-vsock") {
		t.Errorf("%+v", all)
	}
	first := doctor.Local(t.Context(), doctor.Options{StateDir: h.dir, Path: h.dir, Dev: h.dir, LibvirtDrivers: []string{h.dir + "/x"}})[0]
	if first.Status != doctor.Error {
		t.Errorf("the worst does not come first: %+v", first)
	}
}

func TestHostWithEverything(t *testing.T) {
	h := host{t: t, dir: t.TempDir()}
	h.write("bin/sandboxd", "", 0o755)
	h.write("bin/qemu-system-x86_64", "#!/bin/sh\necho QEMU emulator version 9\necho more\n", 0o755)
	h.write("lib/libvirt_driver_qemu.so", "", 0o644)
	h.write("dev/kvm", "", 0o666)
	h.write("dev/vhost-vsock", "", 0o666)
	h.write("state/admin.token", "sbx_x\n", 0o600)
	all := h.see()
	for name, want := range map[string]string{
		"sandboxd": "bin/sandboxd", "qemu": "QEMU emulator version 9", "libvirt": "libvirt_driver_qemu.so",
		"kvm": "not proven yet", "vsock": "vhost-vsock: the kernel", "state directory": "state",
	} {
		if c := all[name]; c.Status != doctor.OK || !strings.Contains(c.Detail, want) || strings.Contains(c.Detail, "more") {
			t.Errorf("%s: %+v, want %q", name, c, want)
		}
	}
	if c, ok := all["admin token"]; ok {
		t.Errorf("%+v", c)
	}
}

func TestKVMThatWasProven(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skipf("no boot id here (mount -t proc proc /proc): %v", err)
	}
	now := strings.TrimSpace(string(boot))
	for _, c := range []struct{ file, status, want string }{
		{fmt.Sprintf(`{"key":{"boot_id":%q},"verdict":{"usable":true}}`, now), doctor.OK, "proven: it has run a guest"},
		{fmt.Sprintf(`{"key":{"boot_id":%q},"verdict":{"usable":false,"reason":"it hangs at stage E"}}`, now), doctor.Warning, "it hangs at stage E"},
		{`{"key":{"boot_id":"another"},"verdict":{"usable":true}}`, doctor.OK, "not proven yet"},
		{`{`, doctor.OK, "not proven yet"},
	} {
		h := host{t: t, dir: t.TempDir()}
		h.write("dev/kvm", "", 0o666)
		h.write("state/kvm-verdict.json", c.file, 0o600)
		if got := h.see()["kvm"]; got.Status != c.status || !strings.Contains(got.Detail, c.want) {
			t.Errorf("%s: %+v, want %s %q", c.file, got, c.status, c.want)
		}
	}
}

func TestHypervisorOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("QEMU runs as another user only when the daemon is root; run: sudo go test ./controlplane/cmd/sandboxctl/doctor")
	}
	h := host{t: t, dir: t.TempDir(), user: "nobody"}
	device := h.write("dev/kvm", "", 0o660)
	if c := h.see()["kvm"]; c.Status != doctor.Warning || c.Remedy != "usermod -a -G kvm nobody" {
		t.Errorf("closed to it: %+v", c)
	}
	if err := os.Chmod(device, 0o666); err != nil {
		t.Fatal(err)
	}
	if c := h.see()["kvm"]; c.Status != doctor.OK {
		t.Errorf("open to all: %+v", c)
	}
	h.user = "no-such-user"
	if c := h.see()["hypervisor user"]; c.Status != doctor.Error || !strings.Contains(c.Remedy, "useradd") {
		t.Errorf("nobody: %+v", c)
	}
}

func TestPermissions(t *testing.T) {
	h := host{t: t, dir: t.TempDir()}
	token := h.write("state/admin.token", "sbx_x\n", 0o644)
	state := filepath.Dir(token)
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	all := h.see()
	if c := all["state directory"]; c.Status != doctor.Warning || c.Remedy != "chmod go-w "+state {
		t.Errorf("%+v", c)
	}
	if c := all["admin token"]; c.Status != doctor.Warning || c.Remedy != "chmod 600 "+token || strings.Contains(c.Detail, "sbx_x") {
		t.Errorf("%+v", c)
	}
	if err := os.MkdirAll(filepath.Join(state, "images", "names"), 0o755); err != nil {
		t.Fatal(err)
	}
	if c := h.see()["image directory"]; c.Status != doctor.Warning || !strings.Contains(c.Remedy, "make images") {
		t.Errorf("%+v", c)
	}
	h.write("state/images/names/minimal", "", 0o644)
	if err := os.Chmod(filepath.Join(state, "images"), 0o700); err != nil {
		t.Fatal(err)
	}
	if c := h.see()["image directory"]; os.Getuid() == 0 && (c.Status != doctor.Warning || !strings.Contains(c.Remedy, "chmod o+x")) {
		t.Errorf("%+v", c)
	}
	if c := doctor.Permissions(token, "")[0]; c.Status != doctor.Error || !strings.Contains(c.Detail, "no directory") {
		t.Errorf("%+v", c)
	}
}
