package signing

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/jcs"
)

const algorithm = "EdDSA"

// maxSignatures bounds how many signatures of one card are looked at.
const maxSignatures = 16

// Signature is one entry of a card's signatures: a JSON Web Signature whose
// payload is not in it but is the card (RFC 7515, appendix F).
type Signature struct {
	Protected string `json:"protected"`
	Signature string `json:"signature"`
}

// header is the protected header. Its members stand in the order of their
// names, as in all that is signed here.
type header struct {
	Alg  string          `json:"alg"`
	Crit json.RawMessage `json:"crit,omitempty"`
	JKU  string          `json:"jku,omitempty"`
	Kid  string          `json:"kid"`
	Typ  string          `json:"typ,omitempty"`
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// publicOf is the public half of a key.
func publicOf(key ed25519.PrivateKey) ed25519.PublicKey {
	return ed25519.PublicKey(key[ed25519.SeedSize:])
}

// thumbprint names a key after itself (RFC 7638).
func thumbprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + b64(key) + `"}`))
	return b64(sum[:])
}

// sign returns the card as it is served: in canonical form with a signature by
// each key. Equal cards and keys give equal bytes.
func sign(card []byte, keys []ed25519.PrivateKey, jku string) ([]byte, error) {
	payload, err := Canonical(card)
	if err != nil {
		return nil, err
	}
	signatures := make([]Signature, 0, len(keys))
	for _, key := range keys {
		head, err := jcs.Marshal(header{Alg: algorithm, JKU: jku, Kid: thumbprint(publicOf(key)), Typ: "JOSE"})
		if err != nil {
			return nil, fmt.Errorf("cannot encode header: %w", err)
		}
		protected := b64(head)
		signatures = append(signatures, Signature{
			Protected: protected, Signature: b64(ed25519.Sign(key, []byte(protected+"."+b64(payload)))),
		})
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil {
		return nil, fmt.Errorf("cannot read card: %w", err)
	}
	if members["signatures"], err = encode(signatures); err != nil {
		return nil, err
	}
	whole, err := encode(members)
	if err != nil {
		return nil, err
	}
	return jcs.Transform(whole) //nolint:wrapcheck // it has just been read
}

// Errors of Verify, to be asked for with errors.Is.
var (
	// ErrUnsigned: the card carries no signature.
	ErrUnsigned = errors.New("the card carries no signature")
	// ErrUnknownKey: no signature is by a key of the set.
	ErrUnknownKey = errors.New("no signature is by a known key")
	// ErrForged: a signature by a known key is not one of this card.
	ErrForged = errors.New("the signature does not belong to the card: it was changed after it was signed")
)

// Verify checks a card against a key set (RFC 7517) and returns the ids of the
// keys whose signatures it carries, at least one. Signatures by other keys have
// no say; one by a known key that is wrong makes the card a forgery. The keys
// must come from where they are trusted: an address named in the card proves
// nothing.
func Verify(card, keySet []byte) ([]string, error) {
	var signed struct {
		Signatures []Signature `json:"signatures"`
	}
	payload, err := Canonical(card)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(card, &signed); err != nil {
		return nil, fmt.Errorf("cannot read signatures: %w", err)
	}
	keys, err := parseSet(keySet)
	if err != nil {
		return nil, err
	}
	switch n := len(signed.Signatures); {
	case n == 0:
		return nil, ErrUnsigned
	case n > maxSignatures:
		return nil, fmt.Errorf("cannot verify card: it carries %d signatures, more than %d", n, maxSignatures)
	}
	var by []string
	for _, s := range signed.Signatures {
		kid, err := s.check(b64(payload), keys)
		switch {
		case errors.Is(err, ErrUnknownKey):
		case err != nil:
			return nil, err
		default:
			by = append(by, kid)
		}
	}
	if len(by) == 0 {
		return nil, ErrUnknownKey
	}
	return by, nil
}

func (s Signature) check(payload string, keys map[string]ed25519.PublicKey) (string, error) {
	head, err := base64.RawURLEncoding.DecodeString(s.Protected)
	if err != nil {
		return "", fmt.Errorf("cannot read a signature's header: %w", err)
	}
	var h header
	if err := json.Unmarshal(head, &h); err != nil {
		return "", fmt.Errorf("cannot read a signature's header: %w", err)
	}
	key, ok := keys[h.Kid]
	switch {
	case !ok:
		return "", ErrUnknownKey
	case h.Alg != algorithm: // never what the header likes, "none" included
		return "", fmt.Errorf("%w: its algorithm is %.20q, not %s", ErrForged, h.Alg, algorithm)
	case len(h.Crit) > 0:
		return "", fmt.Errorf("cannot verify signature: it depends on header members that are not understood: %.80q", h.Crit)
	}
	sig, err := base64.RawURLEncoding.DecodeString(s.Signature)
	if err != nil || !ed25519.Verify(key, []byte(s.Protected+"."+payload), sig) {
		return "", ErrForged
	}
	return h.Kid, nil
}

// jwk is one key of a set.
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Kid string `json:"kid"`
	Alg string `json:"alg"`
	Use string `json:"use"`
}

type jwkSet struct {
	Keys []jwk `json:"keys"`
}

func publicJWK(key ed25519.PublicKey) jwk {
	return jwk{Kty: "OKP", Crv: "Ed25519", X: b64(key), Kid: thumbprint(key), Alg: algorithm, Use: "sig"}
}

// parseSet reads the keys of a set that can verify; others are passed over.
func parseSet(raw []byte) (map[string]ed25519.PublicKey, error) {
	var set jwkSet
	if err := json.Unmarshal(raw, &set); err != nil || set.Keys == nil {
		return nil, errors.New("cannot read key set: it is not a JSON Web Key Set")
	}
	keys := map[string]ed25519.PublicKey{}
	for _, k := range set.Keys {
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if k.Kty != "OKP" || k.Crv != "Ed25519" || k.Kid == "" || err != nil || len(x) != ed25519.PublicKeySize ||
			k.Alg != "" && k.Alg != algorithm || k.Use != "" && k.Use != "sig" {
			continue
		}
		keys[k.Kid] = x
	}
	return keys, nil
}
