// Package catalog holds the loadouts that come with this system, embedded.
// It knows only their names and bytes; package loadouts knows what they mean.
package catalog

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Names returns the names of all shipped loadouts, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("catalog: cannot list embedded files: %v", err))
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Lookup returns the document of a shipped loadout, in the form of
// loadouts.Lookup. The reference is a name, with or without ".yaml". The error
// wraps fs.ErrNotExist when there is none of that name.
func Lookup(ref string) (data []byte, name string, err error) {
	file := strings.TrimSuffix(ref, ".yaml") + ".yaml"
	data, err = files.ReadFile(file)
	if err != nil {
		return nil, "", fmt.Errorf("cannot find loadout %q in the catalog (it has %s): %w",
			ref, strings.Join(Names(), ", "), fs.ErrNotExist)
	}
	return data, "catalog/" + file, nil
}
