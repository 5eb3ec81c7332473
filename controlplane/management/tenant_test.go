package management_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
)

// asked is a store that notes whose operations it is asked for.
type asked struct {
	fleet.Store
	tenant string
}

func (s *asked) Operations(_ context.Context, f fleet.OperationFilter) (fleet.OperationPage, error) {
	s.tenant = f.Tenant
	return fleet.OperationPage{}, nil
}

// tenantIn is the tenant that a fleet finds in a context.
func tenantIn(t *testing.T, ctx context.Context) string { //nolint:revive // t first, as everywhere
	t.Helper()
	s := &asked{}
	f := fleet.New(fleet.Config{Store: s, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if _, err := f.Operations(ctx, fleet.OperationFilter{}); err != nil {
		t.Fatal(err)
	}
	return s.tenant
}

// TestFleetIsToldTheTenant: what the fleet is asked for is asked in the tenant
// of the token, whatever it may do.
func TestFleetIsToldTheTenant(t *testing.T) {
	for tenant, want := range map[string]string{"": "default", "default": "default", "other": "other"} {
		var got []string
		view := sampleView()
		view.Tenant = want
		f := &fakeFleet{
			GetFn: func(ctx context.Context, _ string) (fleet.View, error) {
				got = append(got, tenantIn(t, ctx))
				return view, nil
			},
			CreateFn: func(ctx context.Context, _ fleet.CreateRequest) (fleet.Operation, error) {
				got = append(got, tenantIn(t, ctx))
				return sampleOperation(), nil
			},
		}
		api := management.New(config(f, nil))
		for _, r := range []*http.Request{
			httptest.NewRequest(http.MethodGet, managementv1.BasePath+"/instances/demo", nil),
			httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances", body(`{"loadout":{"name":"minimal"}}`)),
		} {
			if r.Method == http.MethodPost {
				r.Header.Set("Content-Type", "application/json")
			}
			p := auth.Principal{Name: "tester", Tenant: tenant, Scopes: []auth.Scope{auth.ScopeAdmin}}
			w := httptest.NewRecorder()
			if api.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p))); w.Code >= http.StatusBadRequest {
				t.Errorf("%s of %q: %d %s", r.Method, tenant, w.Code, w.Body)
			}
		}
		if len(got) != 2 || got[0] != want || got[1] != want {
			t.Errorf("for %q the fleet was asked in %q, want %q", tenant, got, want)
		}
	}
}

// TestKeyOfARequestThatBeganNothing: the process died before, so it is carried
// out now, once.
func TestKeyOfARequestThatBeganNothing(t *testing.T) {
	made := 0
	f := &fakeFleet{
		OperationFn: func(context.Context, string) (fleet.Operation, error) {
			return fleet.Operation{}, &instance.Fault{Blame: instance.Caller, Code: "operation.not_found", Err: errors.New("none")}
		},
		CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) {
			if made++; made == 1 {
				panic(http.ErrAbortHandler)
			}
			return sampleOperation(), nil
		},
	}
	c := config(f, nil)
	c.Once = &keys{all: map[once.Key]once.Reservation{}}
	for i := range 3 {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances", body(`{"loadout":{"name":"minimal"}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k")
		func() {
			defer func() { _ = recover() }() // as near to a death as a test gets
			admin(management.New(c)).ServeHTTP(w, r)
		}()
		if i > 0 && (w.Code != http.StatusAccepted || made != 2) {
			t.Errorf("try %d: %d %s, carried out %d times", i, w.Code, w.Body, made)
		}
	}
}

// TestKeyAtWork: a repetition is told when to come again.
func TestKeyAtWork(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	c := config(&fakeFleet{CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) {
		close(begun)
		<-goOn
		return sampleOperation(), nil
	}}, nil)
	c.Once = &keys{all: map[once.Key]once.Reservation{}}
	api := admin(management.New(c))
	send := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances", body(`{"loadout":{"name":"minimal"}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k")
		api.ServeHTTP(w, r)
		return w
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- send() }()
	<-begun
	if w := send(); w.Code != http.StatusConflict || w.Header().Get("Retry-After") != "1" {
		t.Errorf("while it is at work: %d, %v", w.Code, w.Header())
	}
	close(goOn)
	if w := <-first; w.Code != http.StatusAccepted || w.Header().Get("Retry-After") != "" {
		t.Errorf("the first: %d, %v", w.Code, w.Header())
	}
}

// TestETagOfAPage changes with what comes behind it, too.
func TestETagOfAPage(t *testing.T) {
	page := fleet.Page{Views: []fleet.View{sampleView()}}
	s := serve(t, &fakeFleet{ListFn: func(context.Context, fleet.Filter) (fleet.Page, error) { return page, nil }})
	url := s.URL + managementv1.BasePath + "/instances"
	last, _ := ask(t, http.MethodGet, url, "")
	page.Next = "01900000-0000-7000-8000-000000000009"
	if res, _ := ask(t, http.MethodGet, url, "", "If-None-Match", last.Header.Get("ETag")); res.StatusCode != http.StatusOK {
		t.Errorf("a page that is not the last any more: status %d", res.StatusCode)
	}
}

// TestFindingsAreBounded: one answer tells no more than may be, of a source
// that is no larger than may be.
func TestFindingsAreBounded(t *testing.T) {
	s := serve(t, &fakeFleet{})
	url := s.URL + managementv1.BasePath + "/loadouts:validate"
	var many strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, "nobody%d: 1\\n", i)
	}
	_, got := ask(t, http.MethodPost, url, `{"name":"x.yaml","content":"`+many.String()+`"}`, "Content-Type", "application/json")
	if n := strings.Count(got, `"rule"`); n < 100 || n > 200 {
		t.Errorf("%d findings: %.200s", n, got)
	}
	for _, bad := range []string{`{"name":""}`, `{"name":"` + strings.Repeat("x", 1000) + `"}`} {
		if res, got := ask(t, http.MethodPost, url, bad, "Content-Type", "application/json"); res.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%.20s: %d %s", bad, res.StatusCode, got)
		}
	}
}
