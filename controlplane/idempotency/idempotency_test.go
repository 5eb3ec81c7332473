package idempotency_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/idempotency"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/jcs"
)

const id = "018fc0a2-7777-7aaa-8bbb-ccccddddeeee"

func TestFingerprint(t *testing.T) {
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	want := sum(`{"message":{"parts":[{"text":"<hi>"}],"role":"ROLE_USER"},"metadata":{"n":1}}`)
	for _, same := range []string{
		`{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"<hi>"}]},"metadata":{"n":1}}`,
		` {"metadata": {"n": 1.0}, "message":{"parts":[{"text":"\u003chi>"}], "message_id":"018FC0A2-7777-7AAA-8BBB-CCCCDDDDEEEE","role":"ROLE_USER"}}`,
		`{"message":{"messageId":"` + id + `","message_id":null,"role":"ROLE_USER","parts":[{"text":"<hi>"}]},"metadata":{"n":1}}`,
	} {
		got, hash, err := idempotency.Fingerprint([]byte(same))
		if err != nil || got != id || hash != want {
			t.Errorf("%s: %q, %q, %v", same, got, hash, err)
		}
	}
	_, other, err := idempotency.Fingerprint([]byte(`{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"<ho>"}]},"metadata":{"n":1}}`))
	if err != nil || other == want {
		t.Errorf("another text has hash %q, %v", other, err)
	}
	for params, want := range map[string]error{
		``: idempotency.ErrShape, `[]`: idempotency.ErrShape, `{}`: idempotency.ErrShape, `{"message":null}`: idempotency.ErrShape, `{"message":"x"}`: idempotency.ErrShape,
		`{"message":{}}`:                                            idempotency.ErrMessageID,
		`{"message":{"messageId":7}}`:                               idempotency.ErrMessageID,
		`{"message":{"messageId":"m1"}}`:                            idempotency.ErrMessageID,
		`{"message":{"messageId":"{` + id + `}"}}`:                  idempotency.ErrMessageID,
		`{"message":{"messageId":"` + id + `\n"}}`:                  idempotency.ErrMessageID,
		`{"message":{"messageId":"` + id + `","metadata":[1e999]}}`: jcs.ErrNumber,
	} {
		if _, hash, err := idempotency.Fingerprint([]byte(params)); !errors.Is(err, want) || hash != "" {
			t.Errorf("%s: %q, %v, want %v", params, hash, err, want)
		}
	}
}
