package management

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// etag changes with every change of an instance.
func etag(v fleet.View) string {
	return strconv.Quote(string(v.ID) + "." + strconv.FormatInt(v.Generation, 10))
}

// etagOfPage changes with every change of an instance on the page, and with
// which ones are on it.
func etagOfPage(p fleet.Page, base string) string {
	sum := sha256.New()
	for _, v := range p.Views {
		_, _ = sum.Write([]byte(etag(v)))
	}
	_, _ = sum.Write([]byte(string(p.Next) + " " + base))
	return `W/"` + base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:16]) + `"`
}

// maxTags bounds a header with ETags, in bytes.
const maxTags = 512

func checkTags(header string, tags *string) error {
	if tags != nil && len(*tags) > maxTags {
		return invalid{{Field: header, Code: "parameter.range", Message: "want at most 512 bytes"}}.or(codeInvalidParameter)
	}
	return nil
}

// unchanged answers 304 when the client has the state that tag names.
func unchanged(w http.ResponseWriter, ifNoneMatch *string, tag string) bool {
	w.Header().Set("ETag", tag)
	if ifNoneMatch == nil || !matchesETag(*ifNoneMatch, tag) {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}

// matchesETag compares as If-None-Match does (RFC 9110, 13.1.2): weakly.
func matchesETag(header, tag string) bool {
	tag = strings.TrimPrefix(tag, "W/")
	for one := range strings.SplitSeq(header, ",") {
		one = strings.TrimSpace(one)
		if one == "*" || strings.TrimPrefix(one, "W/") == tag {
			return true
		}
	}
	return false
}

// ifMatch holds an instance against If-Match (RFC 9110, 13.1.1), strongly. It
// returns the generation that must still be the present one when the change
// is made, 0 for any.
func ifMatch(header *string, v fleet.View) (generation int64, err error) {
	if header == nil {
		return 0, nil
	}
	if err := checkTags("If-Match", header); err != nil {
		return 0, err
	}
	for one := range strings.SplitSeq(*header, ",") {
		switch strings.TrimSpace(one) {
		case "*":
			return 0, nil
		case etag(v):
			return v.Generation, nil
		}
	}
	return 0, callerFault(codeChanged, "get it again and decide anew",
		"instance %q is not in the state that If-Match names", v.Name)
}
