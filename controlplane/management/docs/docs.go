// Package docs renders an OpenAPI document as one page that a browser shows
// without the internet: no script, style or font comes from anywhere else, and
// without scripts everything but the search is there as well.
//
// It knows OpenAPI 3.0 as far as the management API uses it, and nothing of
// what the API is about.
package docs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"strings"
)

//go:embed page.html docs.css docs.js
var files embed.FS

// policy lets the page load what this package serves and nothing else.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

type file struct {
	media, etag string
	data        []byte
}

// New returns a handler that serves the page of a document at base, such as
// "/api/v1/docs", and its style and script below. The document itself is
// linked to at source.
func New(document []byte, base, source string) (http.Handler, error) {
	doc, err := read(document)
	if err != nil {
		return nil, fmt.Errorf("cannot render the OpenAPI document: %w", err)
	}
	t, err := template.New("page.html").Funcs(template.FuncMap{"prose": prose, "lower": strings.ToLower}).ParseFS(files, "page.html")
	if err != nil {
		return nil, fmt.Errorf("cannot read the page's template: %w", err)
	}
	served := map[string]file{}
	for name, media := range map[string]string{"docs.css": "text/css; charset=utf-8", "docs.js": "text/javascript; charset=utf-8"} {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %q: %w", name, err)
		}
		served[base+"/"+name] = newFile(media, data)
	}
	var page bytes.Buffer
	err = t.Execute(&page, struct {
		*model
		Base, Source string
	}{doc, base, source})
	if err != nil {
		return nil, fmt.Errorf("cannot render the OpenAPI document: %w", err)
	}
	served[base] = newFile("text/html; charset=utf-8", page.Bytes())
	served[base+"/"] = served[base]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r, served) }), nil
}

func newFile(media string, data []byte) file {
	sum := sha256.Sum256(data)
	return file{media: media, data: data, etag: `"` + hex.EncodeToString(sum[:8]) + `"`}
}

func serve(w http.ResponseWriter, r *http.Request, served map[string]file) {
	f, ok := served[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // asked for again after an upgrade
	h.Set("ETag", f.etag)
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.media)
	_, _ = w.Write(f.data) // the client has gone, nobody is left to tell
}

// prose shows a description: paragraphs and `code` of Markdown are kept, all
// else is text.
func prose(s string) template.HTML {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.TrimSpace(paragraph) == "" {
			continue
		}
		b.WriteString("<p>")
		for i, part := range strings.Split(paragraph, "`") {
			text := template.HTMLEscapeString(part)
			if i%2 == 1 {
				text = "<code>" + text + "</code>"
			}
			b.WriteString(text)
		}
		b.WriteString("</p>")
	}
	return template.HTML(b.String()) //nolint:gosec // every piece was escaped
}
