package fleet_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

func TestSelectors(t *testing.T) {
	labels := map[string]string{"team": "blue", "env": "prod", "empty": "", "app.example/part": "web"}
	for text, want := range map[string]bool{
		"": true, " ": true,
		"team=blue": true, "team==blue": true, " team = blue ": true, "team=red": false, "nobody=x": false, "empty=": true,
		"team!=red": true, "team!=blue": false, "nobody!=x": true,
		"team": true, "nobody": false, "!nobody": true, "!team": false, "! nobody": true,
		"team in (red, blue)": true, "team in (red)": false, "nobody in (x)": false, "empty in (,x)": true,
		"team notin (red)": true, "team notin (red,blue)": false, "nobody notin (x)": true,
		"team=blue,env in (prod,test),!nobody":  true,
		"team=blue,env notin (prod),!nobody":    false,
		"app.example/part=web,team in (a,blue)": true,
	} {
		s, err := fleet.ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := s.Matches(labels); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
	for _, text := range []string{
		",", "a=b,", "=b", "a=b=c", "a in x", "a in (b", "a in b)", "!a=b", "a b", "!", "a=b c", "a\x00=b", "-a=b",
		strings.Repeat("a,", 70) + "a", strings.Repeat("x", 5000), "a in (" + strings.Repeat("b,", 70) + "b)", "ä=b", "a=(b)",
	} {
		if s, err := fleet.ParseSelector(text); faultCode(err) != "selector.invalid" {
			t.Errorf("%.40q was read as %q, %v", text, s, err)
		}
	}
}

// TestSelectorsReadWhatTheyWrite: the text of a selector means the same as the
// selector, and reading anything never fails in another way than by its fault.
func TestSelectorsReadWhatTheyWrite(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "b", "c.d/e", "x_1"})
	one := rapid.Custom(func(t *rapid.T) string {
		key := word.Draw(t, "key")
		values := "(" + strings.Join(rapid.SliceOfN(word, 1, 3).Draw(t, "values"), ",") + ")"
		return rapid.SampledFrom([]string{
			key, "!" + key, key + "=" + word.Draw(t, "value"), key + "!=" + word.Draw(t, "value"),
			key + " in " + values, key + " notin " + values,
		}).Draw(t, "form")
	})
	rapid.Check(t, func(t *rapid.T) {
		s, err := fleet.ParseSelector(strings.Join(rapid.SliceOfN(one, 0, 5).Draw(t, "requirements"), ","))
		if err != nil {
			t.Fatal(err)
		}
		again, err := fleet.ParseSelector(s.String())
		if err != nil || !again.Equal(s) {
			t.Fatalf("%q was read as %q, %v", s, again, err)
		}
		labels := rapid.MapOf(word, word).Draw(t, "labels")
		if s.Matches(labels) != again.Matches(labels) {
			t.Fatalf("%q means something else when it is read again", s)
		}
		var equal []string
		for key, value := range labels {
			equal = append(equal, key+"="+value)
		}
		all, err := fleet.ParseSelector(strings.Join(equal, ","))
		if err != nil || !all.Matches(labels) {
			t.Fatalf("%q does not pick its own labels (%v)", all, err)
		}
		for key := range labels {
			fewer := map[string]string{}
			for k, v := range labels {
				if k != key {
					fewer[k] = v
				}
			}
			if all.Matches(fewer) {
				t.Fatalf("%q picks labels without %q", all, key)
			}
		}
	})
}

func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "a=b,c!=d,e in (x,y),f notin (z),g,!h", "a in (", "),(", ",,", "!!a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := fleet.ParseSelector(text)
		if err != nil {
			if faultCode(err) != "selector.invalid" {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		again, err := fleet.ParseSelector(s.String())
		if err != nil || !again.Equal(s) {
			t.Errorf("%q was read as %q, and that as %q, %v", text, s, again, err)
		}
	})
}
