package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
)

const (
	// pace is how long a client may keep a request's body from moving.
	pace = time.Minute
	// patience is how long it may take to read a piece of the answer. It is
	// longer than pace, since the server waits for a body before it answers.
	patience = 2 * time.Minute
)

// steady bounds what one connection may cost before anybody knows who it is
// of: a body that stops coming is given up, and so is an answer that is not
// read, for it lies in memory until then. A deadline for whole requests would
// not do, for uploads and streams may take hours.
func steady(pace, patience time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = steadyWriter{ResponseWriter: w, rc: http.NewResponseController(w), patience: patience}
		if r.Body != nil && r.Body != http.NoBody {
			b := &steadyBody{ReadCloser: r.Body, rc: http.NewResponseController(w), pace: pace}
			// It holds also for what the server reads on its own of a body that
			// its handler did not want.
			b.expect()
			r.Body = b
		}
		next.ServeHTTP(w, r)
	})
}

type steadyBody struct {
	io.ReadCloser
	rc   *http.ResponseController
	pace time.Duration
}

func (b *steadyBody) Read(p []byte) (int, error) {
	b.expect()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// Nothing more is awaited: the answer may be a stream that lasts.
		_ = b.rc.SetReadDeadline(time.Time{}) // a writer without deadlines needs none
	}
	return n, err
}

func (b *steadyBody) expect() { _ = b.rc.SetReadDeadline(time.Now().Add(b.pace)) }

// steadyWriter gives each piece of an answer a time of its own. The last
// piece's holds for what the server still has in its buffer, too.
type steadyWriter struct {
	http.ResponseWriter
	rc       *http.ResponseController
	patience time.Duration
}

func (w steadyWriter) Write(p []byte) (int, error) {
	w.expect()
	return w.ResponseWriter.Write(p)
}

// WriteHeader is the whole of an answer that has no body.
func (w steadyWriter) WriteHeader(status int) {
	w.expect()
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w steadyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w steadyWriter) expect() { _ = w.rc.SetWriteDeadline(time.Now().Add(w.patience)) }

// plain refuses paths with separators or ends that only some readers see, so
// that what a proxy lets pass is what is served here. The domain is that of
// virtual hosts.
func plain(domain string, next http.Handler) http.Handler {
	agents := a2a.NewRefusals(domain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.ToLower(r.URL.EscapedPath())
		for _, hidden := range []string{"%2f", "%5c", "%00"} {
			if strings.Contains(path, hidden) {
				if agents.Concern(r) {
					agents.BadPath(w, r, pathCause+" ("+pathHint+")")
				} else {
					refusePath(w)
				}
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

const (
	pathCause = "no path here has an escaped separator"
	pathHint  = "send ids and names as they are"
)

func refusePath(w http.ResponseWriter) {
	refuse(w, http.StatusBadRequest, "request.path", "Path is not valid", pathCause, pathHint)
}

// refuse answers with a problem document, as every surface but A2A does.
func refuse(w http.ResponseWriter, status int, code, title, cause, hint string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(managementv1.Problem{ // the client has gone: nobody to tell
		Type: managementv1.ProblemType + code, Title: title, Status: status, Code: code,
		Blame: managementv1.BlameCaller, Cause: cause, Remediation: hint, Detail: cause + " (" + hint + ")",
	})
}
