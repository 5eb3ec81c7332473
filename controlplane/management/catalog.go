package management

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"

	"gopkg.in/yaml.v3"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

var loadoutNameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// ListLoadouts lists the catalog. One that does not resolve is a fault of
// ours and must not hide the others.
func (a *api) ListLoadouts(w http.ResponseWriter, r *http.Request) {
	names := a.Catalog.Names()
	list := managementv1.LoadoutList{Items: make([]managementv1.Loadout, 0, len(names))}
	for _, name := range names {
		resolved, err := loadouts.Resolve(name, a.Catalog.Lookup)
		if err != nil {
			// A layer can be extended only; it is not for callers to choose.
			a.Log.DebugContext(r.Context(), "loadout left out of the list", "loadout", name, "error", err)
			continue
		}
		list.Items = append(list.Items, loadoutJSON(name, resolved))
	}
	a.answer(w, r, http.StatusOK, list)
}

// GetLoadout shows a loadout of the catalog with its parents combined.
func (a *api) GetLoadout(w http.ResponseWriter, r *http.Request, name string) {
	missing := callerFault(codeNoLoadout, "`GET "+managementv1.BasePath+"/loadouts` lists what there is",
		"there is no loadout %q in the catalog", clip(name))
	if !loadoutNameRule.MatchString(name) {
		a.fail(w, r, missing)
		return
	}
	resolved, err := loadouts.Resolve(name, a.Catalog.Lookup)
	if errors.Is(err, fs.ErrNotExist) {
		a.fail(w, r, missing)
		return
	}
	if err != nil {
		a.fail(w, r, fmt.Errorf("cannot resolve loadout %q: %w", name, err))
		return
	}
	l := loadoutJSON(name, resolved)
	if l.Content, err = loadoutYAML(resolved); err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, l)
}

func loadoutJSON(name string, l *loadouts.Resolved) managementv1.Loadout {
	return managementv1.Loadout{Name: name, Description: l.Description, Hash: l.Hash(), Labels: table(l.Labels)}
}

// loadoutYAML writes the combined loadout in the form a person wrote its
// parts, its members in the order of the JSON form.
func loadoutYAML(l *loadouts.Resolved) (string, error) {
	asJSON, err := json.Marshal(l.Loadout)
	if err != nil {
		return "", fmt.Errorf("cannot encode loadout %q: %w", l.Name, err)
	}
	var doc yaml.Node // JSON is YAML; only its style differs
	if err := yaml.Unmarshal(asJSON, &doc); err != nil {
		return "", fmt.Errorf("cannot encode loadout %q: %w", l.Name, err)
	}
	plainStyle(&doc)
	out, err := yaml.Marshal(&doc)
	if err != nil {
		return "", fmt.Errorf("cannot encode loadout %q: %w", l.Name, err)
	}
	return string(out), nil
}

func plainStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		plainStyle(child)
	}
}
