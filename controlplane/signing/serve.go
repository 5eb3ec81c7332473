package signing

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"time"
)

// ServeHTTP serves the key set, to anybody: what verifies is no secret.
// It answers to GET and HEAD, with an ETag.
func (k *Keys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this address takes only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	set, err := k.Set()
	if err != nil {
		k.log.ErrorContext(r.Context(), "cannot serve the key set", "error", err)
		http.Error(w, "the key set cannot be made", http.StatusInternalServerError)
		return
	}
	sum := sha256.Sum256(set)
	h := w.Header()
	h.Set("ETag", `"`+b64(sum[:])+`"`)
	h.Set("Content-Type", "application/jwk-set+json")
	h.Set("Cache-Control", "public, max-age=300") // a rotation is seen by all within minutes
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(set)) // honours If-None-Match and HEAD
}
