package jcs_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/jcs"
)

func TestTransform(t *testing.T) {
	for in, want := range map[string]string{
		// The examples of RFC 8785, sections 3.2.2 to 3.2.4.
		`{
		  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
		  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
		  "literals": [null, true, false]
		}`: `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{
		  "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
		  "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"
		}`: `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis",` +
			`"€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		` [ ] `: `[]`, `{ }`: `{}`, `""`: `""`, ` null`: `null`, "true\n": `true`, `false`: `false`,
		`"\b\t\n\f\r\u0000\u001f\u007f"`:            `"\b\t\n\f\r\u0000\u001f` + "\x7f" + `"`,
		`"<&>\u2028"`:                               `"<&>` + "\u2028" + `"`,
		`{"b":{"d":1,"c":[{"z":0,"y":""}]},"a":-0}`: `{"a":0,"b":{"c":[{"y":"","z":0}],"d":1}}`,
	} {
		got, err := jcs.Transform([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s\n got %s %v\nwant %s", in, got, err, want)
		}
	}
}

// TestNumbers checks appendix B of RFC 8785.
func TestNumbers(t *testing.T) {
	for bits, want := range map[uint64]string{
		0x0000000000000000: "0", 0x8000000000000000: "0",
		0x0000000000000001: "5e-324", 0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308", 0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992", 0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000", 0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23", 0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000", 0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21", 0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001", 0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325", 0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334", 0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333", 0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		in := strconv.FormatFloat(math.Float64frombits(bits), 'e', 17, 64)
		if got, err := jcs.Transform([]byte(in)); err != nil || string(got) != want {
			t.Errorf("%x: got %s %v, want %s", bits, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for in, want := range map[string]error{
		``: jcs.ErrSyntax, `{`: jcs.ErrSyntax, `1 2`: jcs.ErrSyntax, `{"a":01}`: jcs.ErrSyntax,
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000): jcs.ErrSyntax,
		`"\ud800"`: jcs.ErrUnicode, `"\ude00\ud83d"`: jcs.ErrUnicode, `"\ud83d\n"`: jcs.ErrUnicode, `"\ud83d\u0041"`: jcs.ErrUnicode,
		"\"\xff\"":               jcs.ErrUnicode,
		`{"a":1,"b":0,"a":2}`:    jcs.ErrDuplicate,
		`{"a":1,"\u0061":1}`:     jcs.ErrDuplicate,
		`[{"x":{"":1,"":null}}]`: jcs.ErrDuplicate,
		`1e400`:                  jcs.ErrNumber,
	} {
		if got, err := jcs.Transform([]byte(in)); !errors.Is(err, want) {
			t.Errorf("%.40s: got %s, %v, want %v", in, got, err, want)
		}
	}
}

// TestStable: the form is a fixed point, means the same, and does not depend
// on the order of members.
func TestStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.MapOf(rapid.String(), rapid.OneOf(
			rapid.Just(any(nil)), rapid.Bool().AsAny(), rapid.String().AsAny(), rapid.Float64().AsAny(),
			rapid.SliceOf(rapid.Int32().AsAny()).AsAny(), rapid.MapOf(rapid.String(), rapid.String().AsAny()).AsAny(),
		)).Draw(t, "v")
		raw, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		one, err := jcs.Transform(raw)
		if err != nil {
			t.Fatal(err)
		}
		two, err := jcs.Transform(one)
		if err != nil || string(one) != string(two) {
			t.Fatalf("%s becomes %s, %v", one, two, err)
		}
		var before, after any
		if json.Unmarshal(raw, &before) != nil || json.Unmarshal(one, &after) != nil || !reflect.DeepEqual(before, after) {
			t.Fatalf("%s means something else than %s", one, raw)
		}
	})
}

func FuzzTransform(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"\ud83d\ude00",{}],"b":null}`, `"\ud800"`, `[[]]`, `-0.0`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		one, err := jcs.Transform(raw)
		if err != nil {
			return
		}
		two, err := jcs.Transform(one)
		if err != nil || string(one) != string(two) {
			t.Fatalf("%q becomes %q and %q, %v", raw, one, two, err)
		}
	})
}
