package once

import (
	"bytes"
	"net/http"
	"slices"
)

// kept are the headers that belong to an answer and are sent again with it.
func kept() []string { return []string{"Content-Type", "Location", "ETag", "Cache-Control", "Allow"} }

// buffer holds an answer back until it is stored. Its header is that of the
// real writer, so that what stands there already, such as the request's own
// name, is seen and stays.
type buffer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (b *buffer) Header() http.Header { return b.header }

func (b *buffer) WriteHeader(status int) {
	if b.status == 0 && status >= http.StatusOK {
		b.status = status
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	return b.body.Write(p)
}

func (b *buffer) answer() Answer {
	a := Answer{Status: max(b.status, http.StatusOK), Header: map[string]string{}, Body: b.body.Bytes()}
	for name := range b.header {
		if slices.Contains(kept(), name) {
			a.Header[name] = b.header.Get(name)
		}
	}
	return a
}

// send writes the whole answer.
func (a Answer) send(w http.ResponseWriter) {
	for name, value := range a.Header {
		if slices.Contains(kept(), http.CanonicalHeaderKey(name)) {
			w.Header().Set(name, value)
		}
	}
	a.sendBody(w)
}

// sendBody writes what comes after the headers.
func (a Answer) sendBody(w http.ResponseWriter) {
	w.WriteHeader(a.Status)
	if len(a.Body) > 0 {
		_, _ = w.Write(a.Body) // the client has gone: the next request will be told
	}
}
