package libvirt

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/vmtest"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

// minimalImage copies the files of the image "minimal" into a directory that
// the hypervisor's user can pass through, which a checkout in root's home is
// not, or skips.
func minimalImage(t *testing.T) store.Image {
	t.Helper()
	dir := os.Getenv("SANDBOX_TEST_IMAGES")
	if _, err := os.Stat(filepath.Join(dir, "names", "minimal.json")); dir == "" || err != nil {
		t.Skip("no image in SANDBOX_TEST_IMAGES; run: make images")
	}
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	image, err := s.Ensure(t.Context(), images.Ref{Name: "minimal"})
	if err != nil {
		t.Fatal(err)
	}
	open := openDir(t)
	for _, file := range []*string{&image.RootDisk, &image.Kernel, &image.Initramfs} {
		to := filepath.Join(open, filepath.Base(*file))
		if err := os.WriteFile(to, read(t, *file), 0o444); err != nil {
			t.Fatal(err)
		}
		*file = to
	}
	return image
}

// TestSuite is the contract, on real machines with the real agent.
func TestSuite(t *testing.T) {
	image := minimalImage(t)
	dir := openDir(t)
	vmtest.Suite(t, vmtest.Factory{
		New: func(t *testing.T) vm.Driver { return openOn(t, dir, nil) },
		Reopen: func(t *testing.T, old vm.Driver) vm.Driver {
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			return openOn(t, dir, nil)
		},
		Spec: func(t *testing.T, id instance.ID, name string) vm.Spec {
			config, err := json.Marshal(agentv1.BootConfig{
				Version: agentv1.BootConfigVersion, InstanceID: id.String(), Hostname: name,
				RootSerial: agentv1.RootDiskSerial,
			})
			if err != nil {
				t.Fatal(err)
			}
			return vm.Spec{
				ID: id, Name: name, CPUs: 1, Memory: 256 << 20, Kernel: image.Kernel, Initramfs: image.Initramfs,
				RootDisk: image.RootDisk, BootConfig: config,
			}
		},
		Directory: func(*testing.T, vm.Driver, instance.ID) string { return "/kept" },
		Leftovers: func(t *testing.T, d vm.Driver, id instance.ID) []string { return leftovers(t, d.(*Driver), id) },
		Deadline:  patience,
	})
}
