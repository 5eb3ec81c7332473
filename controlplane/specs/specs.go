// Package specs serves the specifications of the extensions this system
// publishes, and their schemas, where the extensions' identifiers say they
// are: at /extensions/<name>/v<n>. They are public and the same for everybody.
//
// It knows no extension by name and nothing of what one is for.
package specs

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

// Prefix is what the paths served begin with.
const Prefix = "/extensions/"

const specFile = "spec.md"

// document is one representation of a resource.
type document struct {
	media string
	etag  string
	body  []byte
}

func newDocument(media string, body []byte) document {
	sum := sha256.Sum256(body)
	return document{media: media, etag: `"` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`, body: body}
}

// Handler serves content, which holds <name>/v<n>/spec.md and schemas beside
// it, below Prefix.
type Handler struct {
	// pages have two representations each, Markdown first; files have one.
	pages map[string][2]document
	files map[string]document
}

// New reads all of content.
func New(content fs.FS) (*Handler, error) {
	h := &Handler{pages: map[string][2]document{}, files: map[string]document{}}
	err := fs.WalkDir(content, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(content, name)
		if err != nil {
			return fmt.Errorf("cannot read %q: %w", name, err)
		}
		dir, file := path.Split(Prefix + name)
		switch {
		case file == specFile:
			markdown := newDocument("text/markdown; charset=utf-8", raw)
			h.files[Prefix+name] = markdown
			h.pages[strings.TrimSuffix(dir, "/")] = [2]document{markdown, newDocument("text/html; charset=utf-8", page(string(raw)))}
		case strings.HasSuffix(file, ".schema.json"):
			h.files[Prefix+name] = newDocument("application/schema+json", raw)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read specifications: %w", err)
	}
	return h, nil
}

// ServeHTTP answers GET and HEAD, with an ETag; a specification as HTML to
// those who prefer it, else as it was written, in Markdown.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	doc, ok := h.files[r.URL.Path]
	if both, isPage := h.pages[strings.TrimSuffix(r.URL.Path, "/")]; isPage {
		header.Set("Vary", "Accept")
		doc, ok = both[0], true
		if prefersHTML(r.Header.Values("Accept")) {
			doc = both[1]
		}
	}
	switch {
	case !ok:
		http.Error(w, "there is no specification at this address", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "this address takes only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	header.Set("Content-Type", doc.media)
	header.Set("ETag", doc.etag)
	header.Set("Cache-Control", "public, max-age=3600")
	header.Set("Access-Control-Allow-Origin", "*")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(doc.body)) // honours If-None-Match and HEAD
}

// prefersHTML reads an Accept header. What it does not name, and what it
// likes as much, is Markdown's.
func prefersHTML(accept []string) bool {
	html, markdown := -1.0, -1.0 // not named
	for _, line := range accept {
		for entry := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(entry, ";")
			q := quality(params)
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "text/html", "application/xhtml+xml":
				html = max(html, q)
			case "text/markdown", "text/plain":
				markdown = max(markdown, q)
			}
		}
	}
	return html > 0 && html > markdown
}

func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
			if q, err := strconv.ParseFloat(v, 64); err == nil && q >= 0 && q <= 1 {
				return q
			}
			return 0
		}
	}
	return 1
}
