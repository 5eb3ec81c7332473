package loadouts

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// anyValue draws a value that keeps to a rule's form. Few texts and names, so
// that values often collide.
func anyValue(t *rapid.T, want rule, label string) *value {
	text := func(l string) string { return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, l) }
	list := func(item rule) []*value {
		var out []*value
		for i := range rapid.IntRange(0, 3).Draw(t, label+" items") {
			out = append(out, anyValue(t, item, fmt.Sprintf("%s[%d]", label, i)))
		}
		return out
	}
	v := &value{pos: Pos{File: label, Line: 1, Column: 1}}
	switch want.form {
	case scalar:
		v.text = text(label)
	case textList:
		v.list = union(nil, list(rule{}))
	case objectList:
		v.list = list(rule{form: object, fields: want.fields})
	case textMap:
		v.fields = map[string]*value{}
		for range rapid.IntRange(0, 3).Draw(t, label+" entries") {
			v.fields[text(label+" key")] = anyValue(t, rule{}, label+" value")
		}
	case object:
		v.fields = map[string]*value{}
		for _, name := range names(want.fields) {
			if rapid.Bool().Draw(t, "has "+label+"."+name) {
				v.fields[name] = anyValue(t, want.fields[name], label+"."+name)
			}
		}
	}
	return v
}

// plain is a value without the places it came from.
func plain(v *value) any {
	switch {
	case v == nil:
		return nil
	case v.fields != nil:
		out := map[string]any{}
		for name, one := range v.fields {
			out[name] = plain(one)
		}
		return out
	case v.list != nil:
		out := []any{}
		for _, one := range v.list {
			out = append(out, plain(one))
		}
		return out
	}
	return v.text
}

func TestMergeIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyValue(t, topRule, "a"), anyValue(t, topRule, "b"), anyValue(t, topRule, "c")
		before := plain(b)
		left := merge(merge(a, b, topRule), c, topRule)
		right := merge(a, merge(b, c, topRule), topRule)
		if diff := cmp.Diff(plain(left), plain(right)); diff != "" {
			t.Errorf("(a+b)+c and a+(b+c) differ:\n%s", diff)
		}
		if diff := cmp.Diff(before, plain(b)); diff != "" {
			t.Errorf("merging changed its input:\n%s", diff)
		}
	})
}

func TestMergeWithNothingChangesNothing(t *testing.T) {
	nothing := &value{fields: map[string]*value{}}
	rapid.Check(t, func(t *rapid.T) {
		a := anyValue(t, topRule, "a")
		for _, got := range []*value{merge(a, nothing, topRule), merge(nothing, a, topRule), merge(nil, a, topRule), merge(a, nil, topRule)} {
			if diff := cmp.Diff(plain(a), plain(got)); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
		}
	})
}

// TestMergeRules holds the published rules, one by one.
func TestMergeRules(t *testing.T) {
	texts := func(s ...string) *value {
		v := &value{list: []*value{}}
		for _, one := range s {
			v.list = append(v.list, &value{text: one})
		}
		return v
	}
	fields := func(kv ...any) *value {
		v := &value{fields: map[string]*value{}}
		for i := 0; i < len(kv); i += 2 {
			v.fields[kv[i].(string)] = kv[i+1].(*value)
		}
		return v
	}
	one := func(s string) *value { return &value{text: s} }
	tests := map[string]struct {
		rule       rule
		a, b, want *value
	}{
		"scalars: the last wins":     {rule{}, one("a"), one("b"), one("b")},
		"lists of text: union":       {rule{form: textList}, texts("b", "a"), texts("c", "a"), texts("b", "a", "c")},
		"lists of objects: all":      {rule{form: objectList}, texts("a"), texts("a"), texts("a", "a")},
		"maps: key by key":           {rule{form: textMap}, fields("x", one("1"), "y", one("1")), fields("y", one("2")), fields("x", one("1"), "y", one("2"))},
		"objects: field by field":    {resourcesRule, fields("cpus", one("1")), fields("memory", one("1G")), fields("cpus", one("1"), "memory", one("1G"))},
		"an empty list adds nothing": {rule{form: textList}, texts("a"), texts(), texts("a")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := merge(test.a, test.b, test.rule)
			if diff := cmp.Diff(plain(test.want), plain(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRulesAreComplete finds a rule that would panic or let everything pass.
func TestRulesAreComplete(t *testing.T) {
	var walk func(path string, r rule)
	walk = func(path string, r rule) {
		switch r.form {
		case scalar, textList:
			if r.check == nil {
				t.Errorf("%s has no check", path)
			}
		case textMap:
			if r.check == nil || r.key == nil {
				t.Errorf("%s has no check or no key", path)
			}
		case object, objectList:
			if len(r.fields) == 0 {
				t.Errorf("%s has no fields", path)
			}
		}
		if r.form != scalar && r.form != object && r.most == 0 {
			t.Errorf("%s has no bound", path)
		}
		for _, name := range append(r.required, r.later...) {
			if _, known := r.fields[name]; known != (len(r.required) > 0 && slices.Contains(r.required, name)) {
				t.Errorf("%s.%s is required but unknown, or both known and for later", path, name)
			}
		}
		for name, field := range r.fields {
			walk(join(path, name), field)
		}
	}
	walk("", topRule)
}

func TestDidYouMean(t *testing.T) {
	known := []string{"resources", "env", "image", "runners"}
	for written, want := range map[string]string{
		"resource":             "resources",
		"Resources":            "resources",
		"evn":                  "env",
		"imgae":                "image",
		"runner":               "runners",
		"x":                    "",
		"completely-different": "",
	} {
		got := didYouMean(written, known)
		if want != "" {
			want = fmt.Sprintf(", did you mean %q?", want)
		}
		if got != want {
			t.Errorf("didYouMean(%q) = %q, want %q", written, got, want)
		}
	}
}
