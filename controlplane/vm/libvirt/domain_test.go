package libvirt

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"
	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

var update = flag.Bool("update", false, "write the expected files anew")

func exampleDesign() design {
	return design{
		spec: vm.Spec{
			ID: "01980a5e-7c31-7a02-b1c5-0123456789ab", Name: "demo", CPUs: 2, Memory: 512 << 20,
			Kernel: "/images/vmlinux", RootDisk: "/images/root.qcow2",
		},
		name: "sbx-0123456789ab", owner: "0011223344556677", emulator: "/usr/bin/qemu-system-x86_64",
		way: WayVhostUser, files: "/state/machines/01980a5e-7c31-7a02-b1c5-0123456789ab",
	}
}

func TestDomainXML(t *testing.T) {
	tests := map[string]func(*design){
		"tcg-vhost-user": func(*design) {},
		"kvm-kernel":     func(d *design) { d.kvm, d.way = true, WayKernel },
		"other-libvirtd": func(d *design) { d.label = "+999:+995" },
		"kernel-args":    func(d *design) { d.spec.KernelArgs = []string{"loglevel=7", `a="<b> & c"`} },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			d := exampleDesign()
			change(&d)
			got, err := domainXML(d)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".xml")
			if *update {
				if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
				t.Errorf("run: go test ./controlplane/vm/libvirt -run %s -update, and read the difference\n%s", t.Name(), diff)
			}
		})
	}
}

// TestDomainXMLHoldsAnyText checks that no text of a spec can break out of its
// place in the XML.
func TestDomainXMLHoldsAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := exampleDesign()
		d.spec.Name = rapid.String().Draw(t, "name")
		d.spec.KernelArgs = []string{rapid.String().Draw(t, "argument")}
		d.spec.RootDisk = "/" + rapid.String().Draw(t, "disk")
		if checkText(d.spec) != nil {
			return
		}
		text, err := domainXML(d)
		if err != nil {
			t.Fatal(err)
		}
		var dom libvirtxml.Domain
		if err := dom.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		if dom.Title != d.spec.Name || dom.OS.Cmdline != defaultArgs+" "+d.spec.KernelArgs[0] ||
			dom.Devices.Disks[0].BackingStore.Source.File.File != d.spec.RootDisk {
			t.Fatalf("text changed on the way: %q %q %q", dom.Title, dom.OS.Cmdline, d.spec.RootDisk)
		}
	})
}

func TestContextID(t *testing.T) {
	text := `<domain type="kvm"><devices><vsock model="virtio"><cid auto="yes" address="17"/></vsock></devices></domain>`
	if cid, err := contextID(text); err != nil || cid != 17 {
		t.Errorf("context id is %d, %v", cid, err)
	}
	if cid, err := contextID("<domain/>"); err != nil || cid != 0 {
		t.Errorf("context id of none is %d, %v", cid, err)
	}
	if _, err := contextID(strings.Replace(text, "17", "many", 1)); err == nil {
		t.Error("a context id that is no number is accepted")
	}
}

// TestDomainNamesDiffer checks that ids made in one instant get different
// names, short enough for libvirt to leave whole.
func TestDomainNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id, err := instance.NewID()
		if err != nil {
			t.Fatal(err)
		}
		name := domainName(id)
		if seen[name] || len(name) > 20 {
			t.Fatalf("name %q", name)
		}
		seen[name] = true
	}
}
