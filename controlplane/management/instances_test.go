package management_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
)

func TestCreatePassesEverythingOn(t *testing.T) {
	var got fleet.CreateRequest
	s := serve(t, &fakeFleet{CreateFn: func(_ context.Context, req fleet.CreateRequest) (fleet.Operation, error) {
		got = req
		return sampleOperation(), nil
	}})
	res, body := do(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances", "application/json; charset=utf-8", `{
		"name": "demo", "labels": {"team": "blue"}, "env": {"MODE": "test"},
		"loadout": {"name": "dev.yaml", "content": "kind: loadout", "layers": {"base.yaml": "kind: layer"}}}`)
	if res.StatusCode != http.StatusAccepted {
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	want := fleet.CreateRequest{
		Name: "demo", Labels: map[string]string{"team": "blue"}, Env: map[string]string{"MODE": "test"},
		Loadout: fleet.Source{
			Name: "dev.yaml", Data: []byte("kind: loadout"), Layers: map[string][]byte{"base.yaml": []byte("kind: layer")},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if loc := res.Header.Get("Location"); loc != managementv1.BasePath+"/operations/"+operationID {
		t.Errorf("Location is %q", loc)
	}
}

func TestInstanceJSON(t *testing.T) {
	view := sampleView()
	failed := sampleView()
	failed.Phase, failed.Guest, failed.Labels, failed.Runners, failed.Capabilities = instance.Failed, nil, nil, nil, nil
	failed.Fault = &instance.Fault{Blame: instance.Guest, Code: "machine.crashed", Hint: "see the console", Console: "panic",
		Err: fmt.Errorf("the machine ended")}
	views := map[string]fleet.View{"running": view, "failed": failed}
	s := serve(t, &fakeFleet{GetFn: func(_ context.Context, ref string) (fleet.View, error) { return views[ref], nil }})
	for name := range views {
		t.Run(name, func(t *testing.T) {
			res, body := do(t, http.MethodGet, s.URL+managementv1.BasePath+"/instances/"+name, "", "")
			if res.StatusCode != http.StatusOK {
				t.Fatalf("status %d: %s", res.StatusCode, body)
			}
			golden(t, "testdata/instance_"+name+".json", body)
		})
	}
}

func TestETag(t *testing.T) {
	view := sampleView()
	s := serve(t, &fakeFleet{GetFn: func(context.Context, string) (fleet.View, error) { return view, nil }})
	get := func(ifNoneMatch string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+managementv1.BasePath+"/instances/demo", nil)
		if err != nil {
			t.Fatal(err)
		}
		if ifNoneMatch != "" {
			req.Header.Set("If-None-Match", ifNoneMatch)
		}
		res, _ := roundTrip(t, req)
		return res
	}
	tag := get("").Header.Get("ETag")
	if tag == "" {
		t.Fatal("no ETag")
	}
	for header, want := range map[string]int{
		tag: 304, "W/" + tag: 304, `"other", ` + tag: 304, "*": 304, `"other"`: 200, strings.Trim(tag, `"`): 200,
	} {
		if got := get(header).StatusCode; got != want {
			t.Errorf("If-None-Match: %s: %d, want %d", header, got, want)
		}
	}
	view.Generation++
	if got := get(tag).StatusCode; got != http.StatusOK {
		t.Errorf("after a change: %d, want 200", got)
	}
}

func TestFilter(t *testing.T) {
	var got fleet.Filter
	s := serve(t, &fakeFleet{ListFn: func(_ context.Context, f fleet.Filter) ([]fleet.View, error) {
		got = f
		return nil, nil
	}})
	res, body := do(t, http.MethodGet, s.URL+managementv1.BasePath+"/instances?state=paused&label=team=blue&label=a=b%3Dc", "", "")
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"items":[]`) {
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	want := fleet.Filter{Phase: instance.Paused, Selector: fleet.SelectLabels(map[string]string{"team": "blue", "a": "b=c"})}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPages wants every item exactly once and in order, whatever the sizes
// of list and pages.
func TestPages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[0-9a-f]{8}`), 0, 30, rapid.ID).Draw(rt, "ids")
		limit := rapid.IntRange(1, 12).Draw(rt, "limit")
		f := &fakeFleet{
			ListFn: func(context.Context, fleet.Filter) ([]fleet.View, error) {
				views := make([]fleet.View, 0, len(ids))
				for _, id := range ids {
					views = append(views, fleet.View{ID: instance.ID(id)})
				}
				return views, nil
			},
			OperationsFn: func(context.Context) ([]fleet.Operation, error) {
				ops := make([]fleet.Operation, 0, len(ids))
				for _, id := range ids {
					ops = append(ops, fleet.Operation{ID: id})
				}
				return ops, nil
			},
		}
		h := admin(management.New(config(f, nil)))
		want := slices.Sorted(slices.Values(ids))
		for _, path := range []string{"/instances", "/operations"} {
			var got []string
			for cursor, more := "", true; more; {
				var page struct {
					Items []struct {
						ID string `json:"id"`
					} `json:"items"`
					Next string `json:"next_cursor"`
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet,
					fmt.Sprintf("%s%s?limit=%d&cursor=%s", managementv1.BasePath, path, limit, url.QueryEscape(cursor)), nil))
				if w.Code != http.StatusOK {
					rt.Fatalf("status %d: %s", w.Code, w.Body)
				}
				if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
					rt.Fatal(err)
				}
				if len(page.Items) > limit || (len(page.Items) < limit && page.Next != "") {
					rt.Fatalf("page of %d with limit %d, next %q", len(page.Items), limit, page.Next)
				}
				for _, i := range page.Items {
					got = append(got, i.ID)
				}
				cursor, more = page.Next, page.Next != ""
			}
			if path == "/operations" {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("%s: got %v, want %v", path, got, want)
			}
		}
	})
}

func TestActions(t *testing.T) {
	var asked []string
	s := serve(t, &fakeFleet{ActFn: func(_ context.Context, ref string, a fleet.Action) (fleet.Operation, error) {
		asked = append(asked, ref+" "+string(a))
		return sampleOperation(), nil
	}})
	for _, verb := range []string{"start", "stop", "pause", "resume"} {
		// A colon may come escaped, too.
		for _, colon := range []string{":", "%3A"} {
			res, body := do(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances/demo"+colon+verb, "", "")
			if res.StatusCode != http.StatusAccepted {
				t.Errorf("%s: status %d: %s", verb, res.StatusCode, body)
			}
		}
	}
	want := []string{"demo start", "demo start", "demo stop", "demo stop", "demo pause", "demo pause", "demo resume", "demo resume"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestLoadouts(t *testing.T) {
	s := serve(t, &fakeFleet{})
	res, body := do(t, http.MethodGet, s.URL+managementv1.BasePath+"/loadouts", "", "")
	var list managementv1.LoadoutList
	if err := json.Unmarshal(body, &list); err != nil || res.StatusCode != http.StatusOK || len(list.Items) == 0 {
		t.Fatalf("status %d, %v: %s", res.StatusCode, err, body)
	}
	for _, l := range list.Items {
		res, body := do(t, http.MethodGet, s.URL+managementv1.BasePath+"/loadouts/"+l.Name, "", "")
		var one managementv1.Loadout
		if err := json.Unmarshal(body, &one); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, %v: %s", l.Name, res.StatusCode, err, body)
		}
		if one.Hash != l.Hash || !strings.Contains(one.Content, "image: ") || !strings.Contains(one.Content, "resources:\n") {
			t.Errorf("%s: %+v", l.Name, one)
		}
	}
}
