package fleet

import (
	"bytes"
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

func TestLastLines(t *testing.T) {
	const text = "one\ntwo\n\nfour"
	for lines, want := range map[int]string{0: "", 1: "four", 2: "\nfour", 3: "two\n\nfour", 4: text, 9: text} {
		if got := lastLines(text, lines); got != want {
			t.Errorf("%d lines: %q, want %q", lines, got, want)
		}
	}
	if got := lastLines("a\nb\n", 1); got != "b\n" {
		t.Errorf("an ended line is %q", got)
	}
	if got := lastLines("", 1); got != "" {
		t.Errorf("nothing is %q", got)
	}
}

// TestConsoleBeginsWithWholeLines: what is left out of the guest's bytes does
// not count, nothing comes twice, and what follows is all there.
func TestConsoleBeginsWithWholeLines(t *testing.T) {
	for name, c := range map[string]struct {
		raw   string
		lines int
		want  string
	}{
		"ends of lines": {"one\r\ntwo\r\nthree\r\n", 2, "two\nthree\n"},
		"colours":       {"one\r\n\x1b[31mtwo\x1b[0m\r\n", 1, "two\n"},
		"no line":       {"one\r\ntwo\r\n", 0, ""},
		"unended":       {"one\r\ntw", 1, "tw"},
		"long":          {strings.Repeat("0123456\r\n", 10_000), 3, strings.Repeat("0123456\n", 3)},
		"nothing":       {"", 5, ""},
	} {
		var out strings.Builder
		follower := console{out: &out, lines: c.lines}
		if err := follower.begin(bytes.NewReader([]byte(c.raw)), int64(len(c.raw))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != c.want || follower.at != int64(len(c.raw)) {
			t.Errorf("%s: %q up to byte %d, want %q up to %d", name, out.String(), follower.at, c.want, len(c.raw))
		}
	}
}
