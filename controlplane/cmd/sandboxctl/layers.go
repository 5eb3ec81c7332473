package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

const (
	maxLoadoutFile = 1 << 20
	maxLayers      = 64
)

// loadoutSource makes what the server needs of an argument: the name of a
// loadout of the catalog, or a file and the local files it extends.
func loadoutSource(arg string) (managementv1.LoadoutSource, error) {
	if !namesFile(arg) {
		return managementv1.LoadoutSource{Name: arg}, nil
	}
	content, err := readLoadout(arg)
	if err != nil {
		return managementv1.LoadoutSource{}, err
	}
	g := layers{paths: map[string]string{}, found: map[string]string{}}
	if err := g.gather(arg, content); err != nil {
		return managementv1.LoadoutSource{}, err
	}
	return managementv1.LoadoutSource{Name: arg, Content: content, Layers: g.found}, nil
}

// namesFile tells a file from a name of the catalog by its form, never by
// what happens to lie in the current directory.
func namesFile(arg string) bool {
	return strings.ContainsRune(arg, filepath.Separator) ||
		strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".yml")
}

// layers gathers the local files that a loadout extends, by the references
// that it uses for them.
type layers struct {
	paths map[string]string // reference → path
	found map[string]string // reference → content
}

// gather follows the references of one file. References are meant from the
// directory of the file they stand in. What is not there is left to the
// server, which knows the catalog and says where a reference stands.
func (g *layers) gather(path, content string) error {
	for _, ref := range extends(content) {
		if !namesFile(ref) {
			continue
		}
		file := ref
		if !filepath.IsAbs(ref) {
			file = filepath.Join(filepath.Dir(path), ref)
		}
		if known, ok := g.paths[ref]; ok {
			if known != file {
				return withRemedy(
					fmt.Errorf("cannot send %q: it means both %q and %q", ref, known, file),
					"give one of the two files another name")
			}
			continue
		}
		text, err := readLoadout(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if len(g.found) >= maxLayers {
			return fmt.Errorf("cannot send loadout: it extends more than %d files", maxLayers)
		}
		g.paths[ref], g.found[ref] = file, text
		if err := g.gather(file, text); err != nil {
			return err
		}
	}
	return nil
}

// extends reads nothing but the references. A file that is no loadout has
// none; the server says what is wrong with it.
func extends(content string) []string {
	var doc struct {
		Extends []string `yaml:"extends"`
	}
	if err := yaml.Unmarshal([]byte(content), &doc); err != nil {
		return nil
	}
	return doc.Extends
}

func readLoadout(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		// A word without a slash and an ending is a name of the catalog.
		return "", &exitError{exitNotFound, withRemedy(fmt.Errorf("cannot read loadout: %w", err),
			"give the path of a file, or a name of the catalog: sandboxctl loadouts shows them")}
	}
	if err != nil {
		return "", fmt.Errorf("cannot read loadout: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLoadoutFile+1))
	if err != nil {
		return "", fmt.Errorf("cannot read loadout: %w", err)
	}
	if len(data) > maxLoadoutFile {
		return "", fmt.Errorf("cannot read loadout %q: it is longer than %d bytes", path, maxLoadoutFile)
	}
	if len(data) == 0 {
		// No content would mean a name of the catalog. A line end is as empty,
		// and the server says what is wrong and where.
		return "\n", nil
	}
	return string(data), nil
}
