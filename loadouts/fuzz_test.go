package loadouts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// FuzzParse: whatever stands in a document, reading it ends, in a loadout that
// keeps its bounds or in errors with places, one line each.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml", "catalog/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		layer, err := loadouts.Parse("f", data)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") && !strings.HasPrefix(line, "and ") {
					t.Errorf("an error without a place: %q", line)
				}
				if strings.ContainsFunc(line, unicode.IsControl) {
					t.Errorf("control characters in %q", line)
				}
			}
			return
		}
		loadout, err := loadouts.Combine(layer)
		if err != nil {
			return
		}
		if loadout.Name == "" || loadout.Image.Name == "" || len(loadout.Agent.Skills) == 0 {
			t.Errorf("incomplete: %+v", loadout)
		}
		if loadout.Resources.CPUs < 1 || loadout.Resources.Memory%loadouts.MiB != 0 || loadout.Resources.Memory == 0 {
			t.Errorf("impossible resources: %+v", loadout.Resources)
		}
	})
}
