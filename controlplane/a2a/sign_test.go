package a2a_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/engine"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
)

// fixedKey is a file of keys whose signing key is the first test key of RFC
// 8032, section 7.1, so that signatures can be compared. Its id is the
// thumbprint that RFC 8037, appendix A.3, gives for it.
const fixedKey = `{"signing":{"kid":"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k","seed":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}}`

func signingRig(t *testing.T, state string) (*rig, *signing.Keys) {
	t.Helper()
	keys, err := signing.Open(state, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, func(c *a2a.Config, _ *engine.Config) {
		c.PublicURL = "http://sandbox.example"
		c.Signer = keys.Signer("http://sandbox.example/.well-known/jwks.json")
		c.ExtendedSkills = func(a2a.Agent) []a2a.Skill { return []a2a.Skill{{ID: "more", Name: "More", Description: "More."}} }
	}), keys
}

func TestSignedCard(t *testing.T) {
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "keys", "card-signing.json"), []byte(fixedKey), 0o600); err != nil {
		t.Fatal(err)
	}
	const path = "/agents/" + idA + "/.well-known/agent-card.json"
	r, keys := signingRig(t, state)
	set, err := keys.Set()
	if err != nil {
		t.Fatal(err)
	}
	first := r.do(get, path, "", nil)
	if by, err := signing.Verify(first.body, set); err != nil || len(by) != 1 {
		t.Fatalf("card %s is verified by %v, %v", first.body, by, err)
	}
	golden := filepath.Join("testdata", "card-signed.json")
	if *update {
		if err := os.WriteFile(golden, first.body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(first.body)); diff != "" {
		t.Errorf("signed card (-want +got); -update writes it anew:\n%s", diff)
	}

	// The same bytes after a restart, and other ones only when it changed.
	again, _ := signingRig(t, state)
	if second := again.do(get, path, "", nil); !bytes.Equal(first.body, second.body) || second.header.Get("ETag") != first.header.Get("ETag") {
		t.Errorf("after a restart the card is %s", second.body)
	}
	if got := again.do(get, path, "", map[string]string{"If-None-Match": first.header.Get("ETag")}); got.status != http.StatusNotModified {
		t.Errorf("If-None-Match: %d", got.status)
	}

	// The extended card is signed, too; a card of 0.3 is not.
	extended := r.do(get, "/agents/"+idA+"/extendedAgentCard", "", good)
	if _, err := signing.Verify(extended.body, set); err != nil || extended.path("skills", 1, "id") != "more" {
		t.Errorf("extended card %s: %v", extended.body, err)
	}
	rpc := r.rpc("GetExtendedAgentCard", "{}", good)
	if _, err := signing.Verify(resultOf(t, rpc), set); err != nil {
		t.Errorf("extended card on JSON-RPC %s: %v", rpc.body, err)
	}
	if old := r.do(get, path, "", map[string]string{"A2A-Version": "0.3"}); strings.Contains(string(old.body), "signatures") {
		t.Errorf("card of 0.3: %s", old.body)
	}
}

// TestRotatedCard: at once after a rotation the card verifies with the key set
// that a cache may still have, and with the new one.
func TestRotatedCard(t *testing.T) {
	state := t.TempDir()
	r, keys := signingRig(t, state)
	const path = "/agents/" + idA + "/.well-known/agent-card.json"
	sets, first := [][]byte{nil, nil}, r.do(get, path, "", nil)
	var err error
	if sets[0], err = keys.Set(); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Rotate(state, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	second := r.do(get, path, "", map[string]string{"If-None-Match": first.header.Get("ETag")})
	if sets[1], err = keys.Set(); err != nil || second.status != http.StatusOK {
		t.Fatal(second.status, err)
	}
	for i, set := range sets {
		if by, err := signing.Verify(second.body, set); err != nil || len(by) != i+1 {
			t.Errorf("with key set %d: %v, %v", i, by, err)
		}
		if _, err := signing.Verify(first.body, set); err != nil {
			t.Errorf("the card from before, with key set %d: %v", i, err)
		}
	}
}

// resultOf cuts the result out of an answer of JSON-RPC, byte for byte.
func resultOf(t *testing.T, a answer) []byte {
	t.Helper()
	i := bytes.Index(a.body, []byte(`"result":`))
	if i < 0 {
		t.Fatalf("answer is %s", a.body)
	}
	return bytes.TrimSuffix(bytes.TrimSpace(a.body[i+len(`"result":`):]), []byte("}"))
}

// TestCardsHaveNothingEmpty: the canonical form of the specification and that
// of the SDKs, which leave out all that is empty, are the same bytes.
func TestCardsHaveNothingEmpty(t *testing.T) {
	r, keys := signingRig(t, t.TempDir())
	set, err := keys.Set()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		idA + "/.well-known/agent-card.json", idB + "/.well-known/agent-card.json", idHost + "/.well-known/agent-card.json",
		idA + "/extendedAgentCard",
	} {
		a := r.do(get, "/agents/"+path, "", good)
		if _, err := signing.Verify(a.body, set); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, where := range empties("", a.json) {
			t.Errorf("%s: %s is empty in %s", path, where, a.body)
		}
	}
}

// empties lists the members and elements of a JSON value that are null or
// hold nothing.
func empties(at string, v any) (all []string) {
	switch v := v.(type) {
	case nil:
		return []string{at}
	case string:
		if v == "" {
			return []string{at}
		}
	case []any:
		if len(v) == 0 {
			return []string{at}
		}
		for i, e := range v {
			all = append(all, empties(fmt.Sprintf("%s[%d]", at, i), e)...)
		}
	case map[string]any:
		if len(v) == 0 {
			return []string{at}
		}
		for k, e := range v {
			all = append(all, empties(at+"."+k, e)...)
		}
	}
	return all
}
