package loadouts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Bounds of what one loadout may be made of.
const (
	maxDepth     = 16
	maxDocuments = 64
)

// Lookup finds a document by the reference that a user or an extends list
// gives. The name it returns identifies the document (equal names are one
// document) and is what messages show. Its errors are wrapped, so that a
// caller can tell a missing document from an unreadable one.
type Lookup func(ref string) (data []byte, name string, err error)

// Source is one document that went into a loadout.
type Source struct {
	Name string `json:"name"`
	// SHA256 is the digest of the document's bytes, as "sha256:<hex>".
	SHA256 string `json:"sha256"`
}

// Resolved is a loadout and what it was made of.
type Resolved struct {
	Loadout
	// Sources are the documents in the order of merging, the loadout itself last.
	Sources []Source `json:"sources"`
	// Warnings are no errors; an operator should see them.
	Warnings Errors `json:"-"`

	hash string
}

// Hash identifies what the loadout means: "sha256:" and the digest of its
// canonical JSON, defaults included.
func (r *Resolved) Hash() string { return r.hash }

// Resolve reads the document that ref names and everything it extends, and
// combines them. An error is of type Errors when documents are at fault,
// unless ref itself was not found.
func Resolve(ref string, lookup Lookup) (*Resolved, error) {
	w := walker{lookup: lookup, done: map[string]bool{}}
	data, name, err := lookup(ref)
	if err != nil {
		return nil, fmt.Errorf("cannot read loadout %q: %w", clip(ref), err)
	}
	w.visit(data, name)
	if len(w.errs) > 0 {
		return nil, w.errs
	}
	loadout, err := Combine(w.layers...)
	if err != nil {
		return nil, err
	}
	hash, err := loadout.hash()
	if err != nil {
		return nil, err
	}
	r := &Resolved{Loadout: *loadout, Sources: w.sources, hash: hash}
	for _, l := range w.layers {
		r.Warnings = append(r.Warnings, l.Warnings...)
	}
	return r, nil
}

// walker collects documents, parents first.
type walker struct {
	lookup  Lookup
	chain   []string // names from the root to the document in hand
	done    map[string]bool
	layers  []*Layer
	sources []Source
	errs    Errors
}

func (w *walker) visit(data []byte, name string) {
	w.done[name] = true
	w.chain = append(w.chain, name)
	defer func() { w.chain = w.chain[:len(w.chain)-1] }()

	l, err := Parse(name, data)
	if err != nil {
		w.errs = append(w.errs, asErrors(err)...)
		return
	}
	for i, ref := range l.Extends {
		w.extend(l, i, ref)
	}
	sum := sha256.Sum256(data)
	w.layers = append(w.layers, l)
	w.sources = append(w.sources, Source{Name: name, SHA256: "sha256:" + hex.EncodeToString(sum[:])})
}

// extend visits one parent of l, unless that has happened already.
func (w *walker) extend(l *Layer, i int, ref string) {
	fail := func(rule string, err error) {
		w.errs = append(w.errs, Error{Pos: l.root.at("extends").list[i].pos,
			Path: fmt.Sprintf("extends[%d]", i), Rule: rule, Err: err})
	}
	data, name, err := w.lookup(ref)
	switch {
	case err != nil:
		fail(fmt.Sprintf("cannot read %q: %v", clip(ref), err), err)
	case slices.Contains(w.chain, name):
		from := slices.Index(w.chain, name)
		fail("documents extend one another in a circle: "+strings.Join(append(slices.Clone(w.chain[from:]), name), " → "), nil)
	case w.done[name]:
	case len(w.chain) >= maxDepth:
		fail(fmt.Sprintf("want at most %d documents one above the other", maxDepth), nil)
	case len(w.done) >= maxDocuments:
		fail(fmt.Sprintf("want at most %d documents in all", maxDocuments), nil)
	default:
		w.visit(data, name)
	}
}

func asErrors(err error) Errors {
	if errs, ok := err.(Errors); ok { //nolint:errorlint // Parse promises exactly this type
		return errs
	}
	return Errors{{Rule: err.Error(), Err: err}}
}
