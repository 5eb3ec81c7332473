package fleet

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestPrinter(t *testing.T) {
	for in, want := range map[string]string{
		"plain\r\n\ttext":                    "plain\n\ttext",
		"\x1b[1;31mhot\x1b[0m":               "hot",
		"\x1b]0;title\x07after":              "after",
		"\x1b]0;title\x1b\\after":            "after",
		"\x1b(Bx\x1b7y":                      "xy",
		"über \x00\x07 \u202e":               "über \ufffd\ufffd \ufffd",
		"\xff\xfe":                           "\ufffd\ufffd",
		"\x1b[12\nbroken":                    "\nbroken",
		strings.Repeat("\x1b[1m", 100) + "x": "x",
	} {
		var p printer
		if got := p.print([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestPrinterInPieces: wherever the bytes are cut, nothing dangerous comes out,
// and text without sequences comes out whole.
func TestPrinterInPieces(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "ü", "\n", "\x1b", "[", "31m", "]0;", "\x07", "\\", "\x00", "\xff", "€"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(piece).Draw(t, "text"), "")
		var p printer
		var out strings.Builder
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			out.WriteString(p.print(rest[:n]))
			rest = rest[n:]
		}
		for _, r := range out.String() {
			if r != '\n' && r != '\t' && r != utf8.RuneError && !unicode.IsPrint(r) {
				t.Fatalf("%q became %q", text, out.String())
			}
		}
		if len(p.rest) > maxRest {
			t.Fatalf("%d bytes are held back", len(p.rest))
		}
		if plain := strings.ToValidUTF8(text, "x"); plain == text && !strings.ContainsAny(text, "\x1b\x00\x07") && out.String() != text {
			t.Fatalf("%q became %q", text, out.String())
		}
	})
}
