package management_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

// strangers asks with a query and returns the errors of the answer by field.
func strangers(t *testing.T, method, path, query string) (status int, found map[string]string) {
	t.Helper()
	h := admin(management.New(config(&fakeFleet{}, nil)))
	r := httptest.NewRequest(method, managementv1.BasePath+path+"?"+query, http.NoBody)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var p managementv1.Problem
	if w.Code >= http.StatusBadRequest {
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatalf("%v\n%s", err, w.Body)
		}
	}
	found = map[string]string{}
	for _, e := range p.Errors {
		found[e.Field] = e.Code
	}
	return w.Code, found
}

// TestQueriesAreThoseOfTheDocument gives each operation every parameter that
// it has, twice those that are no list, and one that nobody has.
func TestQueriesAreThoseOfTheDocument(t *testing.T) {
	doc := document(t)
	for template, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			t.Run(op.OperationID, func(t *testing.T) {
				path := fill(template)
				_, found := strangers(t, method, path, "colour=red")
				if len(found) != 1 || found["colour"] != "parameter.unknown" {
					t.Errorf("a stranger: %v", found)
				}
				query := url.Values{}
				var single []string
				for _, p := range append(op.Parameters, item.Parameters...) {
					if p.Value.In != openapi3.ParameterInQuery {
						continue
					}
					query[p.Value.Name] = []string{"1", "1"}
					if !p.Value.Schema.Value.Type.Is("array") {
						single = append(single, p.Value.Name)
					}
				}
				_, found = strangers(t, method, path, query.Encode())
				for name := range query {
					if found[name] == "parameter.unknown" {
						t.Errorf("%s is not known", name)
					}
				}
				for _, name := range single {
					if found[name] != "parameter.repeated" {
						t.Errorf("%s may be repeated: %v", name, found)
					}
				}
			})
		}
	}
}

// TestTypesOfEventsAreThoseOfTheDocument: its pattern names them all.
func TestTypesOfEventsAreThoseOfTheDocument(t *testing.T) {
	rule := document(t).Components.Parameters["EventType"].Value.Schema.Value.Items.Value.Pattern
	form := regexp.MustCompile(rule)
	for _, known := range fleet.EventTypes() {
		if !form.MatchString(known) {
			t.Errorf("%s does not match %s", known, rule)
		}
		if status, found := strangers(t, http.MethodGet, "/events", "type="+known); status != http.StatusOK {
			t.Errorf("%s: status %d, %v", known, status, found)
		}
	}
	if n := strings.Count(rule, "|") + 1; n != len(fleet.EventTypes()) {
		t.Errorf("the document has %d types, there are %d", n, len(fleet.EventTypes()))
	}
	for _, unknown := range []string{"bogus", "instance.bogus", "instance.phases", ""} {
		if status, found := strangers(t, http.MethodGet, "/events", "type="+unknown); status != http.StatusBadRequest || found["type"] == "" {
			t.Errorf("%q: status %d, %v", unknown, status, found)
		}
	}
}

func TestQueriesThatAreRefused(t *testing.T) {
	many := make([]string, 0, 100)
	for _, c := range strings.Repeat("abcdefghij", 10) {
		many = append(many, strings.Repeat(string(c), len(many)+1)+"=1")
	}
	for _, c := range []struct {
		query string
		field string
		code  string
	}{
		{"State=running", "State", "parameter.unknown"},
		{"labels=a", "labels", "parameter.unknown"},
		{"limit=1&limit=2", "limit", "parameter.repeated"},
		{"a;b", "query", "parameter.form"},
		{"state=%zz", "query", "parameter.form"},
		{strings.Join(many, "&"), "a", "parameter.unknown"},
	} {
		status, found := strangers(t, http.MethodGet, "/instances", c.query)
		if status != http.StatusBadRequest || found[c.field] != c.code || len(found) > 16 {
			t.Errorf("%.40s: status %d, %v", c.query, status, found)
		}
	}
	if status, found := strangers(t, http.MethodGet, "/instances", "label=a&label=b&limit=3"); status != http.StatusOK {
		t.Errorf("status %d, %v", status, found)
	}
}
