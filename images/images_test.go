package images

import (
	"strings"
	"testing"
)

const hex64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseRef(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Ref
	}{
		{"minimal", Ref{Name: "minimal"}},
		{"debian-12-agentic-dev", Ref{Name: "debian-12-agentic-dev"}},
		{"a.b_c-d", Ref{Name: "a.b_c-d"}},
		{"minimal@sha256:" + hex64, Ref{"minimal", hex64}},
		{"qcow2://images/minimal@sha256:" + hex64, Ref{"minimal", hex64}},
	} {
		got, err := ParseRef(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParseRef(%q) = %+v, %v; want %+v", c.in, got, err, c.want)
		}
	}
}

func TestParseRefRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                      "name",
		"Minimal":                               "name",
		"-x":                                    "name",
		"../x":                                  "name",
		"a/b":                                   "name",
		strings.Repeat("a", 129):                "name",
		"minimal@":                              "sha256:",
		"minimal@" + hex64:                      "sha256:",
		"minimal@sha256:" + hex64[1:]:           "64",
		"minimal@sha256:" + hex64 + "0":         "64",
		"minimal@sha256:sha256:" + hex64:        "64",
		"minimal@sha256:" + hex64[:63] + "A":    "64",
		"minimal@sha512:" + hex64:               "sha256:",
		"qcow2://images/minimal":                "pinned",
		"qcow2://other/minimal@sha256:" + hex64: "name",
		"minimal\n":                             "name",
	} {
		if got, err := ParseRef(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRef(%q) = %+v, %v; want an error with %q", in, got, err, want)
		}
	}
}

func TestRefForms(t *testing.T) {
	r := Ref{Name: "minimal", Digest: hex64}
	if got := r.URL(); got != "qcow2://images/minimal@sha256:"+hex64 {
		t.Errorf("URL() = %q", got)
	}
	if got := (Ref{Name: "minimal"}).String(); got != "minimal" {
		t.Errorf("String() = %q", got)
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"minimal", "minimal@sha256:" + hex64, "qcow2://images/x@sha256:" + hex64, "@", "a@@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(r.Name, "/\\\x00\n ") || r.Name == ".." || r.Name == "." {
			t.Errorf("ParseRef(%q) accepts the name %q, which is no file name", s, r.Name)
		}
		if again, err := ParseRef(r.String()); err != nil || again != r {
			t.Errorf("ParseRef(%q) = %+v, but its String %q parses as %+v, %v", s, r, r.String(), again, err)
		}
	})
}

func FuzzParseDigest(f *testing.F) {
	f.Add(hex64)
	f.Add("sha256:" + hex64)
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		if err != nil {
			return
		}
		if len(d) != 64 || "sha256:"+string(d) != d.String() {
			t.Errorf("ParseDigest(%q) = %q", s, string(d))
		}
	})
}
