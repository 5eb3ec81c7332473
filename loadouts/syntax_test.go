package loadouts_test

import (
	"errors"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// TestSyntaxErrorsHaveTheirPlace: the parser itself tells no line of some, and
// a wrong one of others.
func TestSyntaxErrorsHaveTheirPlace(t *testing.T) {
	const head = "apiVersion: loadout/v1\nkind: loadout\n" // lines 1 and 2
	for text, want := range map[string]string{
		"apiVersion: a: b\n":                                      "1:1",
		"\tkind: x\n":                                             "1:1",
		"[":                                                       "1:1",
		head + "metadata: {name: x\n":                             "3:1",
		head + "metadata: {name: x}}\n":                           "3:1",
		head + "  memory: 1G\n":                                   "3:3",
		head + "image: a: b\n":                                    "3:1",
		head + "image: 'open\nenv: {}\n":                          "3:1",
		head + "image: *nowhere\n":                                "3:1",
		head + "\timage: x\n":                                     "3:1",
		head + "image: %x\n":                                      "3:1",
		head + "image: @x\nenv: {}\n":                             "3:1",
		head + "env:\n  A: 1\n  B: 2\n C: 3\n":                    "6:2",
		head + "env:\n  A: 1\n  B: [1,\n    2,\n  C: 3\n":         "5:3",
		head + "env:\n  A: 1\n  B: 2\n  - C\nimage: x\n":          "6:3",
		head + "runners: [echo,\n  adapter-command]\nimage: {\n":  "5:1",
		head + strings.Repeat("# much\n", 1000) + "image: a: b\n": "1003:1",
		head + "---\nkind: loadout\nimage: a: b\n":                "5:1",
	} {
		_, err := loadouts.Parse("x", []byte(text))
		var all loadouts.Errors
		if !errors.As(err, &all) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		found := ""
		for _, e := range all {
			if strings.HasPrefix(e.Rule, "not YAML: ") {
				found = strings.TrimPrefix(e.Pos.String(), "x:")
			}
		}
		if found != want {
			t.Errorf("%.60q: told at %s, want %s: %v", text, found, want, err)
		}
	}
}

// TestSyntaxErrorOfALongText: it is not parsed as often as it has lines, which
// would last for minutes.
func TestSyntaxErrorOfALongText(t *testing.T) {
	text := "a:\n" + strings.Repeat("  - {b: [c, d]}\n", (loadouts.MaxSize-100)/16) + "x: [\n"
	if _, err := loadouts.Parse("x", []byte(text)); err == nil {
		t.Error("it was taken")
	}
}
