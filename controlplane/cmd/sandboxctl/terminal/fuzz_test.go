package terminal_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// FuzzHarmless: nothing that is shown moves a cursor or hides text, showing it
// twice changes nothing more, and JSON keeps its value.
func FuzzHarmless(f *testing.F) {
	for _, s := range []string{"plain", "\x1b]0;title\x07", "a\r\nb\tc", "\u202egnp.exe", "\xff\xc3", "\U000e0041", "\u0085\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line, text := terminal.Line(s), terminal.Text(s)
		for _, shown := range []string{line, strings.NewReplacer("\n", "", "\t", "").Replace(text)} {
			if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%q is shown as %q", s, shown)
			}
		}
		if terminal.Line(line) != line || terminal.Text(text) != text {
			t.Fatalf("%q is shown as %q, and that otherwise", s, line)
		}
		if !utf8.ValidString(s) {
			return
		}
		doc, err := json.Marshal(map[string]string{"k": s, s: "v"})
		if err != nil {
			t.Fatal(err)
		}
		shown := terminal.JSON(doc)
		var want, got any
		if json.Unmarshal(doc, &want) != nil || json.Unmarshal(shown, &got) != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is shown as %s", doc, shown)
		}
		if i := bytes.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q holds what is not printable", shown)
		}
	})
}
