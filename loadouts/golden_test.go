package loadouts_test

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file, or writes the file with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (to write it: go test ./loadouts -update)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestBrokenDocuments holds what users read: every message with its place.
func TestBrokenDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			layer, err := loadouts.Parse(name, data)
			if err == nil {
				t.Fatalf("parsed as %+v, want errors", layer)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".golden", err.Error()+"\n")
		})
	}
}

// fromDir looks documents up as files of a directory.
func fromDir(dir string) loadouts.Lookup {
	return func(ref string) ([]byte, string, error) {
		data, err := fs.ReadFile(os.DirFS(dir), ref+".yaml")
		return data, ref + ".yaml", err
	}
}

// TestEverything holds what one loadout with all fields and two parents, one
// of them reached twice, comes out as.
func TestEverything(t *testing.T) {
	r, err := loadouts.Resolve("agent", fromDir("testdata/good"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/good/agent.golden", string(got)+"\n"+r.Hash()+"\n"+r.Warnings.Error()+"\n")

	var back loadouts.Loadout
	plain, err := json.Marshal(r.Loadout)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(plain, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Loadout, back); diff != "" {
		t.Errorf("the JSON form does not read back (-want +got):\n%s", diff)
	}
}
