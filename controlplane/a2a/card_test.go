package a2a_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	for _, n := range []string{
		"runtime/v1/params.schema.json", "runtime/v1/task-metadata.schema.json",
		"adapter-command/v1/envelope.schema.json", "adapter-command/v1/outcome.schema.json",
		"idempotency/v1/params.schema.json", "idempotency/v1/conflict.schema.json",
	} {
		raw, err := extensions.Schemas.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("https://agentic-sandbox.aiwg.io/extensions/"+n, doc); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("https://agentic-sandbox.aiwg.io/extensions/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, name string, v any) {
	t.Helper()
	if err := schema(t, name).Validate(v); err != nil {
		t.Error(err)
	}
}

func TestCard(t *testing.T) {
	r := newRig(t, nil)
	for _, id := range []string{idA, idB, idHost} {
		path := "/agents/" + id + "/.well-known/agent-card.json"
		a := r.do(get, path, "", nil)
		if a.status != 200 || a.header.Get("Content-Type") != "application/json" || !strings.Contains(a.header.Get("Cache-Control"), "private, max-age=") {
			t.Fatalf("card: %d %v", a.status, a.header)
		}
		if bytes.Contains(a.body, []byte("null")) {
			t.Errorf("card has a null: %s", a.body)
		}
		list, _ := a.path("capabilities", "extensions").([]any)
		found := 0
		for _, e := range list {
			if dig(e, "uri") == extensions.Runtime {
				found++
				validate(t, "runtime/v1/params.schema.json", dig(e, "params"))
				if dig(e, "required") != true || dig(e, "params", "instance_id") != id {
					t.Errorf("entry is %v", e)
				}
			}
		}
		if found != 1 {
			t.Errorf("the card has runtime/v1 %d times", found)
		}
		for i := range 2 {
			if dig(a.json, "supportedInterfaces", i, "url") != r.url+"/agents/"+id || dig(a.json, "supportedInterfaces", i, "protocolVersion") != "1.0" {
				t.Errorf("interfaces are %v", a.path("supportedInterfaces"))
			}
		}
		if skills, _ := a.path("skills").([]any); len(skills) == 0 {
			t.Error("the card has no skill")
		}
		for _, required := range []string{"name", "description", "version", "defaultInputModes", "defaultOutputModes", "securitySchemes"} {
			if v := a.path(required); v == nil || v == "" {
				t.Errorf("card has no %s", required)
			}
		}
		etag := a.header.Get("ETag")
		for match, status := range map[string]int{etag: 304, "W/" + etag: 304, `"other"`: 200, "*": 304, `"a", ` + etag: 304} {
			if b := r.do(get, path, "", map[string]string{"If-None-Match": match}); b.status != status || b.header.Get("ETag") != etag {
				t.Errorf("If-None-Match %s: %d", match, b.status)
			}
		}
		head := r.do(http.MethodHead, path, "", nil)
		if head.status != 200 || len(head.body) != 0 || head.header.Get("ETag") != etag || head.header.Get("Content-Length") == "" {
			t.Errorf("HEAD: %d %v", head.status, head.header)
		}
	}
	again := newRig(t, nil).do(get, "/agents/"+idA+"/.well-known/agent-card.json", "", nil)
	if dig(again.path("capabilities", "extensions", 0), "params", "instance_id") != idA {
		t.Error("instance_id has changed")
	}
}

func TestSchemasRefuse(t *testing.T) {
	params := schema(t, "runtime/v1/params.schema.json")
	digest := "sha256:" + strings.Repeat("a", 64)
	for doc, ok := range map[string]bool{
		`{"runtime":"vm","loadout":"x","instance_id":"` + idA + `"}`:                                                               true,
		`{"runtime":"vm","loadout":"x","instance_id":"` + idHost + `","image_ref":"qcow2://images/a@` + digest + `"}`:              true,
		`{"runtime":"wasm-next","loadout":"x","instance_id":"` + idA + `","provider":"unknown.1","capabilities":["future.thing"]}`: true,
		`{"runtime":"container","loadout":"x","instance_id":"` + idA + `","image_ref":"ghcr.io/a/b@` + digest + `"}`:               true,
		`{"runtime":"vm","loadout":"x","instance_id":"` + idA + `","image_ref":"qcow2://images/a"}`:                                false,
		`{"runtime":"host","loadout":"x","instance_id":"` + idA + `","image_ref":"qcow2://images/a@` + digest + `"}`:               false,
		`{"runtime":"vm","loadout":"profiles/x.yaml","instance_id":"` + idA + `"}`:                                                 false,
		`{"runtime":"vm","loadout":"x","instance_id":"` + strings.ToUpper(idHost) + `"}`:                                           false,
		`{"runtime":"vm","loadout":"x","instance_id":"6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`:                                      false,
		`{"runtime":"vm","loadout":"x","instance_id":"` + idA + `","extra":1}`:                                                     false,
		`{"runtime":"vm","loadout":"x"}`: false,
	} {
		var v any
		if err := json.Unmarshal([]byte(doc), &v); err != nil {
			t.Fatal(err)
		}
		if err := params.Validate(v); (err == nil) != ok {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
