package docs_test

import (
	"bytes"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/docs"
)

var update = flag.Bool("update", false, "rewrite the golden file")

const base = "/api/v1/docs"

func page(t *testing.T, document []byte, path string) *httptest.ResponseRecorder {
	t.Helper()
	h, err := docs.New(document, base, "/api/v1/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// TestPageHoldsEverything of the document.
func TestPageHoldsEverything(t *testing.T) {
	w := page(t, managementv1.Document, base)
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("status %d, %s", w.Code, w.Header().Get("Content-Type"))
	}
	html := w.Body.String()
	doc, err := openapi3.NewLoader().LoadFromData(managementv1.Document)
	if err != nil {
		t.Fatal(err)
	}
	has := func(what, text string) {
		if !strings.Contains(html, text) {
			t.Errorf("%s is missing: %s", what, text)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			article := regexp.MustCompile(`(?s)<article class="operation" id="` + op.OperationID + `".*?</article>`).FindString(html)
			for _, want := range []string{method, "/api/v1" + path, "scope " + op.Extensions["x-scope"].(string), "curl ", "Bearer $TOKEN"} {
				if !strings.Contains(article, want) {
					t.Errorf("%s lacks %q", op.OperationID, want)
				}
			}
			for _, p := range append(item.Parameters, op.Parameters...) {
				if !strings.Contains(article, "<code>"+p.Value.Name+"</code>") {
					t.Errorf("%s lacks its parameter %q", op.OperationID, p.Value.Name)
				}
			}
			for status := range op.Responses.Map() {
				if !strings.Contains(article, `<code class="status">`+status+"</code>") {
					t.Errorf("%s lacks its answer %s", op.OperationID, status)
				}
			}
		}
	}
	for name, s := range doc.Components.Schemas {
		has("schema", `id="schema-`+name+`"`)
		for property := range s.Value.Properties {
			has("property of "+name, "<code>"+property+"</code>")
		}
	}
	for _, link := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(html, -1) {
		has("target of a link", `id="`+link[1]+`"`)
	}
}

// TestPageStandsAlone: nothing comes from elsewhere, nothing stands in line,
// and the browser is told so.
func TestPageStandsAlone(t *testing.T) {
	w := page(t, managementv1.Document, base)
	csp := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("policy %q lacks %q", csp, want)
		}
	}
	if strings.Contains(csp, "unsafe") {
		t.Errorf("policy is %q", csp)
	}
	html := w.Body.String()
	for _, bad := range []string{"<script>", "style=", "<style", "onclick", `src="http`, `href="http`, "ZgotmplZ"} {
		if strings.Contains(html, bad) {
			t.Errorf("page holds %q", bad)
		}
	}
	for _, src := range regexp.MustCompile(`(?:src|<link[^>]*href)="([^"]+)"`).FindAllStringSubmatch(html, -1) {
		if f := page(t, managementv1.Document, src[1]); f.Code != http.StatusOK || f.Body.Len() == 0 {
			t.Errorf("%s: status %d", src[1], f.Code)
		}
	}
	if f := page(t, managementv1.Document, base+"/../x"); f.Code != http.StatusNotFound {
		t.Errorf("other path: status %d", f.Code)
	}
	tag := w.Header().Get("ETag")
	h, err := docs.New(managementv1.Document, base, "x")
	if err != nil || tag == "" {
		t.Fatalf("%v, ETag %q", err, tag)
	}
	again := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, base+"/docs.css", nil)
	h.ServeHTTP(again, r)
	r.Header.Set("If-None-Match", again.Header().Get("ETag"))
	again = httptest.NewRecorder()
	if h.ServeHTTP(again, r); again.Code != http.StatusNotModified {
		t.Errorf("same file: status %d", again.Code)
	}
}

// TestGolden shows a small document as a whole.
func TestGolden(t *testing.T) {
	document, err := os.ReadFile("testdata/small.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := page(t, document, base).Body.Bytes()
	const file = "testdata/small.html"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("page differs from %s (rewrite it with -update):\n%s", file, got)
	}
}

func TestDocumentsThatCannotBeShown(t *testing.T) {
	for _, document := range []string{"", "a: [", "openapi: 3.0.3\npaths: {/x: {get: {operationId: a, tags: [none]}}}"} {
		if _, err := docs.New([]byte(document), base, ""); err == nil {
			t.Errorf("%q is shown", document)
		}
	}
}
