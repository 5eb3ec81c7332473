package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
)

// FuzzFingerprint: the hash is that of what the params say but for the
// message's id. Neither spaces nor the order of members nor the id change it;
// another member does.
func FuzzFingerprint(f *testing.F) {
	const id = "018fc0a2-7777-7aaa-8bbb-00000000000a"
	for _, seed := range []string{
		`{"message":{"messageId":"` + id + `","parts":[{"text":"x"}]}}`, `{"message":{"message_id":"` + strings.ToUpper(id) + `"},"n":1e2,"m":{"b":1,"a":[1.50]}}`,
		`{"message":{"messageId":"m"}}`, `{"message":7}`, `[]`, `{"message":{"messageId":"` + id + `","message_id":null,"x":"<\u00e9\ud83d\ude00>"}}`,
		`{"message":{"messageId":null,"message_id":"` + id + `"},"metadata":{"":1}}`,
	} {
		f.Add([]byte(seed))
	}
	hashForm := regexp.MustCompile(`^[0-9a-f]{64}$`)
	idForm := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		messageID, hash, err := idempotency.Fingerprint(raw)
		if err != nil {
			if messageID != "" || hash != "" {
				t.Fatalf("%q is %q, %q and %v", raw, messageID, hash, err)
			}
			return
		}
		if !hashForm.MatchString(hash) || !idForm.MatchString(messageID) {
			t.Fatalf("%q is %q, %q", raw, messageID, hash)
		}
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, raw, " ", "\t"); err != nil {
			t.Fatal(err)
		}
		wantHash(t, spaced.Bytes(), hash, true)

		var members, message map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil || json.Unmarshal(members["message"], &message) != nil {
			t.Fatalf("%q was taken", raw)
		}
		message["messageId"] = json.RawMessage(`"` + strings.ToUpper(id) + `"`)
		delete(message, "message_id")
		wantHash(t, put(t, members, message), hash, true)
		message["one more"] = json.RawMessage(`1`)
		wantHash(t, put(t, members, message), hash, false)
	})
}

// put writes the members in the order of their names, which need not be that
// in which they came.
func put(t *testing.T, members, message map[string]json.RawMessage) []byte {
	t.Helper()
	var err error
	if members["message"], err = json.Marshal(message); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantHash(t *testing.T, params []byte, hash string, same bool) {
	t.Helper()
	_, got, err := idempotency.Fingerprint(params)
	if errors.Is(err, idempotency.ErrShape) || err == nil && (got == hash) != same || err != nil {
		t.Fatalf("%q is %q, %v; is it to be %q: %t", params, got, err, hash, same)
	}
}
