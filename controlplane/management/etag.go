package management

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// etag changes with every change of an instance that is shown, also of its
// health, which is not stored and so has no generation.
func etag(v fleet.View) string {
	tag := version(v)
	if f := v.Health; f != nil {
		sum := sha256.Sum256([]byte(strings.Join([]string{f.Code, f.Error(), f.Console}, "\x00")))
		tag += "." + hex.EncodeToString(sum[:4])
	}
	return strconv.Quote(tag)
}

// version names what callers can change of an instance, as it is now.
func version(v fleet.View) string { return string(v.ID) + "." + strconv.FormatInt(v.Generation, 10) }

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

// tagEnd is what may follow the version in an ETag.
var tagEnd = regexp.MustCompile(`^(\.[0-9a-f]{8})?"$`)

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
// is made, 0 for any. What became of its health is no change that somebody made,
// so it stands in nobody's way.
func ifMatch(header *string, v fleet.View) (generation int64, err error) {
	if header == nil {
		return 0, nil
	}
	if err := checkTags("If-Match", header); err != nil {
		return 0, err
	}
	for one := range strings.SplitSeq(*header, ",") {
		one = strings.TrimSpace(one)
		if one == "*" {
			return 0, nil
		}
		if rest, ok := strings.CutPrefix(one, `"`+version(v)); ok && tagEnd.MatchString(rest) {
			return v.Generation, nil
		}
	}
	return 0, callerFault(codeChanged, "get it again and decide anew",
		"instance %q is not in the state that If-Match names", v.Name)
}
