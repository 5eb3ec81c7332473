// Package images names what machines boot from. A machine image is a
// manifest: a root disk, a kernel and an initramfs, each by its sha256. The
// digest of the root disk is the image's identity: it is what AgentCards
// publish as runtime/v1 image_ref.
//
// The package is pure; images/store keeps files, images/build makes them.
package images

import (
	"fmt"
	"regexp"
	"strings"
)

// Digest is the lower-case hexadecimal SHA-256 of a file, without a prefix.
type Digest string

var digestRule = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ParseDigest accepts 64 lower-case hexadecimal digits, with or without the
// prefix "sha256:".
func ParseDigest(s string) (Digest, error) {
	d := strings.TrimPrefix(s, "sha256:")
	if !digestRule.MatchString(d) {
		return "", fmt.Errorf("cannot parse digest %q: want sha256: and 64 lower-case hexadecimal digits", s)
	}
	return Digest(d), nil
}

// String returns the digest with its algorithm, "sha256:…".
func (d Digest) String() string { return "sha256:" + string(d) }

var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// Ref names an image, and pins it when Digest is set.
type Ref struct {
	Name   string
	Digest Digest
}

// ParseRef accepts "name", "name@sha256:<64 hex>" and
// "qcow2://images/<name>@sha256:<64 hex>".
func ParseRef(s string) (Ref, error) {
	rest := strings.TrimPrefix(s, "qcow2://images/")
	name, digest, pinned := strings.Cut(rest, "@")
	if !nameRule.MatchString(name) {
		return Ref{}, fmt.Errorf("cannot parse image reference %q: "+
			"the name must be 1 to 128 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit", s)
	}
	if !pinned {
		if rest != s {
			return Ref{}, fmt.Errorf("cannot parse image reference %q: a qcow2:// reference must be pinned with @sha256:<digest>", s)
		}
		return Ref{Name: name}, nil
	}
	if !strings.HasPrefix(digest, "sha256:") {
		return Ref{}, fmt.Errorf("cannot parse image reference %q: after @ want sha256: and 64 hexadecimal digits", s)
	}
	d, err := ParseDigest(digest)
	if err != nil {
		return Ref{}, fmt.Errorf("cannot parse image reference %q: %w", s, err)
	}
	return Ref{Name: name, Digest: d}, nil
}

// String returns the shortest form that ParseRef reads back.
func (r Ref) String() string {
	if r.Digest == "" {
		return r.Name
	}
	return r.Name + "@" + r.Digest.String()
}

// URL returns the published form of a pinned reference,
// "qcow2://images/<name>@sha256:<digest>" (RUNTIME-CONF-005).
func (r Ref) URL() string {
	return "qcow2://images/" + r.Name + "@" + r.Digest.String()
}
