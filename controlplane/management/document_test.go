package management_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

func document(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(managementv1.Document)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// conforms checks an answer against the document.
func conforms(t testing.TB, doc *openapi3.T, template, method string, res *http.Response, body []byte) {
	t.Helper()
	item := doc.Paths.Value(template)
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: httptest.NewRequest(method, "http://sandbox.test/", nil),
			Route:   &routers.Route{Spec: doc, PathItem: item, Method: method, Operation: item.GetOperation(method)},
		},
		Status: res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if err := openapi3filter.ValidateResponse(t.Context(), in); err != nil {
		t.Errorf("%s %s: answer %d does not conform: %v\n%s", method, template, res.StatusCode, err, body)
	}
}

func init() {
	// Formats that the document uses and the validator does not know itself.
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.PlainBodyDecoder)
}

func fill(template string) string {
	return strings.NewReplacer("{ref}", "demo", "{id}", operationID, "{name}", "minimal").Replace(template)
}

// bodies are those of the requests that have one, by operation.
func bodies() map[string]struct{ media, body string } {
	return map[string]struct{ media, body string }{
		"createInstance":  {"application/json", `{"loadout":{"name":"minimal"},"labels":{"a":"b"},"env":{"K":"v"}}`},
		"putFiles":        {"application/x-tar", "not looked at here"},
		"updateInstance":  {"application/merge-patch+json", `{"labels":{"a":"b","team":null}}`},
		"renewInstance":   {"application/json", `{"ttl":"4h"}`},
		"validateLoadout": {"application/json", `{"name":"minimal"}`},
	}
}

// TestEveryRouteIsServed asks for everything in the document and checks every
// answer against it, and no route answers a method that it does not have.
func TestEveryRouteIsServed(t *testing.T) {
	doc := document(t)
	s := serve(t, &fakeFleet{})
	for template, item := range doc.Paths.Map() {
		operations := item.Operations()
		for method, op := range operations {
			t.Run(op.OperationID, func(t *testing.T) {
				url := s.URL + managementv1.BasePath + fill(template)
				if op.OperationID == "putFiles" {
					url += "?path=/workspace"
				}
				in := bodies()[op.OperationID]
				res, body := do(t, method, url, in.media, in.body)
				if res.StatusCode >= 400 {
					t.Fatalf("%s %s: status %d: %s", method, url, res.StatusCode, body)
				}
				conforms(t, doc, template, method, res, body)
			})
		}
		t.Run("wrong method "+template, func(t *testing.T) {
			res, body := do(t, http.MethodTrace, s.URL+managementv1.BasePath+fill(template), "", "")
			if res.StatusCode != http.StatusMethodNotAllowed {
				t.Fatalf("TRACE %s: status %d: %s", template, res.StatusCode, body)
			}
			want := slices.Sorted(maps.Keys(operations))
			got := strings.Split(res.Header.Get("Allow"), ", ")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("Allow is %q, want %q", got, want)
			}
			for method := range operations {
				conforms(t, doc, template, method, res, body)
			}
		})
	}
}

// TestDocumentIsServed wants the document itself, and that every operation
// in it has an id, says how it fails and what it needs.
func TestDocumentIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	management.Document().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), managementv1.Document) {
		t.Fatalf("status %d, %d bytes, want the document", w.Code, w.Body.Len())
	}
	for template, item := range document(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || op.Summary == "" || len(op.Tags) != 1 || op.Responses.Default() == nil {
				t.Errorf("%s %s lacks an id, a summary, a tag or a default answer", method, template)
			}
			if method == http.MethodGet || method == http.MethodPut {
				continue
			}
			if op.Parameters.GetByInAndName("header", "Idempotency-Key") == nil {
				t.Errorf("%s %s takes no Idempotency-Key", method, template)
			}
		}
	}
}

// TestScopeOfEveryOperation asks for every operation with every scope, and
// wants the document to tell the truth about it.
func TestScopeOfEveryOperation(t *testing.T) {
	api := management.New(config(&fakeFleet{}, nil))
	all := []auth.Scope{auth.ScopeFleetRead, auth.ScopeFleetWrite, auth.ScopeInvoke, auth.ScopeMetricsRead, auth.ScopeAdmin}
	for template, item := range document(t).Paths.Map() {
		for method, op := range item.Operations() {
			said, _ := op.Extensions["x-scope"].(string)
			if !slices.Contains(all, auth.Scope(said)) {
				t.Errorf("%s: x-scope is %q", op.OperationID, said)
			}
			for _, scope := range all {
				w := httptest.NewRecorder()
				as(scope, api).ServeHTTP(w, httptest.NewRequest(method, managementv1.BasePath+fill(template), nil))
				allowed := scope == auth.ScopeAdmin || scope == auth.Scope(said)
				if (w.Code != http.StatusForbidden) != allowed {
					t.Errorf("%s with scope %q: status %d, x-scope is %q", op.OperationID, scope, w.Code, said)
				}
			}
		}
	}
}

// TestEveryRouteKeepsTenantsApart: with the id of another tenant's instance or
// operation every route answers as if there were none, even to an
// administrator, and without a token every route answers 401 and nothing else.
func TestEveryRouteKeepsTenantsApart(t *testing.T) {
	f := &fakeFleet{
		GetFn: func(context.Context, string) (fleet.View, error) {
			v := sampleView()
			v.Tenant = "default"
			return v, nil
		},
		OperationFn: func(context.Context, string) (fleet.Operation, error) {
			op := sampleOperation()
			op.Tenant = "default"
			return op, nil
		},
	}
	api := management.New(config(f, nil))
	stranger := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := auth.Principal{Name: "stranger", Tenant: "other", Scopes: []auth.Scope{auth.ScopeAdmin}}
		api.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	})
	tried := 0
	for template, item := range document(t).Paths.Map() {
		for method, op := range item.Operations() {
			request := func() *http.Request {
				in := bodies()[op.OperationID]
				r := httptest.NewRequest(method, managementv1.BasePath+fill(template), strings.NewReader(in.body))
				if in.media != "" {
					r.Header.Set("Content-Type", in.media)
				}
				if op.OperationID == "putFiles" {
					r.URL.RawQuery = "path=/workspace"
				}
				return r
			}
			w := httptest.NewRecorder()
			if api.ServeHTTP(w, request()); w.Code != http.StatusUnauthorized {
				t.Errorf("%s without a token: status %d", op.OperationID, w.Code)
			}
			owned := strings.Contains(template, "{ref}") || strings.HasPrefix(template, "/operations/")
			if !owned {
				continue
			}
			tried++
			w = httptest.NewRecorder()
			if stranger.ServeHTTP(w, request()); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), "blue") {
				t.Errorf("%s with an id of another tenant: status %d: %s", op.OperationID, w.Code, w.Body)
			}
		}
	}
	if tried < 15 {
		t.Errorf("only %d routes were tried", tried)
	}
}

func do(t testing.TB, method, url, media, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	return roundTrip(t, req)
}

func roundTrip(t testing.TB, req *http.Request) (*http.Response, []byte) {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, got
}

// FuzzCreate wants an answer that conforms and is no server error, whatever
// the body.
func FuzzCreate(f *testing.F) {
	for _, seed := range []string{
		`{"loadout":{"name":"minimal"}}`, `{"loadout":{"name":"x","content":"a: b","layers":{"l":"c"}},"name":"ab"}`,
		``, `null`, `[]`, `{"loadout":1}`, `{"loadout":{"name":"m"}} trailing`, `{"nope":1}`, "\xff", `{"env":{"A=":""},"loadout":{"name":""}}`,
	} {
		f.Add(seed)
	}
	doc := document(f)
	h := admin(management.New(config(&fakeFleet{}, nil)))
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		res := w.Result()
		defer res.Body.Close()
		if res.StatusCode >= 500 {
			t.Fatalf("status %d: %s", res.StatusCode, w.Body)
		}
		conforms(t, doc, "/instances", http.MethodPost, res, w.Body.Bytes())
	})
}
