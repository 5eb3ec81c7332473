package management

import (
	"errors"
	"io/fs"
	"net/http"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// maxFindings bounds how many broken rules one answer tells.
const maxFindings = 200

// ValidateLoadout reads a loadout and says what is wrong with it, or what it
// comes to.
func (a *api) ValidateLoadout(w http.ResponseWriter, r *http.Request, _ managementv1.ValidateLoadoutParams) {
	var body managementv1.LoadoutSource
	if err := decode(w, r, &body, mediaJSON); err != nil {
		a.fail(w, r, err)
		return
	}
	var bad invalid
	if bad.checkSource("", body); len(bad) > 0 {
		a.fail(w, r, bad.sorted().or(codeInvalid))
		return
	}
	// As the fleet looks them up: what came along first, then the catalog.
	resolved, err := loadouts.Resolve(body.Name, func(ref string) ([]byte, string, error) {
		if ref == body.Name && body.Content != "" {
			return []byte(body.Content), body.Name, nil
		}
		if content, ok := body.Layers[ref]; ok {
			return []byte(content), ref, nil
		}
		return a.Catalog.Lookup(ref)
	})
	var broken loadouts.Errors
	switch {
	case errors.As(err, &broken):
		a.answer(w, r, http.StatusOK, managementv1.LoadoutValidation{
			Errors: findings(broken), Warnings: []managementv1.LoadoutFinding{},
		})
	case errors.Is(err, fs.ErrNotExist):
		a.fail(w, r, callerFault("loadout.not_found", "send its text as content, or the name of one of the catalog",
			"there is no loadout %q in the catalog", clip(body.Name)))
	case err != nil:
		a.fail(w, r, err)
	default:
		v := managementv1.LoadoutValidation{
			Valid: true, Errors: []managementv1.LoadoutFinding{}, Warnings: findings(resolved.Warnings),
			Loadout: loadoutJSON(resolved.Name, resolved),
		}
		if v.Loadout.Content, err = loadoutYAML(resolved); err != nil {
			a.fail(w, r, err)
			return
		}
		for _, lack := range a.Host.Lacks(r.Context(), resolved) {
			v.Warnings = append(v.Warnings, managementv1.LoadoutFinding{File: body.Name, Field: lack.Field, Rule: inHTTP(lack.Message)})
		}
		a.answer(w, r, http.StatusOK, v)
	}
}

func findings(errs loadouts.Errors) []managementv1.LoadoutFinding {
	out := make([]managementv1.LoadoutFinding, 0, min(len(errs), maxFindings))
	for _, e := range errs[:min(len(errs), maxFindings)] {
		out = append(out, managementv1.LoadoutFinding{
			File: e.File, Line: e.Line, Column: e.Column, Field: e.Path, Rule: e.Rule,
		})
	}
	return out
}
