package loadouts

import (
	"fmt"
	"maps"
)

// value is one place of a document that keeps to the rules: a text, a list or
// named fields. Values are never changed once read; merging makes new ones
// that share the old.
type value struct {
	pos    Pos
	text   string
	list   []*value
	fields map[string]*value
}

// at follows field names; nil when one is missing.
func (v *value) at(path ...string) *value {
	for _, name := range path {
		if v == nil {
			return nil
		}
		v = v.fields[name]
	}
	return v
}

func (v *value) texts() []string {
	if v == nil {
		return nil
	}
	out := make([]string, 0, len(v.list))
	for _, one := range v.list {
		out = append(out, one.text)
	}
	return out
}

func (v *value) textMap() map[string]string {
	if v == nil || len(v.fields) == 0 {
		return nil
	}
	out := make(map[string]string, len(v.fields))
	for key, one := range v.fields {
		out[key] = one.text
	}
	return out
}

// tooMany says whether a list or map holds more than its rule allows.
func (v *value) tooMany(want rule) string {
	if n := len(v.list) + len(v.fields); want.most > 0 && n > want.most {
		return fmt.Sprintf("want at most %d items, not %d", want.most, n)
	}
	return ""
}

// union keeps each text once, at its first place.
func union(a, b []*value) []*value {
	seen := map[string]bool{}
	var out []*value
	for _, list := range [][]*value{a, b} {
		for _, one := range list {
			if !seen[one.text] {
				seen[one.text] = true
				out = append(out, one)
			}
		}
	}
	return out
}

// merge lays b over a. It is associative, so that it does not matter in which
// groups documents are combined, only in which order.
func merge(a, b *value, want rule) *value {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	switch want.form {
	case textList:
		return &value{pos: b.pos, list: union(a.list, b.list)}
	case objectList:
		list := make([]*value, 0, len(a.list)+len(b.list))
		return &value{pos: b.pos, list: append(append(list, a.list...), b.list...)}
	case textMap, object:
		out := &value{pos: b.pos, fields: make(map[string]*value, len(a.fields)+len(b.fields))}
		maps.Copy(out.fields, a.fields)
		for key, one := range b.fields {
			// A textMap has no rules per field: the zero rule is a scalar,
			// so the last text wins.
			out.fields[key] = merge(out.fields[key], one, want.fields[key])
		}
		return out
	case scalar:
		return b
	}
	panic(fmt.Sprintf("loadouts: rule of unknown form %d", want.form))
}
