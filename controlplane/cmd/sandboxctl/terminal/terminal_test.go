package terminal_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain text, ümlaut, 漢字": "plain text, ümlaut, 漢字",
		"\x1b[2Jgone":            `\x1b[2Jgone`,
		"a\nb\tc\r":              `a\x0ab\x09c\x0d`,
		"\u009b31m":              `\u009b31m`,
		"evil\u202etxt":          `evil\u202etxt`,
		"bad\xff":                `bad\xff`,
		"\U000e0001":             `\U000e0001`,
	} {
		if got := terminal.Line(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
	if got := terminal.Text("a\n\tb\x07"); got != "a\n\tb"+`\x07` {
		t.Errorf("text gives %q", got)
	}
}

func TestNothingUnprintableIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		for _, got := range []string{terminal.Line(in), strings.NewReplacer("\n", "", "\t", "").Replace(terminal.Text(in))} {
			if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%q gives %q", in, got)
			}
		}
	})
}

func TestJSONStaysTheSameValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "value")
		text, err := json.MarshalIndent(in, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		safe := terminal.JSON(text)
		if strings.ContainsFunc(string(safe), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Fatalf("unprintable: %q", safe)
		}
		var out map[string]string
		if err := json.Unmarshal(safe, &out); err != nil {
			t.Fatalf("%v: %s", err, safe)
		}
		for k, v := range in {
			if out[k] != v {
				t.Fatalf("%q became %q", v, out[k])
			}
		}
	})
}
