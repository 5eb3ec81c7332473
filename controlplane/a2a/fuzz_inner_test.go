package a2a

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// wantRefusal wants a fault to be one of the request's: bounded, and with the
// field and the rule of everything it names.
func wantRefusal(t *testing.T, f *fault) {
	t.Helper()
	if f.http != http.StatusBadRequest || f.message == "" || len(f.violations) > maxViolations {
		t.Fatalf("refused with %+v", f)
	}
	if len(f.violations) == 0 && f.rpc != rpcInvalidParams {
		t.Fatalf("%+v names no field", f)
	}
	for _, v := range f.violations {
		if v.Field == "" || v.Description == "" || !utf8.ValidString(v.Field+v.Description) {
			t.Fatalf("%+v names no field or no rule", f)
		}
	}
}

// wantMessage wants a message that was taken to keep the rules.
func wantMessage(t *testing.T, m task.Message) {
	t.Helper()
	if m.Role != task.User || len(m.Parts) == 0 || len(m.Parts) > maxParts ||
		checkID(m.MessageID) != "" || checkID(m.ContextID) != "" || checkID(m.TaskID) != "" {
		t.Fatalf("taken: %+v", m)
	}
	for i, p := range m.Parts {
		kinds := 0
		for _, has := range []bool{p.Text != nil, p.Raw != nil, p.URL != nil, p.Data != nil} {
			if has {
				kinds++
			}
		}
		if kinds != 1 {
			t.Fatalf("part %d of %+v has %d kinds", i, m, kinds)
		}
	}
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzSend reads whatever passes for a request of 1.0: a refusal names a
// field, and what is taken is, written and read again, the same.
func FuzzSend(f *testing.F) {
	for _, seed := range []string{
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}`,
		`{"message":{"message_id":"m","context_id":"c","role":"ROLE_USER","parts":[{"raw":"aGk","filename":"f","media_type":"a/b"},{"url":"u"},{"data":null}],` +
			`"metadata":{"a":null},"extensions":["e"],"reference_task_ids":["t"]},"configuration":{"history_length":"3","returnImmediately":true}}`,
		`{"message":{"messageId":"","role":"ROLE_ROBOT","parts":[{"text":"x","url":"y"},7,{}]}}`, `{"message":null}`, `[]`,
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"raw":""},{"text":""},{"data":{"a":[1e3,"<"]}}]}}`,
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]},"configuration":{"taskPushNotificationConfig":{"url":"u","taskId":"t"}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw) != "" {
			return // it is refused before
		}
		req, fault := decodeSend(raw, v10)
		if fault != nil {
			wantRefusal(t, fault)
			return
		}
		wantMessage(t, req.message)
		if req.message.MessageID == "" || req.history < -1 {
			t.Fatalf("taken: %+v", req)
		}
		once := encoded(t, req.message)
		again, fault := decodeSend(append(append([]byte(`{"message":`), once...), '}'), v10)
		if fault != nil {
			t.Fatalf("%s was written and is refused: %+v", once, fault)
		}
		if twice := encoded(t, again.message); !bytes.Equal(once, twice) {
			t.Fatalf("%s\nbecame %s\nand then %s", raw, once, twice)
		}
		var stored task.Message // as it comes back from the store
		if err := json.Unmarshal(once, &stored); err != nil || !bytes.Equal(encoded(t, stored), once) {
			t.Fatalf("%s is read from the store as %+v: %v", once, stored, err)
		}
	})
}

// FuzzForms03 sends a message that 1.0 takes through both spellings of 0.3:
// it comes back the same, but for the names of files that 0.3 has no place for.
func FuzzForms03(f *testing.F) {
	for _, seed := range []string{
		`{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x","metadata":{"k":1}},{"raw":"","filename":"f"},{"url":"u","mediaType":"a/b"}]}`,
		`{"messageId":"m","role":"ROLE_USER","parts":[{"data":7},{"data":{"value":7}},{"data":{"data":{}}},{"data":null},{"data":{}}]}`,
		`{"messageId":"m","role":"ROLE_USER","parts":[{"data":{"value":{}},"metadata":{"data_part_compat":true}}],"extensions":["e"],"contextId":"c"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		body := append(append([]byte(`{"message":`), raw...), '}')
		if checkJSON(body) != "" {
			return
		}
		req, fault := decodeSend(body, v10)
		if fault != nil {
			return
		}
		m := req.message
		for i := range m.Parts {
			p := &m.Parts[i]
			if p.Text != nil || p.Data != nil {
				p.Filename, p.MediaType = "", ""
			}
			// A mark of its own is taken for that of a translation.
			if _, marked := p.Metadata[wrappedMark]; marked {
				return
			}
		}
		want := encoded(t, m)
		for _, b := range []binding{jsonRPC, httpJSON} {
			form := encoded(t, b.message(m))
			got, fault := decodeSend03(append(append([]byte(`{"message":`), form...), '}'))
			if fault != nil {
				t.Fatalf("%s is refused: %+v", form, fault)
			}
			if back := encoded(t, got.message); !bytes.Equal(back, want) {
				t.Fatalf("%s\nwas sent as %s\nand came back %s", want, form, back)
			}
		}
	})
}

// FuzzPlace: a token is one that this server made, byte for byte, or refused.
func FuzzPlace(f *testing.F) {
	for _, p := range []task.Place{{StatusMillis: 17, ID: "a"}, {StatusMillis: -1, ID: "a b"}, {}} {
		f.Add(encodePlace(&p), p.StatusMillis, p.ID)
	}
	f.Add("MTcgYQ==", int64(0), "\xff")
	f.Add("KzE3IGE", int64(1)<<62, "€")
	f.Fuzz(func(t *testing.T, token string, millis int64, id string) {
		p, ok := decodePlace(token)
		if ok && (encodePlace(p) != token || len(p.ID) > maxID) {
			t.Fatalf("%q became %+v, which is %q", token, p, encodePlace(p))
		}
		req, fault := decodeList(object{d: &decoder{}, m: map[string]json.RawMessage{"pageToken": json.RawMessage(quote(token))}})
		switch {
		case fault != nil && (ok && utf8.ValidString(token) || token == ""):
			t.Fatalf("%q is refused: %+v", token, fault)
		case fault != nil:
			wantRefusal(t, fault)
			if fault.violations[0].Field != "pageToken" {
				t.Fatalf("%+v names another field", fault)
			}
		case token != "" && (req.filter.After == nil || *req.filter.After != *p):
			t.Fatalf("%q became %+v", token, req.filter.After)
		}
		made := encodePlace(&task.Place{StatusMillis: millis, ID: id})
		back, ok := decodePlace(made)
		if len(id) <= maxID-24 && (!ok || back.StatusMillis != millis || back.ID != id) {
			t.Fatalf("%d %q is %q, and that is %+v", millis, id, made, back)
		}
	})
}

// FuzzNegotiate: a version is one of those that are spoken, and exactly what
// is asked for and supported is activated.
func FuzzNegotiate(f *testing.F) {
	f.Add("1.0", extensions.Runtime+", "+extensions.HITLPrompt, "x", "/agents/i/message:send")
	f.Add("0.3.7", ","+extensions.Runtime+",,", extensions.AdapterCommand, "/agents/i/v1/message:send")
	f.Add(" 1.0.99 ", "", "", "/v1/")
	form := regexp.MustCompile(`^(1\.0|0\.3)(\.[0-9]+)?$`)
	supported := Agent{Runners: []string{"adapter-command"}}.extensions()
	f.Fuzz(func(t *testing.T, asked, list, old, path string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.URL.Path = path
		r.Header[headerVersion] = []string{asked}
		r.Header[http.CanonicalHeaderKey(headerVersion)] = []string{asked}
		r.Header[http.CanonicalHeaderKey(headerExtensions)] = []string{list}
		r.Header[http.CanonicalHeaderKey(headerExtensionsOld)] = []string{old}
		v, fault := negotiateVersion(r)
		name := strings.TrimSpace(asked)
		switch {
		case fault != nil && (fault.http != http.StatusBadRequest || fault.reason != "VERSION_NOT_SUPPORTED" || fault.meta["supportedVersions"] == ""):
			t.Fatalf("%q is refused with %+v", asked, fault)
		case fault == nil && (name == "" && v != v03 || name != "" && (!form.MatchString(name) || !strings.HasPrefix(name, string(v)))):
			t.Fatalf("%q became %q", asked, v)
		case path03(path) && fault == nil && v != v03:
			t.Fatalf("%q is spoken at %q", v, path)
		}
		active := requestedExtensions(r, supported)
		var want []string
		for _, e := range supported {
			if slices.ContainsFunc(strings.Split(list+","+old, ","), func(s string) bool { return strings.TrimSpace(s) == e.URI }) {
				want = append(want, e.URI)
			}
		}
		if !slices.Equal(active, want) {
			t.Fatalf("%q and %q activate %q, want %q", list, old, active, want)
		}
		if refused := checkRequired(active, supported) != nil; refused == slices.Contains(active, extensions.Runtime) {
			t.Fatalf("with %q it is refused: %t", active, refused)
		}
	})
}

// FuzzPushConfig: a webhook that is refused is refused by a field, and no
// answer, whatever it is, tells a secret.
func FuzzPushConfig(f *testing.F) {
	for _, seed := range []string{
		`{"taskId":"t","id":"i","url":"https://x","token":"hush-hush-1","authentication":{"scheme":"Bearer","credentials":"hush-hush-2"}}`,
		`{"pushNotificationConfig":{"url":"u","token":"hush-hush-1","authentication":{"schemes":["a"],"credentials":"hush-hush-2"}}}`,
		`{"config":{"pushNotificationConfig":{"id":7}},"authentication":{"scheme":[]}}`, `{"token":{},"url":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if checkJSON(raw) != "" {
			return
		}
		for _, read := range []func(object) pushRequest{
			func(o object) pushRequest { return o.pushConfig(v10) },
			func(o object) pushRequest { return o.pushConfig03(jsonRPC) },
			func(o object) pushRequest { return o.pushConfig03(httpJSON) },
		} {
			d := &decoder{}
			r := read(d.object("config", raw))
			if fault := d.fault(); fault != nil {
				wantRefusal(t, fault)
				continue
			}
			if checkID(r.taskID) != "" || checkID(r.registration.ID) != "" {
				t.Fatalf("taken: %+v", r)
			}
			shown := string(encoded(t, r.registration))
			for _, secret := range []string{string(r.registration.Token), string(r.registration.Credentials)} {
				rest := strings.NewReplacer(r.registration.URL, "", r.registration.ID, "", r.registration.Scheme, "").Replace(shown)
				if len(secret) > 12 && strings.Contains(rest, secret) {
					t.Fatalf("%s tells %q", shown, secret)
				}
			}
		}
	})
}
