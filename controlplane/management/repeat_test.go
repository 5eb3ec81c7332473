package management_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/once"
)

func urlEscape(s string) string { return url.QueryEscape(s) }

// keys is a store of requests that lives as long as a test.
type keys struct {
	mu  sync.Mutex
	all map[once.Key]once.Reservation
}

func (k *keys) Reserve(_ context.Context, key once.Key, want once.Reservation, _ time.Time, b once.Bounds) (once.Reservation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.TTL != 24*time.Hour || b.Entries <= 0 || key.Tenant != "default" || key.Principal != "tester" {
		return once.Reservation{}, errors.New("unbounded, or nobody's")
	}
	if r, ok := k.all[key]; ok {
		return r, nil
	}
	k.all[key] = want
	return want, nil
}

func (k *keys) Answered(_ context.Context, key once.Key, _ string, a once.Answer) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.all[key]
	r.Answer = &a
	k.all[key] = r
	return nil
}

// TestManyAtOnceMakeOne sends one create with one key many times at once, as a
// client with a bad connection does.
func TestManyAtOnceMakeOne(t *testing.T) {
	var made atomic.Int64
	c := config(&fakeFleet{CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) {
		made.Add(1)
		return sampleOperation(), nil
	}}, nil)
	c.Once = &keys{all: map[once.Key]once.Reservation{}}
	s := httptest.NewServer(admin(management.New(c)))
	defer s.Close()
	create := func() (int, string, http.Header) {
		for {
			res, body := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances", `{"loadout":{"name":"minimal"}}`,
				"Content-Type", "application/json", "Idempotency-Key", `"k-1"`)
			if res.StatusCode != http.StatusConflict {
				return res.StatusCode, body, res.Header
			}
			if res.Header.Get("Retry-After") == "" {
				t.Error("409 without Retry-After")
			}
		}
	}
	_, want, _ := create()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if status, body, h := create(); status != http.StatusAccepted || body != want || h.Get("Location") == "" {
				t.Errorf("status %d: %s", status, body)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d", made.Load())
	}
}

// TestKeyFindsTheOperationOfADeadProcess: the key was reserved, the operation
// begun, and then the process died.
func TestKeyFindsTheOperationOfADeadProcess(t *testing.T) {
	store := &keys{all: map[once.Key]once.Reservation{}}
	begun := map[string]fleet.Operation{}
	f := &fakeFleet{
		OperationFn: func(_ context.Context, id string) (fleet.Operation, error) {
			if op, ok := begun[id]; ok {
				return op, nil
			}
			return fleet.Operation{}, &instance.Fault{Blame: instance.Caller, Code: "operation.not_found", Err: errors.New("none")}
		},
		CreateFn: func(context.Context, fleet.CreateRequest) (fleet.Operation, error) {
			panic(http.ErrAbortHandler)
		},
	}
	c := config(f, nil)
	c.Once = store
	try := func() (w *httptest.ResponseRecorder) {
		defer func() { _ = recover() }()
		w = httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, managementv1.BasePath+"/instances", body(`{"loadout":{"name":"minimal"}}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		admin(management.New(c)).ServeHTTP(w, req)
		return w
	}
	try()
	var id string
	for _, r := range store.all {
		id = r.OperationID
	}
	op := sampleOperation()
	op.ID = id
	begun[id] = op
	for range 2 {
		if w := try(); w.Code != http.StatusAccepted || w.Header().Get("Location") != managementv1.BasePath+"/operations/"+id {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	c := config(&fakeFleet{}, nil)
	c.Once = &keys{all: map[once.Key]once.Reservation{}}
	with, without := httptest.NewServer(admin(management.New(c))), serve(t, &fakeFleet{})
	defer with.Close()
	post := func(s *httptest.Server, verb, key string) int {
		res, _ := ask(t, http.MethodPost, s.URL+managementv1.BasePath+"/instances/demo:"+verb, "", "Idempotency-Key", key)
		return res.StatusCode
	}
	for _, c := range []struct {
		s         *httptest.Server
		verb, key string
		want      int
	}{
		{with, "stop", "a", 202}, {with, "start", "a", 422}, {with, "stop?force=true", "a", 422}, {with, "stop", "no key", 400}, {with, "stop", "a", 202},
		{without, "stop", "a", 501},
	} {
		if got := post(c.s, c.verb, c.key); got != c.want {
			t.Errorf("%s with key %q: %d, want %d", c.verb, c.key, got, c.want)
		}
	}
}

func body(s string) *strings.Reader { return strings.NewReader(s) }
