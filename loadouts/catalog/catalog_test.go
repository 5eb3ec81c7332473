package catalog_test

import (
	"errors"
	"io/fs"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
	"github.com/google/go-cmp/cmp"
)

func TestEveryLoadoutResolvesUnderItsOwnName(t *testing.T) {
	names := catalog.Names()
	if diff := cmp.Diff([]string{"agentic-dev", "minimal"}, names); diff != "" {
		t.Fatalf("names (-want +got):\n%s", diff)
	}
	for _, name := range names {
		r, err := loadouts.Resolve(name, catalog.Lookup)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Name != name {
			t.Errorf("%s: the document calls itself %q", name, r.Name)
		}
		if len(r.Warnings) > 0 {
			t.Errorf("%s: %v", name, r.Warnings)
		}
	}
}

func TestAgenticDevOffersTheAdapterCommand(t *testing.T) {
	r, err := loadouts.Resolve("agentic-dev", catalog.Lookup)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"echo", "adapter-command"}, r.Runners); diff != "" {
		t.Errorf("runners (-want +got):\n%s", diff)
	}
	if got := r.Image.String(); got != "debian-12-agentic-dev" {
		t.Errorf("image is %q", got)
	}
	if r.Workspace != (loadouts.Workspace{Path: "/workspace", User: "agent"}) {
		t.Errorf("workspace is %+v", r.Workspace)
	}
	// Two machines of this size and their hypervisors must fit a 4 GiB host.
	if r.Resources.Memory > 1024*loadouts.MiB || r.Resources.CPUs != 1 {
		t.Errorf("resources are %+v", r.Resources)
	}
}

func TestLookupSaysWhatThereIs(t *testing.T) {
	if _, _, err := catalog.Lookup("minimal"); err != nil {
		t.Error(err)
	}
	for _, ref := range []string{"minimul", "", "../catalog", "a/b", "\x00"} {
		_, _, err := catalog.Lookup(ref)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(%q) = %v, want fs.ErrNotExist", ref, err)
		}
	}
}
