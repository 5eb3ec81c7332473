package conformance

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func cardCases() []kase {
	return []kase{
		once("CARD-DISC-001", cardIsThere),
		once("CARD-PROTO-001", protocolsAreDeclared),
		once("CARD-PROTO-002", interfacesAnswer),
		once("CARD-STRUCT-001", cardIsWhole),
		both("CARD-EXT-001", extendedCardNeedsCaller, needNarrow),
		once("CARD-SIGN-001", signatureVerifies),
		once("CARD-SIGN-002", signaturesAreNotSigned),
		once("CARD-SIGN-003", headerNamesKey),
		rough(once("CARD-SIGN-004", revokedKeyIsGone, needKeys)),
		once("CARD-ORIGIN-001", originIsTheAgent, needNarrow),
		once("CARD-CACHE-001", cardMayBeKept),
		once("CARD-CACHE-002", cardHasETag),
		rough(once("CARD-STABLE-001", cardOutlivesServer, needKill)),
	}
}

func cardIsThere(x *trial) {
	r := x.card()
	x.want(r.header.Get("Content-Type") == typeJSON && text(r.body, "name") != "", "the card is %v %.200s", r.header, r.raw)
}

func protocolsAreDeclared(x *trial) {
	l := list(x.card().body, "supportedInterfaces")
	want := []string{"JSONRPC 1.0", "HTTP+JSON 1.0", "JSONRPC 0.3", "HTTP+JSON 0.3"}
	var have []string
	for _, i := range l {
		have = append(have, text(i, "protocolBinding")+" "+text(i, "protocolVersion"))
	}
	x.want(slices.Equal(have, want), "interfaces are %v, want %v", have, want)
}

func interfacesAnswer(x *trial) {
	id := x.done()
	for _, i := range list(x.card().body, "supportedInterfaces") {
		y := x.in(form{text(i, "protocolVersion"), binding(text(i, "protocolBinding"))})
		at := *y.target
		at.agent = text(i, "url")
		x.want(at.agent == x.agent, "the address is %s, asked was %s", at.agent, x.agent)
		k := y.on(&at).ok(opGet, object{"id": id}).task()
		x.want(text(k, "id") == id, "%v answers %v", i, k)
	}
}

func cardIsWhole(x *trial) {
	r := x.card()
	if bad := shapes10().check("AgentCard", "card", r.body); len(bad) > 0 {
		x.Errorf("the card: %s", strings.Join(bad, "; "))
	}
	x.want(!strings.Contains(string(r.raw), "null"), "there is a null in the card: %s", r.raw)
	c := dig(r.body, "capabilities")
	x.want(dig(c, "streaming") == true, "capabilities are %v", c)
	for name, s := range dig(r.body, "securitySchemes").(object) {
		x.want(len(s.(object)) == 1, "the scheme %s has not exactly one kind: %v", name, s)
	}
	if x.name == "vm" || x.name == "host" {
		x.want(dig(r.body, "securitySchemes", "bearer", "httpAuthSecurityScheme", "scheme") == "Bearer", "schemes are %v",
			dig(r.body, "securitySchemes"))
	}
}

func extendedCardNeedsCaller(x *trial) {
	y := x.on(x.narrow)
	x.want(dig(y.card().body, "capabilities", "extendedAgentCard") == true, "the card does not declare it")
	r := y.ok(opExtended, nil)
	x.want(len(list(r.result, "skills")) > len(list(y.card().body, "skills")), "it has no more skills: %.300s", r.raw)
	anonymous := y.as("").call(opExtended, nil)
	x.want(anonymous.status == http.StatusUnauthorized, "without a token it is %d", anonymous.status)
}

// keySet are the published keys by id.
func (x *trial) keySet() map[string]ed25519.PublicKey {
	x.Helper()
	f := x.fetch(http.MethodGet, x.url+"/.well-known/jwks.json", headers("Authorization", ""))
	x.want(f.status == http.StatusOK && strings.Contains(f.header.Get("Content-Type"), "json"), "the keys are %d %v", f.status, f.header)
	var set struct {
		Keys []struct{ Kty, Crv, X, Kid, D string }
	}
	x.check(json.Unmarshal(f.raw, &set))
	keys := map[string]ed25519.PublicKey{}
	for _, k := range set.Keys {
		raw, err := base64.RawURLEncoding.DecodeString(k.X)
		x.check(err)
		x.want(k.Kty == "OKP" && k.Crv == "Ed25519" && len(raw) == ed25519.PublicKeySize && k.D == "", "a key is %+v", k)
		keys[k.Kid] = raw
	}
	return keys
}

// signed takes a card apart: its payload in canonical form, and signatures.
func (x *trial) signed(card []byte) (payload []byte, signatures []any) {
	x.Helper()
	var members object
	x.check(json.Unmarshal(card, &members))
	signatures = list(members, "signatures")
	delete(members, "signatures")
	// Served is the very form that was signed, and sorted members, no blanks,
	// no escaped HTML are all that RFC 8785 adds for texts and truths.
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	x.check(enc.Encode(members))
	return bytes.TrimSpace(b.Bytes()), signatures
}

func (x *trial) verify(card []byte, keys map[string]ed25519.PublicKey) (kids []string) {
	x.Helper()
	payload, signatures := x.signed(card)
	for _, s := range signatures {
		protected, err := base64.RawURLEncoding.DecodeString(text(s, "protected"))
		x.check(err)
		var h struct{ Alg, Kid, Typ string }
		x.check(json.Unmarshal(protected, &h))
		sig, err := base64.RawURLEncoding.DecodeString(text(s, "signature"))
		x.check(err)
		key := keys[h.Kid]
		if h.Alg == "EdDSA" && key != nil &&
			ed25519.Verify(key, []byte(text(s, "protected")+"."+base64.RawURLEncoding.EncodeToString(payload)), sig) {
			kids = append(kids, h.Kid)
		}
	}
	return kids
}

func signatureVerifies(x *trial) {
	r := x.card()
	x.want(len(x.verify(r.raw, x.keySet())) > 0, "no signature verifies: %s", r.raw)
	forged := bytes.Replace(r.raw, []byte(`"streaming":true`), []byte(`"streaming":false`), 1)
	x.want(!bytes.Equal(forged, r.raw) && len(x.verify(forged, x.keySet())) == 0, "a changed card verifies")
}

func signaturesAreNotSigned(x *trial) {
	payload, signatures := x.signed(x.card().raw)
	x.want(len(signatures) > 0 && !bytes.Contains(payload, []byte("signatures")), "there are %d signatures", len(signatures))
	x.want(len(x.verify(x.card().raw, x.keySet())) == len(signatures), "not every signature verifies")
}

func headerNamesKey(x *trial) {
	for _, s := range list(x.card().body, "signatures") {
		raw, err := base64.RawURLEncoding.DecodeString(text(s, "protected"))
		x.check(err)
		var h object
		x.check(json.Unmarshal(raw, &h))
		x.want(h["alg"] == "EdDSA" && h["typ"] == "JOSE" && x.keySet()[text(h, "kid")] != nil, "the header is %s", raw)
	}
}

func revokedKeyIsGone(x *trial) {
	before := x.card().raw
	old := x.verify(before, x.keySet())
	x.rotate("0s")
	x.want(len(x.verify(before, x.keySet())) == 0, "a card of the revoked key still verifies")
	after := x.verify(x.card().raw, x.keySet())
	x.want(len(after) > 0 && !slices.Contains(after, old[0]), "the new card is signed by %v, the old one by %v", after, old)
}

// originIsTheAgent asks for the agent at the root of its own origin.
func originIsTheAgent(x *trial) {
	at := *x.narrow
	id := at.agent[strings.LastIndex(at.agent, "/")+1:]
	host := id + "." + virtualDomain
	at.agent = at.url // and the origin in the header Host
	y := x.on(&at)
	origin := headers("Host", host)
	card := y.raw(http.MethodGet, cardPath, nil, origin)
	for _, i := range list(card.body, "supportedInterfaces") {
		y.want(strings.HasPrefix(text(i, "url"), "http://"+host), "an interface is %v", i)
	}
	y.want(len(y.verify(card.raw, y.keySet())) > 0, "the card does not verify: %s", card.raw)
	sent := y.ok(opSend, y.message("by origin", nil), origin)
	task := text(sent.task(), "id")
	y.want(text(y.in(rpc10()).ok(opGet, object{"id": task}, origin).result, "id") == task, "JSON-RPC does not know the task")
	y.want(text(x.on(x.narrow).ok(opGet, object{"id": task}).result, "id") == task, "by path the task is not known")
	other := y.raw(http.MethodGet, cardPath, nil, headers("Host", "018fc0a2-7777-7aaa-bbbb-ccccddddeeee."+virtualDomain))
	y.want(other.status == http.StatusNotFound, "the origin of nobody is %d", other.status)
}

var maxAgeForm = regexp.MustCompile(`(^|[ ,])max-age=[1-9][0-9]*`)

func cardMayBeKept(x *trial) {
	h := x.card().header
	x.want(maxAgeForm.MatchString(h.Get("Cache-Control")), "Cache-Control is %q", h.Get("Cache-Control"))
	x.want(slices.Contains(splitURIs(h.Values("Vary")), "A2A-Version"), "Vary is %q", h.Values("Vary"))
}

func cardHasETag(x *trial) {
	r := x.card()
	etag := r.header.Get("ETag")
	x.want(strings.HasPrefix(etag, `"`) && len(etag) > 10, "ETag is %q", etag)
	for match, want := range map[string]int{etag: 304, `"other", ` + etag: 304, "*": 304, `"other"`: 200, "W/" + etag: 304} {
		f := x.fetch(http.MethodGet, x.agent+cardPath, headers("If-None-Match", match))
		x.want(f.status == want && (want == 200) == (len(f.raw) > 0), "If-None-Match %s is %d with %d bytes, want %d", match, f.status, len(f.raw), want)
		x.want(f.header.Get("ETag") == etag, "ETag is %q", f.header.Get("ETag"))
	}
	f := x.fetch(http.MethodHead, x.agent+cardPath, nil)
	x.want(f.status == 200 && len(f.raw) == 0 && f.header.Get("ETag") == etag && f.header.Get("Content-Length") == itoa(len(r.raw)),
		"HEAD is %d %v with %d bytes", f.status, f.header, len(f.raw))
	old := x.in(rest03()).card()
	x.want(old.header.Get("ETag") != etag, "the card of 0.3 has the same ETag")
}

func cardOutlivesServer(x *trial) {
	before := sha256.Sum256(x.card().raw)
	etag := x.card().header.Get("ETag")
	x.restart()
	r := x.card()
	x.want(sha256.Sum256(r.raw) == before && r.header.Get("ETag") == etag, "the card is another one: %s", r.raw)
}
