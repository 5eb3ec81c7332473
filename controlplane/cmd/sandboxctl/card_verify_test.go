package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
)

func TestVerifyCard(t *testing.T) {
	dir := t.TempDir()
	keys, err := signing.Open(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := signing.Open(t.TempDir(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	served := http.Handler(keys)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/jwks.json" || r.Header.Get("Authorization") != "" {
			http.NotFound(w, r)
			return
		}
		served.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	const plain = `{"name":"demo\u009b2J","verified":false,"keys":["x"],"skills":[]}`
	sign := func(k *signing.Keys) []byte {
		// The address of the keys in the card is not the one that is asked.
		card, err := k.Signer("http://sandbox.invalid/jwks.json").Sign([]byte(plain))
		if err != nil {
			t.Fatal(err)
		}
		return card
	}
	verify := func(format string, card []byte) (string, error) {
		var out bytes.Buffer
		a := &app{stdout: &out, stderr: &out, format: format}
		r, err := verifyCard(t.Context(), &connection{server: srv.URL, token: "secret", http: srv.Client()}, card)
		if err == nil {
			err = a.print(r)
		}
		return out.String(), err
	}
	for format, want := range map[string]string{
		formatTable: `demo\u009b2J`, formatJSON: `"verified": true`, formatYAML: "verified: true", formatName: `demo\u009b2J`,
	} {
		if out, err := verify(format, sign(keys)); err != nil || !strings.Contains(out, want) || strings.Contains(out, "\u009b") {
			t.Errorf("%s: %q, %v", format, out, err)
		}
	}
	for what, c := range map[string]struct {
		card []byte
		want error
	}{
		"changed":  {bytes.Replace(sign(keys), []byte(`"skills":[]`), []byte(`"skills":[{"id":"evil"}]`), 1), signing.ErrForged},
		"stranger": {sign(stranger), signing.ErrUnknownKey},
		"unsigned": {[]byte(plain), signing.ErrUnsigned},
	} {
		out, err := verify(formatTable, c.card)
		if !errors.Is(err, c.want) || out != "" || remedyOf(err) == "" {
			t.Errorf("%s: %q, %v (%s)", what, out, err, remedyOf(err))
		}
	}
	stale, err := keys.Set()
	if err != nil {
		t.Fatal(err)
	}
	r, err := signing.Rotate(dir, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := verify(formatTable, sign(keys)); err != nil || !strings.Contains(out, r.New+", "+r.Old) {
		t.Errorf("after a rotation: %q, %v", out, err)
	}
	served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(stale) })
	if out, err := verify(formatTable, sign(keys)); err != nil || !strings.Contains(out, r.Old) || strings.Contains(out, r.New) {
		t.Errorf("after a rotation, with keys from a cache: %q, %v", out, err)
	}
	served = http.NotFoundHandler()
	if _, err := verify(formatTable, sign(keys)); err == nil || !strings.Contains(err.Error(), "HTTP status 404") {
		t.Errorf("without keys: %v", err)
	}
	served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxKeySet+1)) })
	if _, err := verify(formatTable, sign(keys)); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("with endless keys: %v", err)
	}
}
