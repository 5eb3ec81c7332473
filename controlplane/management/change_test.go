package management_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// ask sends a request with headers, given as name and value by turns.
func ask(t testing.TB, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, got := roundTrip(t, req)
	return res, string(got)
}

// shelf is one instance whose labels can be changed as a fleet does it.
type shelf struct {
	fakeFleet
	view  fleet.View
	meets int // how many changes of others cross ours
}

func newShelf() *shelf {
	s := &shelf{view: sampleView()}
	s.GetFn = func(context.Context, string) (fleet.View, error) { return s.view, nil }
	s.SetLabelsFn = func(_ context.Context, ref string, labels map[string]string, generation int64) (fleet.View, error) {
		if s.meets > 0 {
			s.meets--
			s.view.Generation++
			s.view.Labels = maps.Clone(s.view.Labels)
			s.view.Labels["other"] = strconv.Itoa(int(s.view.Generation))
		}
		if ref != sampleID || (generation != 0 && generation != s.view.Generation) {
			return fleet.View{}, &instance.Fault{Blame: instance.Caller, Code: "instance.changed", Err: errors.New("it has changed")}
		}
		s.view.Labels = labels
		s.view.Generation++
		return s.view, nil
	}
	return s
}

func TestLabelsAreMerged(t *testing.T) {
	shelf := newShelf()
	shelf.view.Labels = map[string]string{"team": "blue", "stay": "1", "of old": "2"}
	shelf.meets = 2
	s := serve(t, &shelf.fakeFleet)
	res, body := ask(t, http.MethodPatch, s.URL+managementv1.BasePath+"/instances/demo",
		`{"labels":{"team":null,"new":"x","missing":null,"of old":null}}`, "Content-Type", "application/merge-patch+json")
	var got managementv1.Instance
	if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", res.StatusCode, err, body)
	}
	want := map[string]string{"stay": "1", "new": "x", "other": "9"} // nothing of the others is lost
	if diff := cmp.Diff(want, map[string]string(got.Labels)); diff != "" {
		t.Error(diff)
	}
	if tag := res.Header.Get("ETag"); tag != `"`+sampleID+`.10"` {
		t.Errorf("ETag is %s", tag)
	}
}

func TestIfMatch(t *testing.T) {
	for _, method := range []string{http.MethodPatch, http.MethodDelete} {
		for header, want := range map[string]int{
			`"` + sampleID + `.7"`: 200, `"x", "` + sampleID + `.7"`: 200, "*": 200,
			`"` + sampleID + `.7.0123abcd"`: 200, // of when its health was another
			`"` + sampleID + `.7.0123abcd`:  412, `"` + sampleID + `.70"`: 412, `"` + sampleID + `.7.x"`: 412,
			`W/"` + sampleID + `.7"`: 412, `"` + sampleID + `.6"`: 412, `"other"`: 412, "": 412,
		} {
			shelf := newShelf()
			var generation int64 = -1
			shelf.DeleteFn = func(_ context.Context, ref string, g int64) (fleet.Operation, error) {
				generation = g
				return sampleOperation(), nil
			}
			s := serve(t, &shelf.fakeFleet)
			res, body := ask(t, method, s.URL+managementv1.BasePath+"/instances/demo", `{"labels":{"a":"b"}}`,
				"Content-Type", "application/json", "If-Match", header)
			if method == http.MethodDelete && want == 200 {
				want = http.StatusAccepted
			}
			if res.StatusCode != want {
				t.Errorf("%s If-Match %q: status %d, want %d: %s", method, header, res.StatusCode, want, body)
			}
			if wanted := int64(7); method == http.MethodDelete && want < 300 {
				if header == "*" {
					wanted = 0
				}
				if generation != wanted {
					t.Errorf("If-Match %q: generation %d", header, generation)
				}
			}
		}
	}
	// What changes between the look and the change is found out, too.
	shelf := newShelf()
	shelf.meets = 1
	s := serve(t, &shelf.fakeFleet)
	res, _ := ask(t, http.MethodPatch, s.URL+managementv1.BasePath+"/instances/demo", `{"labels":{"a":"b"}}`,
		"Content-Type", "application/json", "If-Match", `"`+sampleID+`.7"`)
	if res.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("status %d, want 412", res.StatusCode)
	}
}

func TestRenew(t *testing.T) {
	got := time.Duration(-1)
	s := serve(t, &fakeFleet{RenewFn: func(_ context.Context, ref string, ttl time.Duration) (fleet.View, error) {
		got = ttl
		v := sampleView()
		if ref != sampleID {
			t.Errorf("renews %q", ref)
		}
		if ttl > 0 {
			v.ExpiresAt = sampleTime().Add(ttl)
		}
		return v, nil
	}})
	for text, want := range map[string]time.Duration{"4h": 4 * time.Hour, "1h30m": 90 * time.Minute, "0s": 0} {
		res, body := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances/demo:renew", `{"ttl":"`+text+`"}`, "Content-Type", "application/json")
		if res.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: status %d, ttl %s: %s", text, res.StatusCode, got, body)
		}
		if strings.Contains(body, "expires_at") != (want > 0) {
			t.Errorf("%s: %s", text, body)
		}
	}
	for _, text := range []string{"", "x", "-1h", "9000h", strings.Repeat("1h", 40), "1.5h", "500ms", "+1h", "1m1h", "1µs", "0"} {
		if res, _ := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances/demo:renew", `{"ttl":"`+text+`"}`,
			"Content-Type", "application/json"); res.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%q: status %d", text, res.StatusCode)
		}
	}
}

// TestTenants: what belongs to another tenant looks exactly as what is not there.
func TestTenants(t *testing.T) {
	theirs := sampleView()
	theirs.Tenant = "other"
	op := sampleOperation()
	op.Tenant = "other"
	f := &fakeFleet{
		GetFn:       func(context.Context, string) (fleet.View, error) { return theirs, nil },
		OperationFn: func(context.Context, string) (fleet.Operation, error) { return op, nil },
	}
	f.ListFn = func(_ context.Context, filter fleet.Filter) (fleet.Page, error) {
		if filter.Tenant != "default" {
			t.Errorf("lists tenant %q", filter.Tenant)
		}
		return fleet.Page{}, nil
	}
	gone := &fakeFleet{
		GetFn: func(context.Context, string) (fleet.View, error) {
			return fleet.View{}, &instance.Fault{Blame: instance.Caller, Code: "instance.not_found",
				Hint: "`GET /api/v1/instances` lists what there is", Err: errors.New(`there is no instance "demo"`)}
		},
	}
	mine, missing := serve(t, f), serve(t, gone)
	for _, path := range []string{"/instances/demo", "/instances/demo/logs", "/instances/demo/console"} {
		a, theirBody := ask(t, http.MethodGet, mine.URL+managementv1.BasePath+path, "", "X-Request-Id", "r")
		b, noBody := ask(t, http.MethodGet, missing.URL+managementv1.BasePath+path, "", "X-Request-Id", "r")
		if a.StatusCode != http.StatusNotFound || b.StatusCode != http.StatusNotFound || theirBody != noBody {
			t.Errorf("%s:\n%s\n%s", path, theirBody, noBody)
		}
	}
	for method, path := range map[string]string{
		http.MethodDelete: "/instances/demo", http.MethodPost: "/instances/demo:stop", http.MethodGet: "/operations/" + operationID + "/events",
	} {
		if res, body := ask(t, method, mine.URL+managementv1.BasePath+path, ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s %s: status %d: %s", method, path, res.StatusCode, body)
		}
	}
	if res, _ := ask(t, http.MethodGet, mine.URL+managementv1.BasePath+"/instances", ""); res.StatusCode != http.StatusOK {
		t.Errorf("list: status %d", res.StatusCode)
	}
}

func TestListETag(t *testing.T) {
	views := []fleet.View{sampleView()}
	s := serve(t, &fakeFleet{ListFn: func(context.Context, fleet.Filter) (fleet.Page, error) {
		return fleet.Page{Views: slices.Clone(views)}, nil
	}})
	url := s.URL + managementv1.BasePath + "/instances"
	res, _ := ask(t, http.MethodGet, url, "")
	tag := res.Header.Get("ETag")
	if res, body := ask(t, http.MethodGet, url, "", "If-None-Match", tag); res.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("same state: status %d: %s", res.StatusCode, body)
	}
	views[0].Generation++
	if res, _ := ask(t, http.MethodGet, url, "", "If-None-Match", tag); res.StatusCode != http.StatusOK || res.Header.Get("ETag") == tag {
		t.Errorf("changed: status %d, ETag %s", res.StatusCode, res.Header.Get("ETag"))
	}
}

func TestValidateLoadout(t *testing.T) {
	s := serve(t, &fakeFleet{})
	check := func(body any) (v managementv1.LoadoutValidation) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		res, got := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/loadouts:validate", string(b), "Content-Type", "application/json")
		if err := json.Unmarshal([]byte(got), &v); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v: %s", res.StatusCode, err, got)
		}
		if bytes.Contains([]byte(got), []byte("null")) {
			t.Errorf("a list is null: %s", got)
		}
		return v
	}
	if v := check(managementv1.LoadoutSource{Name: "minimal"}); !v.Valid || v.Loadout.Name != "minimal" || v.Loadout.Content == "" {
		t.Errorf("catalog: %+v", v)
	}
	layers := map[string]string{"base.yaml": "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: base}\nextends: [minimal]\nresources: {cpus: 3}\n"}
	v := check(managementv1.LoadoutSource{
		Name: "dev.yaml", Layers: layers,
		Content: "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: dev}\nextends: [base.yaml]\n",
	})
	if !v.Valid || !strings.Contains(v.Loadout.Content, "cpus: 3") {
		t.Errorf("with layers: %+v", v)
	}
	v = check(managementv1.LoadoutSource{Name: "dev.yaml", Content: "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: dev}\n" +
		"resources:\n  cpus: many\nnetwrk: {}\n"})
	if v.Valid || len(v.Errors) < 2 || v.Loadout.Name != "" {
		t.Fatalf("broken: %+v", v)
	}
	if e := v.Errors[0]; e.File != "dev.yaml" || e.Line != 5 || e.Column != 9 || e.Field != "resources.cpus" || e.Rule == "" {
		t.Errorf("first error is %+v", e)
	}
	lacking := serve(t, &fakeFleet{LacksFn: func(l *loadouts.Resolved) []fleet.FieldError {
		return []fleet.FieldError{{Field: "image", Code: "image.not_found", Message: "there is no " + l.Image.Ref.Name + " (`sandboxctl images` lists what there is)"}}
	}})
	s = lacking
	v = check(managementv1.LoadoutSource{Name: "minimal"})
	if !v.Valid || len(v.Warnings) != 1 || v.Warnings[0].File != "minimal" || v.Warnings[0].Field != "image" ||
		v.Warnings[0].Rule != "there is no minimal (`GET /api/v1/images` lists what there is)" {
		t.Errorf("lacking: %+v", v)
	}
}
