package a2a_test

import (
	"strings"
	"testing"
)

// TestTrapsForOtherReadersAreRefused: what comes back in the lists of others
// must not be what some of them cannot read.
func TestTrapsForOtherReadersAreRefused(t *testing.T) {
	r := newRig(t, nil)
	for name, metadata := range map[string]string{
		"deep":      strings.Repeat(`[`, 1000) + strings.Repeat(`]`, 1000),
		"not UTF-8": "\"\xff\"",
		"half pair": `"\ud800"`,
		"twice":     `{"x":1,"x":2}`,
	} {
		body := `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}],"metadata":{"a":` + metadata + `}}}`
		for _, path := range []string{"/message:send", "/message:stream"} {
			if a := r.do(post, "/agents/"+idA+path, body, good); a.status != 400 {
				t.Errorf("%s %s: %d %.200s", path, name, a.status, a.body)
			}
		}
		if a := r.rpc("SendMessage", body, good); a.path("error", "code") != -32700.0 {
			t.Errorf("RPC %s: %.200s", name, a.body)
		}
	}
	if a := r.do("GET", "/agents/"+idA+"/tasks", "", good); a.path("totalSize") != 0.0 {
		t.Errorf("tasks were made: %.200s", a.body)
	}
}
