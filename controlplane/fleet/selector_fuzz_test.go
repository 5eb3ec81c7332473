package fleet_test

import (
	"strings"
	"testing"
	"unicode"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// FuzzParseSelector: what is no selector is the caller's fault; what is one
// picks the same when it is said twice, and its parts pick what they say.
func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{
		"a=b,c!=d", "e in (x,y),f notin (z)", "g,!h", "", " , ", "a in ()", "a==b", "a=b=c", "((", "a in (b", ")a,b(", "!a=b",
		strings.Repeat("a,", 70) + "a", strings.Repeat("€", 2000),
	} {
		f.Add(s, "a", "b")
	}
	f.Add("0", "0", "\n0")
	f.Fuzz(func(t *testing.T, s, key, value string) {
		labels := map[string]string{key: value}
		sel, err := fleet.ParseSelector(s)
		if err != nil {
			if fault := instance.AsFault(err); fault.Code != "selector.invalid" || fault.Blame != instance.Caller || fault.Hint == "" {
				t.Fatalf("%q: %+v", s, fault)
			}
		} else if twice, err := fleet.ParseSelector(s + "," + s); err == nil && twice.Matches(labels) != sel.Matches(labels) {
			t.Fatalf("%q picks %v, said twice it does not, or the other way about", s, labels)
		}
		equal, err := fleet.ParseSelector(key + "=" + value)
		if err != nil || strings.ContainsAny(key+value, ",=!()") || strings.ContainsFunc(key+value, unicode.IsSpace) {
			return // they say something else
		}
		if !equal.Matches(labels) || equal.Matches(nil) || equal.Matches(map[string]string{key: value + "x"}) {
			t.Fatalf("%q=%q does not pick what it says", key, value)
		}
		for text, want := range map[string]bool{
			key + "!=" + value: false, key: true, "!" + key: false, key + " in (other," + value + ")": true, key + " notin (" + value + ")": false,
		} {
			part, err := fleet.ParseSelector(text)
			if err != nil || part.Matches(labels) != want {
				t.Fatalf("%q picks %v: %t, %v", text, labels, !want, err)
			}
		}
	})
}
