package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"
)

// TestYAMLSaysTheSameAsJSON wants any value to be read back from YAML as it
// is, and nothing in the text that could steer a terminal.
func TestYAMLSaysTheSameAsJSON(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"", "null", "true", "1", "1e3", "~", "- x", "a: b", "#", "\u009b2J", "\u202e", "\U000e0041", "\x1b[2J", "\t", "line\nline\n", " x ", "2026-01-02",
		"2026-01-02T03:04:05Z", "=", "<<", "0x10", "1_000", "yes", "\u2028", "\ufeff", "!!str", "*a", "&a",
		"\t\n", " \n", "\n", "\n\n a", "a\n\tb", "a\n b\n", "a\n\n", "a\n \nb", "- |\n  x\n", "a: 1\nb: 2\n", "# x\ny", "\r\n",
	}))
	line := rapid.OneOf(text, rapid.StringMatching(`[ \t]{0,3}[a:#-]{0,3}[ \t]{0,2}`))
	text = rapid.OneOf(text, rapid.Map(rapid.SliceOfN(line, 0, 4), func(lines []string) string { return strings.Join(lines, "\n") }))
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaves := []*rapid.Generator[any]{
			text.AsAny(), rapid.Bool().AsAny(), rapid.IntRange(-1<<40, 1<<40).AsAny(), rapid.Just[any](nil),
		}
		if depth > 0 {
			leaves = append(leaves, rapid.SliceOfN(value(depth-1), 0, 4).AsAny(), rapid.MapOfN(text, value(depth-1), 0, 4).AsAny())
		}
		return rapid.OneOf(leaves...)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := map[string]any{"v": value(3).Draw(t, "value")}
		var b bytes.Buffer
		if err := printYAML(&b, v); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("what cannot be printed stands in %q", b.String())
		}
		var back any
		if err := yaml.Unmarshal(b.Bytes(), &back); err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(back)
		if err != nil {
			t.Fatal(err)
		}
		var x, y any
		if json.Unmarshal(want, &x) != nil || json.Unmarshal(got, &y) != nil || !reflect.DeepEqual(x, y) {
			t.Fatalf("got %s, want %s, from\n%s", got, want, b.String())
		}
	})
}
