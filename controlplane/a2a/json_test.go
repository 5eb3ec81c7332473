package a2a

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCheckJSON(t *testing.T) {
	nested := func(n int) string { return strings.Repeat(`{"a":[`, n/2) + strings.Repeat(`]}`, n/2) }
	for _, c := range []struct{ name, body, rule string }{
		{"plain", `{"a":[1,"x",null,{"a":1e308}],"b":{"a":true}}`, ""},
		{"no double", `{"a":[1,{"b":-1e999}],"c":1}`, ruleNumber},
		{"no double, and worse", `{"a":1e999,"a":1}`, `has the member "a" twice in one object`},
		{"next to nothing", `[1e-999,0.1e309,123456789012345678901234567890]`, ""},
		{"a scalar", `7`, ""},
		{"names as values", `{"a":"a","b":["a","a"],"c":{"a":"a"}}`, ""},
		{"deep enough", nested(maxDepth), ""},
		{"too deep", nested(maxDepth + 2), "is nested deeper than 64 levels"},
		{"far too deep", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "is not valid JSON"},
		{"cut off", `{"a":`, "is not valid JSON"},
		{"empty", ``, "is not valid JSON"},
		{"two values", `{} {}`, "is not valid JSON"},
		{"Latin-1", "{\"a\":\"\xe4\"}", "is not valid UTF-8"},
		{"Latin-1 in a name", "{\"\xe4\":1}", "is not valid UTF-8"},
		{"pair", `{"a":"\ud83d\ude00"}`, ""},
		{"backslashes before u", `{"a":"\\ud83d \\\\udc00 \/\u00e4"}`, ""},
		{"high half", `{"a":"\ud83d"}`, "has half of a surrogate pair"},
		{"high half, then text", `{"a":"\ud83dude00xxxxxxxx"}`, "has half of a surrogate pair"},
		{"low half", `{"a":"\ude00"}`, "has half of a surrogate pair"},
		{"turned pair", `{"a":"\ude00\ud83d"}`, "has half of a surrogate pair"},
		{"half in a name", `{"\ud83d":1}`, "has half of a surrogate pair"},
		{"twice", `{"a":1,"b":[],"a":2}`, `has the member "a" twice in one object`},
		{"twice, spelt otherwise", `{"x":{"a":{},"\u0061":{}}}`, `has the member "a" twice in one object`},
	} {
		if got := checkJSON([]byte(c.body)); got != c.rule {
			t.Errorf("%s: got %q, want %q", c.name, got, c.rule)
		}
	}
}

// FuzzCheckJSON: what is taken is read alike before and after a round trip.
func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{`{"a":["\ud83d\ude00",{"b":null}]}`, `{"a":1,"a":2}`, `[[[]]]`, `"\\u\"`, `{"a":"\ud83d\u0041"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw) != "" {
			return
		}
		if !utf8.Valid(raw) || !json.Valid(raw) {
			t.Fatalf("took %q", raw)
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if rule := checkJSON(again); rule != "" {
			t.Fatalf("%q was taken, %q %s", raw, again, rule)
		}
	})
}
