package management_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
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
		"name": "demo", "labels": {"team": "blue"}, "env": {"MODE": "test"}, "ttl": "1h30m",
		"loadout": {"name": "dev.yaml", "content": "kind: loadout", "layers": {"base.yaml": "kind: layer"}}}`)
	if res.StatusCode != http.StatusAccepted {
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	want := fleet.CreateRequest{
		Name: "demo", Labels: map[string]string{"team": "blue"}, Env: map[string]string{"MODE": "test"},
		TTL: 90 * time.Minute, Tenant: "default",
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

// TestCreateWithoutAnEnd: "0s" is an answer, nothing is the loadout's.
func TestCreateWithoutAnEnd(t *testing.T) {
	var got fleet.CreateRequest
	s := serve(t, &fakeFleet{CreateFn: func(_ context.Context, req fleet.CreateRequest) (fleet.Operation, error) {
		got = req
		return sampleOperation(), nil
	}})
	for more, want := range map[string]bool{"": false, `, "ttl": ""`: false, `, "ttl": "0s"`: true, `, "ttl": "1s"`: false} {
		res, body := do(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances", "application/json", `{"loadout": {"name": "m"}`+more+`}`)
		if res.StatusCode != http.StatusAccepted || got.Endless != want {
			t.Errorf("with %q: status %d, endless %t: %s", more, res.StatusCode, got.Endless, body)
		}
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
	// In several lines it is the same list.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+managementv1.BasePath+"/instances/demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["If-None-Match"] = []string{`"other"`, tag}
	if res, body := roundTrip(t, req); res.StatusCode != http.StatusNotModified {
		t.Errorf("two lines: %d: %s", res.StatusCode, body)
	}
	// What it is ill of is shown, so who has seen it well is told.
	view.Health = &instance.Fault{Blame: instance.Guest, Code: "agent.silent", Err: errors.New("no answer")}
	if got := get(tag).StatusCode; got != http.StatusOK {
		t.Errorf("when it fell silent: %d, want 200", got)
	}
	silent := get("").Header.Get("ETag")
	if got := get(silent).StatusCode; got != http.StatusNotModified || silent == tag {
		t.Errorf("while it is silent: %d, want 304", got)
	}
	view.Health = nil
	if got := get(silent).StatusCode; got != http.StatusOK {
		t.Errorf("when it answers again: %d, want 200", got)
	}
	view.Generation++
	if got := get(tag).StatusCode; got != http.StatusOK {
		t.Errorf("after a change: %d, want 200", got)
	}
}

func TestFilter(t *testing.T) {
	var got fleet.Filter
	s := serve(t, &fakeFleet{ListFn: func(_ context.Context, f fleet.Filter) (fleet.Page, error) {
		got = f
		return fleet.Page{}, nil
	}})
	res, body := do(t, http.MethodGet, s.URL+managementv1.BasePath+
		"/instances?limit=5&state=paused&label=team%3Dblue,a%21%3Db&label=x+in+(y,z)", "", "")
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"items":[]`) {
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	sel, err := fleet.ParseSelector("team=blue,a!=b,x in (y,z)")
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Filter{Tenant: "default", Phase: instance.Paused, Selector: sel, Limit: 5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func ids(n int) *rapid.Generator[[]string] {
	id := rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")
		u := uuid.Must(uuid.FromBytes(b))
		u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
		return u.String()
	})
	return rapid.SliceOfNDistinct(id, 0, n, rapid.ID)
}

// page returns what of a sorted list follows a key.
func page(all []string, after string, limit int) (some []string, next string) {
	start, found := slices.BinarySearch(all, after)
	if found {
		start++
	}
	some = all[start:]
	if len(some) > limit {
		some = some[:limit]
		next = some[limit-1]
	}
	return some, next
}

// TestPages wants every item that is there all the time exactly once and in
// order, whatever the sizes of list and pages, and whatever comes and goes
// between two pages.
func TestPages(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stay := ids(20).Draw(rt, "stay")
		pass := ids(20).Draw(rt, "pass")
		limit := rapid.IntRange(1, 12).Draw(rt, "limit")
		now := func() []string {
			some := slices.Clone(stay)
			for _, id := range pass {
				if rapid.Bool().Draw(rt, "there") {
					some = append(some, id)
				}
			}
			slices.Sort(some)
			return slices.Compact(some)
		}
		f := &fakeFleet{
			ListFn: func(_ context.Context, filter fleet.Filter) (p fleet.Page, _ error) {
				some, next := page(now(), string(filter.After), filter.Limit)
				for _, id := range some {
					p.Views = append(p.Views, fleet.View{ID: instance.ID(id)})
				}
				p.Next = instance.ID(next)
				return p, nil
			},
			EventsFn: func(_ context.Context, after uint64, _ fleet.EventFilter, limit int) (events []fleet.Event, _ error) {
				for seq := after + 1; seq <= uint64(len(stay)) && len(events) < limit; seq++ {
					events = append(events, fleet.Event{Seq: seq, Instance: instance.ID(stay[seq-1])})
				}
				return events, nil
			},
			OperationsFn: func(_ context.Context, filter fleet.OperationFilter) (p fleet.OperationPage, _ error) {
				all := now()
				if i, _ := slices.BinarySearch(all, filter.After); filter.After != "" {
					all = all[:i]
				}
				slices.Reverse(all)
				if len(all) > filter.Limit {
					all = all[:filter.Limit]
					p.Next = all[filter.Limit-1]
				}
				for _, id := range all {
					p.Operations = append(p.Operations, fleet.Operation{ID: id})
				}
				return p, nil
			},
		}
		h := admin(management.New(config(f, nil)))
		for _, path := range []string{"/instances", "/operations", "/events"} {
			got := walk(rt, h, path, limit)
			want := slices.Clone(stay)
			switch path {
			case "/operations":
				slices.Sort(want)
				slices.Reverse(want)
			case "/instances":
				slices.Sort(want)
			}
			// What passes may be seen or not, but at most once.
			seen := map[string]int{}
			for _, id := range got {
				seen[id]++
				if seen[id] > 1 {
					rt.Fatalf("%s: %s comes twice in %v", path, id, got)
				}
			}
			got = slices.DeleteFunc(got, func(id string) bool { return !slices.Contains(stay, id) })
			if !slices.Equal(got, want) {
				rt.Fatalf("%s: got %v, want %v", path, got, want)
			}
		}
	})
}

// walk reads a list to its end.
func walk(t *rapid.T, h http.Handler, path string, limit int) (got []string) {
	for cursor, more := "", true; more; {
		var page struct {
			Items []struct {
				ID         string `json:"id"`
				InstanceID string `json:"instance_id"`
			} `json:"items"`
			Next string `json:"next_cursor"`
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet,
			fmt.Sprintf("%s%s?limit=%d&cursor=%s", managementv1.BasePath, path, limit, url.QueryEscape(cursor)), nil))
		if w.Code != http.StatusOK {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > limit || (len(page.Items) < limit && page.Next != "") {
			t.Fatalf("page of %d with limit %d, next %q", len(page.Items), limit, page.Next)
		}
		for _, i := range page.Items {
			if path == "/events" {
				i.ID = i.InstanceID
			}
			got = append(got, i.ID)
		}
		cursor, more = page.Next, page.Next != ""
	}
	return got
}

func TestActions(t *testing.T) {
	var asked []string
	s := serve(t, &fakeFleet{ActFn: func(_ context.Context, ref string, a fleet.Action, o fleet.ActOptions) (fleet.Operation, error) {
		asked = append(asked, fmt.Sprint(ref, " ", a, " ", o.Force))
		return sampleOperation(), nil
	}})
	var want []string
	for verb, force := range map[string]bool{
		"start": false, "stop": false, "stop?force=true": true, "stop?force=false": false, "pause": false, "resume": false, "restart": false,
	} {
		// A colon may come escaped, too.
		for _, colon := range []string{":", "%3A"} {
			res, body := do(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances/demo"+colon+verb, "", "")
			if res.StatusCode != http.StatusAccepted {
				t.Errorf("%s: status %d: %s", verb, res.StatusCode, body)
			}
			action, _, _ := strings.Cut(verb, "?")
			want = append(want, fmt.Sprint(sampleID, " ", action, " ", force))
		}
	}
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
