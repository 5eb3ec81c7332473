package management

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// queryTable is the parameters that may stand in a query, by method and
// template of the path; true for those that may be repeated.
type queryTable map[string]map[string]bool

// queries is the one table of them. The document says the same; a test compares
// them. A route that is missing here has none.
func queries() queryTable {
	const once, often = false, true
	return queryTable{
		"GET /instances":               {"state": once, "label": often, "limit": once, "cursor": once},
		"POST /instances/{ref}:stop":   {"force": once},
		"PUT /instances/{ref}/files":   {"path": once},
		"GET /instances/{ref}/console": {"follow": once, "tail": once},
		"GET /operations":              {"instance": once, "state": once, "kind": once, "limit": once, "cursor": once},
		"GET /operations/{id}":         {"wait": once},
		"GET /events":                  {"instance": once, "type": often, "limit": once, "cursor": once},
		"GET /events/stream":           {"instance": once, "type": often, "after": once},
	}
}

// maxStrangers bounds how many parameters one answer names.
const maxStrangers = 16

// checkQuery refuses what would be ignored in silence: a misspelt filter shows
// everything, a second value is not looked at. Values are not repeated, they
// may be secrets.
func (a *api) checkQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := a.queries[r.Method+" "+notesOf(r.Context()).route]
		given, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			a.fail(w, r, invalid{{Field: "query", Code: "parameter.form",
				Message: "want name=value, joined by &, with %25 for a percent sign and %3B for a semicolon"}}.or(codeInvalidParameter))
			return
		}
		var bad invalid
		for _, name := range slices.Sorted(maps.Keys(given)) {
			often, ok := known[name]
			switch {
			case len(bad) == maxStrangers:
			case !ok:
				bad = append(bad, fleet.FieldError{Field: clip(name), Code: "parameter.unknown", Message: wantedOf(known)})
			case !often && len(given[name]) > 1:
				bad = append(bad, fleet.FieldError{Field: name, Code: "parameter.repeated", Message: "want it once"})
			}
		}
		if len(bad) > 0 {
			a.fail(w, r, bad.or(codeInvalidParameter))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func wantedOf(known map[string]bool) string {
	if len(known) == 0 {
		return "there is no such parameter, this request takes none"
	}
	return fmt.Sprintf("there is no such parameter, this request takes %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}
