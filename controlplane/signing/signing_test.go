package signing_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
)

const card = `{
  "version": "1.0.0", "name": "demo", "description": "", "skills": [],
  "supportedInterfaces": [{"url": "http://x/a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": ""}],
  "capabilities": {"streaming": false, "pushNotifications": true, "extensions": [
    {"uri": "https://e/v1", "description": "", "required": false, "params": {"empty": "", "none": [], "no": false}},
    {"uri": "https://r/v1", "required": true, "params": {}}
  ]},
  "documentationUrl": "", "provider": {"url": "", "organization": ""},
  "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "", "description": "", "bearerFormat": ""}}},
  "securityRequirements": [], "defaultInputModes": [], "defaultOutputModes": ["text/plain"],
  "iconUrl": null, "unknownMember": "",
  "signatures": [{"protected": "x", "signature": "y"}]
}`

// canonical is what section 8.4.1 makes of card: what is REQUIRED or optional
// stays, other defaults go, data is left alone.
const canonical = `{"capabilities":{"extensions":[{"params":{"empty":"","no":false,"none":[]},"uri":"https://e/v1"},` +
	`{"params":{},"required":true,"uri":"https://r/v1"}],"pushNotifications":true,"streaming":false},` +
	`"defaultInputModes":[],"defaultOutputModes":["text/plain"],"description":"","documentationUrl":"","name":"demo",` +
	`"provider":{"organization":"","url":""},"securitySchemes":{"bearer":{"httpAuthSecurityScheme":{"scheme":""}}},"skills":[],` +
	`"supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0","url":"http://x/a"}],"unknownMember":"","version":"1.0.0"}`

func TestCanonical(t *testing.T) {
	got, err := signing.Canonical([]byte(card))
	if err != nil || string(got) != canonical {
		t.Errorf("canonical form is\n%s, %v, want\n%s", got, err, canonical)
	}
	if again, err := signing.Canonical(got); err != nil || !bytes.Equal(got, again) {
		t.Errorf("canonical form of the canonical form is %s, %v", again, err)
	}
	for in, want := range map[string]string{
		// The example of section 8.4.1, as far as it goes.
		`{"name":"Example Agent","description":"","capabilities":{"streaming":false,"pushNotifications":false,"extensions":[]},"skills":[]}`://
		`{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent","skills":[]}`,
		`{"skills":[{"id":"","name":"","description":"","tags":[],"examples":[],"securityRequirements":[{"schemes":{"b":{"list":[]}}},{"schemes":{}}]}]}`://
		`{"skills":[{"description":"","id":"","name":"","securityRequirements":[{"schemes":{"b":{}}},{}],"tags":[]}]}`,
		`{"securitySchemes":{"o":{"oauth2SecurityScheme":{"oauth2MetadataUrl":"","flows":{"clientCredentials":{"tokenUrl":"","refreshUrl":"","scopes":{}}}}},"m":{"mtlsSecurityScheme":{}}}}`://
		`{"securitySchemes":{"m":{"mtlsSecurityScheme":{}},"o":{"oauth2SecurityScheme":{"flows":{"clientCredentials":{"scopes":{},"tokenUrl":""}}}}}}`,
		`{"securitySchemes":{}}`: `{}`,
	} {
		if got, err := signing.Canonical([]byte(in)); err != nil || string(got) != want {
			t.Errorf("canonical form is\n%s, %v, want\n%s", got, err, want)
		}
	}
	for _, broken := range []string{``, `[]`, `null`, `{"name":"a","name":"b"}`, `{"skills":{}}`, `{"skills":[1]}`, `{"securitySchemes":[]}`, `{"capabilities":"x"}`} {
		if got, err := signing.Canonical([]byte(broken)); err == nil {
			t.Errorf("canonical form of %s is %s", broken, got)
		}
	}
}

func open(t *testing.T, dir string) *signing.Keys {
	t.Helper()
	k, err := signing.Open(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func set(t *testing.T, k *signing.Keys) []byte {
	t.Helper()
	s, err := k.Set()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signed(t *testing.T, k *signing.Keys) []byte {
	t.Helper()
	s, err := k.Signer("http://x/.well-known/jwks.json").Sign([]byte(card))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSignAndVerify(t *testing.T) {
	k := open(t, t.TempDir())
	got := signed(t, k)
	by, err := signing.Verify(got, set(t, k))
	if err != nil || len(by) != 1 {
		t.Fatalf("verified by %v, %v", by, err)
	}
	// What is served is what was signed, and the form it was signed in.
	if again, err := signing.Canonical(got); err != nil || string(again) != canonical {
		t.Errorf("served is %s, %v", got, err)
	}
	for _, change := range [][2]string{
		{`"demo"`, `"dem0"`}, {`"streaming":false`, `"streaming":true`}, {`"required":true,`, ``}, {`"skills":[]`, `"skills":[],"more":1`},
		{`http://x/a`, `http://evil/a`}, {`"params":{}`, `"params":{"a":1}`},
	} {
		forged := strings.Replace(string(got), change[0], change[1], 1)
		if forged == string(got) {
			t.Fatalf("there is no %s in %s", change[0], got)
		}
		if by, err := signing.Verify([]byte(forged), set(t, k)); !errors.Is(err, signing.ErrForged) {
			t.Errorf("%s for %s: verified by %v, %v", change[1], change[0], by, err)
		}
	}
	// What canonical form ignores does no harm: order, space, defaults.
	var v any
	if err := json.Unmarshal(got, &v); err != nil {
		t.Fatal(err)
	}
	pretty, err := json.MarshalIndent(v, "", "   ")
	if err != nil {
		t.Fatal(err)
	}
	pretty = bytes.Replace(pretty, []byte(`"protocolBinding"`), []byte(`"tenant":"","protocolBinding"`), 1)
	if _, err := signing.Verify(pretty, set(t, k)); err != nil {
		t.Errorf("the same card written otherwise: %v", err)
	}
	if _, err := signing.Verify(got, set(t, open(t, t.TempDir()))); !errors.Is(err, signing.ErrUnknownKey) {
		t.Errorf("with somebody else's keys: %v", err)
	}
	if _, err := signing.Verify([]byte(canonical), set(t, k)); !errors.Is(err, signing.ErrUnsigned) {
		t.Errorf("without a signature: %v", err)
	}
}

// TestGoJose verifies with somebody else's implementation.
func TestGoJose(t *testing.T) {
	k := open(t, t.TempDir())
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(set(t, k), &keys); err != nil {
		t.Fatal(err)
	}
	var served struct {
		Signatures []signing.Signature `json:"signatures"`
	}
	if err := json.Unmarshal(signed(t, k), &served); err != nil {
		t.Fatal(err)
	}
	s := served.Signatures[0]
	compact := s.Protected + "." + base64.RawURLEncoding.EncodeToString([]byte(canonical)) + "." + s.Signature
	jws, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		t.Fatal(err)
	}
	h := jws.Signatures[0].Protected
	if h.Algorithm != "EdDSA" || h.ExtraHeaders["typ"] != "JOSE" || h.ExtraHeaders["jku"] != "http://x/.well-known/jwks.json" {
		t.Errorf("protected header is %+v", h)
	}
	key := keys.Key(h.KeyID)
	if len(key) != 1 || !key[0].Valid() || !key[0].IsPublic() || key[0].Use != "sig" {
		t.Fatalf("key %q is %+v", h.KeyID, key)
	}
	if payload, err := jws.Verify(key[0]); err != nil || string(payload) != canonical {
		t.Errorf("go-jose verifies %s, %v", payload, err)
	}
	if thumb, err := key[0].Thumbprint(crypto.SHA256); err != nil || base64.RawURLEncoding.EncodeToString(thumb) != h.KeyID {
		t.Errorf("key id is %q, thumbprint %v", h.KeyID, err)
	}
	// And the other way round: a card signed by go-jose, with a second signature
	// by a key that nobody knows.
	stranger := open(t, t.TempDir())
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: private(t), KeyID: "theirs"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := signer.Sign([]byte(canonical))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(must(theirs.CompactSerialize()), ".")
	var other struct {
		Signatures []signing.Signature `json:"signatures"`
	}
	if err := json.Unmarshal(signed(t, stranger), &other); err != nil {
		t.Fatal(err)
	}
	two := must(json.Marshal(append(other.Signatures, signing.Signature{Protected: parts[0], Signature: parts[2]})))
	doc := strings.TrimSuffix(canonical, "}") + `,"signatures":` + two + `}`
	public := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private(t).Public(), KeyID: "theirs", Algorithm: "EdDSA", Use: "sig"}}}
	by, err := signing.Verify([]byte(doc), []byte(must(json.Marshal(public))))
	if err != nil || len(by) != 1 || by[0] != "theirs" {
		t.Errorf("a card signed by go-jose is verified by %v, %v", by, err)
	}
}

// private is a key that is the same in every call.
func private(*testing.T) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
}

func must[T string | []byte](v T, err error) string {
	if err != nil {
		panic(err)
	}
	return string(v)
}

func TestHostileSignatures(t *testing.T) {
	k := open(t, t.TempDir())
	var keys struct {
		Keys []struct {
			Kid string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(set(t, k), &keys); err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	for _, head := range []string{
		`{"alg":"none","kid":"K"}`, `{"alg":"HS256","kid":"K"}`, `{"kid":"K"}`, `{"alg":"EdDSA","kid":"K","crit":["b64"],"b64":false}`,
		`{"alg":"EdDSA","kid":"K"}`, `not JSON`, ``,
	} {
		head = strings.Replace(head, "K", keys.Keys[0].Kid, 1)
		doc := strings.TrimSuffix(canonical, "}") + `,"signatures":[{"protected":"` + b64([]byte(head)) + `","signature":"` + b64(make([]byte, 64)) + `"}]}`
		if by, err := signing.Verify([]byte(doc), set(t, k)); err == nil {
			t.Errorf("%s: verified by %v", head, by)
		}
	}
	many := strings.TrimSuffix(canonical, "}") + `,"signatures":[` + strings.Repeat(`{"protected":"e30","signature":""},`, 99) + `{}]}`
	if _, err := signing.Verify([]byte(many), set(t, k)); err == nil {
		t.Error("a hundred signatures are taken")
	}
	for _, broken := range []string{``, `{}`, `[]`, `{"keys":null}`} {
		if _, err := signing.Verify(signed(t, k), []byte(broken)); err == nil {
			t.Errorf("key set %q is taken", broken)
		}
	}
	for _, none := range []string{`{"keys":[]}`, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"` + keys.Keys[0].Kid + `","x":"AA"}]}`} {
		if _, err := signing.Verify(signed(t, k), []byte(none)); !errors.Is(err, signing.ErrUnknownKey) {
			t.Errorf("key set %q: %v", none, err)
		}
	}
}

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	one, keys := signed(t, first), set(t, first)
	second := open(t, dir)
	if two := signed(t, second); !bytes.Equal(one, two) || !bytes.Equal(keys, set(t, second)) {
		t.Errorf("after a restart the card is\n%s, before\n%s", two, one)
	}
	info, err := os.Stat(filepath.Join(dir, "keys", "card-signing.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file of keys: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, "keys")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of keys: %v, %v", info.Mode(), err)
	}
	if bytes.Contains(keys, []byte(`"d"`)) {
		t.Errorf("a private key is published: %s", keys)
	}
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	k, err := signing.Open(dir, nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	before, stale := signed(t, k), set(t, k)
	r, err := signing.Rotate(dir, time.Hour, now)
	if err != nil || r.New == r.Old || !r.PublishedUntil.Equal(now.Add(time.Hour)) {
		t.Fatalf("rotation: %+v, %v", r, err)
	}
	after := signed(t, k) // noticed without a restart
	if by, err := signing.Verify(after, set(t, k)); err != nil || by[0] != r.New {
		t.Errorf("after the rotation: %v, %v", by, err)
	}
	if by, err := signing.Verify(before, set(t, k)); err != nil || by[0] != r.Old {
		t.Errorf("the card from before: %v, %v", by, err)
	}
	// Who has the key set of before in a cache verifies the card of after.
	if by, err := signing.Verify(after, stale); err != nil || by[0] != r.Old {
		t.Errorf("with the key set from before: %v, %v", by, err)
	}
	if again, err := signing.Open(dir, nil, clock); err != nil || !bytes.Equal(after, signed(t, again)) {
		t.Errorf("a restart within the grace changes the card: %v", err)
	}
	if n := seeds(t, dir); n != 2 {
		t.Errorf("%d private keys are kept within the grace", n)
	}
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	if by, err := signing.Verify(signed(t, k), set(t, k)); err != nil || len(by) != 1 || by[0] != r.New {
		t.Errorf("after the grace the card is signed by %v, %v", by, err)
	}
	if n := seeds(t, dir); n != 1 {
		t.Errorf("%d private keys are kept after the grace", n)
	}
	if _, err := signing.Verify(before, set(t, k)); !errors.Is(err, signing.ErrUnknownKey) {
		t.Errorf("after the grace: %v", err)
	}
	if s, err := signing.Rotate(dir, 0, now); err != nil || s.Old != r.New { // revoked
		t.Fatal(s, err)
	}
	if _, err := signing.Verify(after, set(t, k)); !errors.Is(err, signing.ErrUnknownKey) {
		t.Errorf("after the revocation: %v", err)
	}
	var keys struct{ Keys []any }
	if err := json.Unmarshal(set(t, k), &keys); err != nil || len(keys.Keys) != 1 {
		t.Errorf("published are %v, %v", keys, err)
	}
	if n := seeds(t, dir); n != 1 {
		t.Errorf("%d private keys are kept after the revocation", n)
	}
}

// seeds counts the private keys in the file.
func seeds(t *testing.T, dir string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "keys", "card-signing.json"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(raw, []byte(`"seed"`))
}

// TestRotateOften: a card has few signatures however often a key is rotated,
// and each verifies with the key sets of the last few rotations.
func TestRotateOften(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	sets := [][]byte{set(t, k)}
	for range 20 {
		if _, err := signing.Rotate(dir, time.Hour, time.Now()); err != nil {
			t.Fatal(err)
		}
		sets = append(sets, set(t, k))
	}
	now := signed(t, k)
	for i, s := range sets {
		known := len(sets) - 4
		by, err := signing.Verify(now, s)
		if i < known && !errors.Is(err, signing.ErrUnknownKey) || i >= known && (err != nil || len(by) != i-known+1) {
			t.Errorf("with key set %d of %d: %v, %v", i, len(sets), by, err)
		}
	}
	if n := seeds(t, dir); n != 4 {
		t.Errorf("%d private keys are kept", n)
	}
}

// TestExpiredWhileStopped: what expired while no control plane ran is destroyed
// by the next; a file of before, without private halves, is taken.
func TestExpiredWhileStopped(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	past := time.Now().Add(-2 * time.Hour)
	if _, err := signing.Rotate(dir, time.Hour, past); err != nil {
		t.Fatal(err)
	}
	r, err := signing.Rotate(dir, 100*time.Hour, past)
	if err != nil || seeds(t, dir) != 3 {
		t.Fatal(seeds(t, dir), err)
	}
	k := open(t, dir)
	if by, err := signing.Verify(signed(t, k), set(t, k)); err != nil || len(by) != 2 || seeds(t, dir) != 2 {
		t.Errorf("signed by %v, %v; %d private keys are kept", by, err, seeds(t, dir))
	}
	path := filepath.Join(dir, "keys", "card-signing.json")
	var file map[string]any
	raw, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(raw, &file) != nil {
		t.Fatal(err)
	}
	old, _ := file["retired"].([]any)[0].(map[string]any)
	write := func() {
		if err := os.WriteFile(path, []byte(must(json.Marshal(file))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	delete(old, "seed")
	write()
	k = open(t, dir)
	if by, err := signing.Verify(signed(t, k), set(t, k)); err != nil || len(by) != 1 || by[0] != r.New || !bytes.Contains(set(t, k), []byte(r.Old)) {
		t.Errorf("without the private half: signed by %v, %v, published are %s", by, err, set(t, k))
	}
	for _, seed := range []string{"AAAA", base64.RawURLEncoding.EncodeToString(make([]byte, 32))} {
		old["seed"] = seed
		write()
		if _, err := signing.Open(dir, nil, nil); err == nil || !strings.Contains(err.Error(), r.Old) || strings.Contains(err.Error(), seed) {
			t.Errorf("with another private half: %v", err)
		}
	}
}

func TestRotateTogether(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := signing.Rotate(dir, time.Hour, time.Now()); err != nil {
				t.Error(err)
			}
			if _, err := k.Signer("").Sign([]byte(card)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var keys struct{ Keys []any }
	if err := json.Unmarshal(set(t, k), &keys); err != nil || len(keys.Keys) != 9 {
		t.Errorf("%d keys after 8 rotations", len(keys.Keys))
	}
}

func TestDamagedKeys(t *testing.T) {
	if _, err := signing.Rotate(t.TempDir(), 0, time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rotation without keys: %v", err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "keys", "card-signing.json")
	k := open(t, dir)
	want := set(t, k)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Signing struct{ Seed, Kid string } }
	if err := json.Unmarshal(good, &file); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		``, `{}`, strings.Replace(string(good), file.Signing.Seed, file.Signing.Seed[1:], 1),
		strings.Replace(string(good), file.Signing.Seed, base64.RawURLEncoding.EncodeToString(make([]byte, 32)), 1),
		strings.Replace(string(good), `"created"`, `"x": `+file.Signing.Seed+`, "created"`, 1),
	} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := signing.Open(dir, nil, nil); err == nil || strings.Contains(err.Error(), file.Signing.Seed[1:10]) {
			t.Errorf("%.30q: %v", bad, err)
		}
		if !bytes.Equal(want, set(t, k)) { // the running one goes on
			t.Error("a damaged file takes the keys away")
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Open(dir, nil, nil); err == nil || !strings.Contains(err.Error(), "read by others") {
		t.Errorf("a file that others can read: %v", err)
	}
}

func TestServe(t *testing.T) {
	k := open(t, t.TempDir())
	do := func(method, match string) *http.Response {
		req := httptest.NewRequest(method, "/.well-known/jwks.json", nil)
		req.Header.Set("If-None-Match", match)
		w := httptest.NewRecorder()
		k.ServeHTTP(w, req)
		return w.Result()
	}
	got := do(http.MethodGet, "")
	etag := got.Header.Get("ETag")
	if got.StatusCode != 200 || etag == "" || got.Header.Get("Content-Type") != "application/jwk-set+json" ||
		!strings.HasPrefix(got.Header.Get("Cache-Control"), "public, max-age=") {
		t.Errorf("%d %v", got.StatusCode, got.Header)
	}
	if got := do(http.MethodGet, etag); got.StatusCode != 304 {
		t.Errorf("If-None-Match: %d", got.StatusCode)
	}
	if got := do(http.MethodHead, ""); got.StatusCode != 200 || got.Header.Get("ETag") != etag || got.ContentLength > 0 && got.Body == nil {
		t.Errorf("HEAD: %d %v", got.StatusCode, got.Header)
	}
	if got := do(http.MethodPost, ""); got.StatusCode != 405 || got.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", got.StatusCode, got.Header)
	}
}

func FuzzVerify(f *testing.F) {
	dir := f.TempDir()
	k, err := signing.Open(dir, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	keys, err := k.Set()
	if err != nil {
		f.Fatal(err)
	}
	good, err := k.Signer("").Sign([]byte(card))
	if err != nil {
		f.Fatal(err)
	}
	want, err := signing.Canonical(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(card))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if _, err := signing.Verify(doc, keys); err != nil {
			return
		}
		if got, err := signing.Canonical(doc); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("verified is %q", doc)
		}
	})
}
