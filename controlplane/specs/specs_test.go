package specs_test

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/net/html"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/specs"
)

func serve(t *testing.T, content fs.FS) func(method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	h, err := specs.New(content)
	if err != nil {
		t.Fatal(err)
	}
	return func(method, path string, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
}

var link = regexp.MustCompile(`\]\((/[^)]+)\)`)

// TestPublished: every identifier leads to a specification that names it, and
// every link in it to something that is there.
func TestPublished(t *testing.T) {
	do := serve(t, extensions.Schemas)
	for _, uri := range []string{extensions.Runtime, extensions.AdapterCommand, extensions.HITLPrompt, extensions.Idempotency} {
		path := strings.TrimPrefix(uri, "https://agentic-sandbox.aiwg.io")
		got := do(http.MethodGet, path)
		if got.Code != 200 || got.Header().Get("Content-Type") != "text/markdown; charset=utf-8" || !strings.Contains(got.Body.String(), uri) {
			t.Errorf("%s: %d %v", path, got.Code, got.Header())
		}
		links := link.FindAllStringSubmatch(got.Body.String(), -1)
		if len(links) == 0 {
			t.Errorf("%s links no schema", path)
		}
		for _, l := range links {
			if to := do(http.MethodGet, l[1]); to.Code != 200 {
				t.Errorf("%s links %s: %d", path, l[1], to.Code)
			}
		}
		page := do(http.MethodGet, path+"/", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
		if page.Header().Get("Content-Type") != "text/html; charset=utf-8" || page.Header().Get("Vary") != "Accept" {
			t.Errorf("%s as HTML: %v", path, page.Header())
		}
		wellFormed(t, path, page.Body.String())
		for _, left := range []string{"**", "](", "\n|", "\n#", "\n- ", "```"} {
			if strings.Contains(page.Body.String(), left) {
				t.Errorf("%s as HTML still has %q", path, left)
			}
		}
	}
}

// wellFormed wants every element closed, in order.
func wellFormed(t *testing.T, what, doc string) {
	t.Helper()
	var open []string
	z := html.NewTokenizer(strings.NewReader(doc))
	for {
		switch z.Next() {
		case html.StartTagToken:
			if name, _ := z.TagName(); string(name) != "meta" {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("%s: </%s> closes %v", what, name, open)
			}
			open = open[:len(open)-1]
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("%s: %v stay open", what, open)
			}
			return
		}
	}
}

// TestSchemas: every schema is one, has the identifier it is served at, and is
// linked from its specification.
func TestSchemas(t *testing.T) {
	do := serve(t, extensions.Schemas)
	c := jsonschema.NewCompiler()
	var ids []string
	err := fs.WalkDir(extensions.Schemas, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".json") {
			return err
		}
		got := do(http.MethodGet, "/extensions/"+name)
		if got.Code != 200 || got.Header().Get("Content-Type") != "application/schema+json" {
			t.Errorf("%s: %d %v", name, got.Code, got.Header())
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(got.Body.Bytes()))
		if err != nil {
			return err
		}
		id := "https://agentic-sandbox.aiwg.io/extensions/" + name
		if m, ok := doc.(map[string]any); !ok || m["$id"] != id {
			t.Errorf("%s names itself %v", name, m["$id"])
		}
		spec := do(http.MethodGet, "/extensions/"+name[:strings.LastIndexByte(name, '/')])
		if !strings.Contains(spec.Body.String(), "(/extensions/"+name+")") {
			t.Errorf("%s is not linked", name)
		}
		ids = append(ids, id)
		return c.AddResource(id, doc)
	})
	if err != nil || len(ids) < 8 {
		t.Fatal(len(ids), err)
	}
	for _, id := range ids {
		if _, err := c.Compile(id); err != nil {
			t.Error(err)
		}
	}
}

func TestNegotiation(t *testing.T) {
	do := serve(t, extensions.Schemas)
	const path = "/extensions/runtime/v1"
	for accept, want := range map[string]string{
		"": "text/markdown", "*/*": "text/markdown", "text/html": "text/html", "TEXT/HTML;level=1": "text/html",
		"text/html;q=0.5, text/markdown": "text/markdown", "text/markdown;q=0.2, text/html;q=0.3": "text/html",
		"text/html;q=0": "text/markdown", "text/html;q=x": "text/markdown", "text/plain, text/html": "text/markdown", ",,;;": "text/markdown",
	} {
		got := do(http.MethodGet, path, "Accept", accept)
		if media, _, _ := strings.Cut(got.Header().Get("Content-Type"), ";"); media != want {
			t.Errorf("Accept: %s gives %s", accept, media)
		}
	}
	markdown, page := do(http.MethodGet, path), do(http.MethodGet, path, "Accept", "text/html")
	etag := markdown.Header().Get("ETag")
	if etag == "" || etag == page.Header().Get("ETag") || !strings.HasPrefix(markdown.Header().Get("Cache-Control"), "public, max-age=") {
		t.Errorf("headers are %v and %v", markdown.Header(), page.Header())
	}
	if got := do(http.MethodGet, path, "If-None-Match", etag); got.Code != http.StatusNotModified || got.Body.Len() != 0 {
		t.Errorf("If-None-Match: %d", got.Code)
	}
	if got := do(http.MethodGet, path, "If-None-Match", etag, "Accept", "text/html"); got.Code != http.StatusOK {
		t.Errorf("If-None-Match of the other form: %d", got.Code)
	}
	if got := do(http.MethodHead, path); got.Code != 200 || got.Body.Len() != 0 || got.Header().Get("Content-Length") != strconv.Itoa(markdown.Body.Len()) {
		t.Errorf("HEAD: %d %v", got.Code, got.Header())
	}
	if got := do(http.MethodPost, path); got.Code != http.StatusMethodNotAllowed || got.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", got.Code)
	}
	for _, nothing := range []string{"/extensions/", "/extensions/runtime", "/extensions/runtime/v2", "/extensions/runtime/v1/../v1", "/extensions/runtime/v1/extensions.go"} {
		if got := do(http.MethodGet, nothing); got.Code != http.StatusNotFound {
			t.Errorf("%s: %d", nothing, got.Code)
		}
	}
}

func TestMarkdown(t *testing.T) {
	do := serve(t, fstest.MapFS{"x/v1/spec.md": {Data: []byte("# A `b` & c\n\nText <i> with `a|<b>` and **bold `x`** and [a `link`](/y?a&b)\ngoes on.\n" +
		"- one\n  and on\n- two\n\n1. first\n\n```json\n{\"a\": \"**<b>**\"}\n```\n| h | i |\n|---|---|\n| 1 | |\n\n## D e\n```\nopen")}})
	got := do(http.MethodGet, "/extensions/x/v1", "Accept", "text/html").Body.String()
	_, body, _ := strings.Cut(got, "<body>\n")
	want := `<h1 id="a-b--c">A <code>b</code> &amp; c</h1>
<p>Text &lt;i&gt; with <code>a|&lt;b&gt;</code> and <strong>bold <code>x</code></strong> and <a href="/y?a&amp;b">a <code>link</code></a>
goes on.</p>
<ul>
<li>one
and on</li>
<li>two</li>
</ul>
<ol>
<li>first</li>
</ol>
<pre><code>{&#34;a&#34;: &#34;**&lt;b&gt;**&#34;}
</code></pre>
<table>
<tr><th>h</th><th>i</th></tr>
<tr><td>1</td><td></td></tr>
</table>
<h2 id="d-e">D e</h2>
<pre><code>open
</code></pre>
</body>
</html>
`
	if body != want {
		t.Errorf("body is\n%s\nwant\n%s", body, want)
	}
	wellFormed(t, "the test", got)
}
