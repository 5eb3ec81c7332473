package loadouts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Bounds of one document. Aliases are followed, so what counts is the number
// of values after following them.
const (
	MaxSize    = 256 << 10 // bytes
	maxValues  = 10_000
	maxNesting = 16
	maxExtends = 16
)

// Layer is one document as written: every field may be missing.
type Layer struct {
	// File is the name that Parse was given.
	File string
	Kind Kind
	Name string
	// Extends are the documents this one builds on, in order.
	Extends []string
	// Warnings are no errors; an operator should see them.
	Warnings Errors

	root *value
}

// Parse reads one document. The name is for messages only. An error is of
// type Errors and holds everything that is wrong with the document.
func Parse(name string, data []byte) (*Layer, error) {
	r := reader{file: name}
	root := r.document(data)
	if len(r.errs) > 0 {
		return nil, r.errs.sorted()
	}
	l := &Layer{
		File: name,
		Kind: Kind(root.at("kind").text),
		Name: root.at("metadata", "name").text,
		root: root,
	}
	if extends := root.at("extends"); extends != nil {
		l.Extends = extends.texts()
	}
	l.Warnings = secretWarnings(root.at("env"))
	return l, nil
}

// reader turns one document into values, and notes what breaks a rule.
type reader struct {
	file   string
	errs   Errors
	values int
	full   bool // a bound is reached, nothing more is read
}

func (r *reader) fail(n *yaml.Node, path, rule string) {
	r.errs = append(r.errs, Error{Pos: r.pos(n), Path: path, Rule: rule})
	r.full = r.full || len(r.errs) >= 2*maxErrors
}

func (r *reader) failAt(line, column int, rule string) {
	r.errs = append(r.errs, Error{Pos: Pos{r.file, line, column}, Rule: rule})
}

func (r *reader) pos(n *yaml.Node) Pos {
	return Pos{File: r.file, Line: max(n.Line, 1), Column: max(n.Column, 1)}
}

// document reads the only document in data.
func (r *reader) document(data []byte) *value {
	if len(data) > MaxSize {
		r.failAt(1, 1, fmt.Sprintf("want at most %s, not %d bytes", FormatSize(MaxSize), len(data)))
		return nil
	}
	if line, column, ok := notUTF8(data); ok {
		r.failAt(line, column, "want UTF-8 text")
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		r.failAt(1, 1, "the document is empty: want apiVersion: "+APIVersion)
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		r.fail(&second, "", "want one document only")
	case !errors.Is(err, io.EOF):
		r.syntax(data, err)
	}
	if len(first.Content) == 0 {
		r.failAt(1, 1, "the document is empty: want apiVersion: "+APIVersion)
		return nil
	}
	return r.read(first.Content[0], topRule, "", 0)
}

func notUTF8(data []byte) (line, column int, found bool) {
	line, column = 1, 1
	for len(data) > 0 {
		c, n := utf8.DecodeRune(data)
		if c == utf8.RuneError && n == 1 {
			return line, column, true
		}
		column++
		if c == '\n' {
			line, column = line+1, 1
		}
		data = data[n:]
	}
	return 0, 0, false
}

// read turns a node into a value by its rule. It returns nil for what cannot
// be used; the reason has been noted.
func (r *reader) read(n *yaml.Node, want rule, path string, depth int) *value {
	if r.full {
		return nil
	}
	if r.values++; r.values > maxValues {
		r.full = true
		r.fail(n, path, fmt.Sprintf("want at most %d values in one document, aliases followed", maxValues))
		return nil
	}
	if depth > maxNesting {
		r.fail(n, path, fmt.Sprintf("want at most %d levels", maxNesting))
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return r.read(n.Alias, want, path, depth+1)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.fail(n, path, "want no tag, not "+quote(n.Tag))
		return nil
	}
	switch want.form {
	case scalar:
		return r.scalar(n, want, path)
	case textList, objectList:
		return r.list(n, want, path, depth)
	case textMap:
		return r.textMap(n, want, path, depth)
	case object:
		return r.object(n, want, path, depth)
	}
	panic(fmt.Sprintf("loadouts: rule of unknown form %d", want.form))
}

func (r *reader) scalar(n *yaml.Node, want rule, path string) *value {
	if n.Kind != yaml.ScalarNode {
		r.fail(n, path, "want one value, not "+shape(n))
		return nil
	}
	switch n.ShortTag() {
	case "!!null":
		r.fail(n, path, "want a value, or leave the field out")
		return nil
	case "!!bool":
		if !want.yesNo { // as text it would be ambiguous
			r.fail(n, path, "want text: write it in quotes")
			return nil
		}
	}
	if broken := want.check(n.Value); broken != "" {
		if !want.private {
			broken += ", not " + quote(n.Value)
		}
		r.fail(n, path, broken)
		return nil
	}
	return &value{pos: r.pos(n), text: n.Value}
}

func (r *reader) list(n *yaml.Node, want rule, path string, depth int) *value {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, path, "want a list, not "+shape(n))
		return nil
	}
	item := want
	item.form = scalar
	if want.form == objectList {
		item.form = object
	}
	v := &value{pos: r.pos(n)}
	for i, c := range n.Content {
		if one := r.read(c, item, fmt.Sprintf("%s[%d]", path, i), depth+1); one != nil {
			v.list = append(v.list, one)
		}
	}
	if want.form == textList {
		v.list = union(nil, v.list)
	}
	r.limit(v, want, path)
	return v
}

func (r *reader) textMap(n *yaml.Node, want rule, path string, depth int) *value {
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "want a map, not "+shape(n))
		return nil
	}
	item := want
	item.form = scalar
	v := &value{pos: r.pos(n), fields: map[string]*value{}}
	for key, val := range r.pairs(n, path) {
		if broken := want.key(key.Value); broken != "" {
			r.fail(key, path, broken+", not "+quote(key.Value))
			continue
		}
		if one := r.read(val, item, join(path, key.Value), depth+1); one != nil {
			v.fields[key.Value] = one
		}
	}
	r.limit(v, want, path)
	return v
}

func (r *reader) object(n *yaml.Node, want rule, path string, depth int) *value {
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "want a map, not "+shape(n))
		return nil
	}
	v := &value{pos: r.pos(n), fields: map[string]*value{}}
	present := map[string]bool{}
	for key, val := range r.pairs(n, path) {
		present[key.Value] = true
		field, known := want.fields[key.Value]
		if !known {
			r.unknown(key, want, path)
			continue
		}
		if one := r.read(val, field, join(path, key.Value), depth+1); one != nil {
			v.fields[key.Value] = one
		}
	}
	for _, name := range want.required {
		if !present[name] {
			r.fail(n, join(path, name), "want this field")
		}
	}
	return v
}

func (r *reader) unknown(key *yaml.Node, want rule, path string) {
	if slices.Contains(want.later, key.Value) {
		r.fail(key, join(path, key.Value), "this version does not support this field of "+APIVersion)
		return
	}
	near := didYouMean(key.Value, append(names(want.fields), want.later...))
	r.fail(key, path, "unknown field "+quote(key.Value)+near)
}

// limit holds the number of items.
func (r *reader) limit(v *value, want rule, path string) {
	if broken := v.tooMany(want); broken != "" {
		r.errs = append(r.errs, Error{Pos: v.pos, Path: path, Rule: broken})
	}
}

// pairs gives the keys and values of a map, and refuses keys that are no
// plain text or stand twice.
func (r *reader) pairs(n *yaml.Node, path string) func(func(key, val *yaml.Node) bool) {
	return func(yield func(key, val *yaml.Node) bool) {
		seen := map[string]*yaml.Node{}
		for i := 0; i+1 < len(n.Content) && !r.full; i += 2 {
			key := n.Content[i]
			switch {
			case key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0:
				r.fail(key, path, "want a plain key")
				continue
			case key.ShortTag() == "!!merge":
				r.fail(key, path, "merge keys are not supported: use extends")
				continue
			}
			if first, twice := seen[key.Value]; twice {
				r.fail(key, path, fmt.Sprintf("%s stands twice, first at line %d", quote(key.Value), first.Line))
				continue
			}
			seen[key.Value] = key
			if !yield(key, n.Content[i+1]) {
				return
			}
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func shape(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.ShortTag() == "!!null" {
		return "nothing"
	}
	return "one value"
}

// secretName finds variables that look like credentials.
var secretName = regexp.MustCompile(`(?i)(^|_)(token|secret|password|passwd|api_?key|private_?key|access_?key|credentials?)(_|$)`)

func secretWarnings(env *value) Errors {
	if env == nil {
		return nil
	}
	var found Errors
	for _, name := range names(env.fields) {
		if v := env.fields[name]; v.text != "" && secretName.MatchString(name) {
			found = append(found, Error{Pos: v.pos, Path: join("env", name),
				Rule: "looks like a secret; loadouts are stored and shown in the clear"})
		}
	}
	return found.sorted()
}
