package main

import (
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
)

func TestPublicURL(t *testing.T) {
	for given, want := range map[string]string{
		"":                                   "",
		"https://agents.example.org":         "https://agents.example.org",
		"https://agents.example.org/":        "https://agents.example.org",
		"http://[::1]:8420":                  "http://[::1]:8420",
		"agents.example.org":                 "refused",
		"//agents.example.org":               "refused",
		"ftp://agents.example.org":           "refused",
		"https://":                           "refused",
		"https://:8420":                      "refused",
		"https://agents.example.org/below":   "refused",
		"https://agents.example.org?x=1":     "refused",
		"https://agents.example.org?":        "refused",
		"https://agents.example.org#x":       "refused",
		"https://user:pw@agents.example.org": "refused",
		"https://agents.example.org:port":    "refused",
	} {
		c := config{StateDir: t.TempDir(), PublicURL: given}
		got, err := publicURL(given)
		if (err != nil) != (want == "refused") || err == nil && got != want {
			t.Errorf("%q: got %q, %v; want %q", given, got, err, want)
		}
		if want != "refused" {
			continue
		}
		if err := c.complete(); err == nil || !strings.Contains(err.Error(), "--public-url") {
			t.Errorf("%q: serve says %v", given, err)
		}
	}
}

// TestClientsOfThisHostAskTheDaemonItself: a proxy in front is for others.
func TestClientsOfThisHostAskTheDaemonItself(t *testing.T) {
	const local, public = "http://127.0.0.1:8420", "https://agents.example.org"
	for _, given := range []string{"", public} {
		d := &daemon{cfg: config{StateDir: t.TempDir(), PublicURL: given}}
		if err := d.announce(local); err != nil {
			t.Fatal(err)
		}
		e, err := localhost.Read(d.cfg.StateDir)
		if err != nil || e.URL != local || e.PublicURL != given {
			t.Errorf("with --public-url %q they are told %+v, %v", given, e, err)
		}
	}
}
