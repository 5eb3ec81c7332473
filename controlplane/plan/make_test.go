package plan_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/plan"
	"agentic-sandbox.aiwg.io/sandbox/images"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func input(t *testing.T, name string) plan.Input {
	t.Helper()
	l, err := loadouts.Resolve(name, catalog.Lookup)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Input{
		ID: "018fc0a2-7777-7aaa-bbbb-ccccddddeeee", Name: "agent-1", Loadout: &l.Loadout, Hash: "sha256:loadout",
		Image:    images.Ref{Name: l.Image.Name, Digest: "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"},
		DiskSize: 256 << 20,
		Runtime:  plan.Runtime{Kind: "vm", Provider: "libvirt", Accelerator: "tcg", AcceleratorReason: "no /dev/kvm", Vsock: "vhost-user-vsock"},
		Env:      map[string]string{"FROM_REQUEST": "yes"},
	}
}

// TestMakeShippedLoadouts compares the plans of the shipped loadouts with
// golden files; rewrite them with -update and read the difference.
func TestMakeShippedLoadouts(t *testing.T) {
	for _, name := range catalog.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := plan.Make(input(t, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("plan differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDiskSmallerThanImageIsRefused(t *testing.T) {
	in := input(t, "minimal")
	in.Loadout.Resources.Disk = in.DiskSize - 1<<20
	_, err := plan.Make(in)
	var f *instance.Fault
	if !errors.As(err, &f) || f.Blame != instance.Caller || f.Hint == "" {
		t.Errorf("got %v, want the caller's fault with a hint", err)
	}
}

func TestHostKindHasNoAccounts(t *testing.T) {
	in := input(t, "minimal")
	in.Loadout.Runtime.Kind = loadouts.RuntimeHost
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	if p.Agent.User != "" || p.Workspace.User != "" || len(p.Boot.Users) != 0 || len(p.Boot.Directories) != 0 {
		t.Errorf("plan for the host itself wants accounts: %+v", p)
	}
}

func TestRequestWinsOverLoadout(t *testing.T) {
	in := input(t, "minimal")
	in.Loadout.Env = map[string]string{"FROM_REQUEST": "no", "KEPT": "1"}
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"FROM_REQUEST": "yes", "KEPT": "1"}; !cmp.Equal(p.Env, want) {
		t.Errorf("environment is %v, want %v", p.Env, want)
	}
}
