package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/metrics"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
)

type probed struct {
	err   error
	asked atomic.Int64
}

func (p *probed) Probe(context.Context) error { p.asked.Add(1); return p.err }

func testHealth(t *testing.T, db *probed, providers map[string]error) *health {
	t.Helper()
	return &health{
		db: db, dir: t.TempDir(), must: providerLibvirt, log: slog.New(slog.DiscardHandler), failed: map[string]bool{},
		usable: func(context.Context) map[string]error { return providers },
	}
}

func ask(h *health) (int, report) {
	w := httptest.NewRecorder()
	h.readyz(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	var r report
	_ = json.Unmarshal(w.Body.Bytes(), &r)
	return w.Code, r
}

func TestReadyzTellsTheTruth(t *testing.T) {
	down := errors.New("cannot open /secret/path")
	ok := map[string]error{"libvirt": nil, "host": nil}
	for _, c := range []struct {
		name      string
		db        error
		providers map[string]error
		dir       string
		want      report
	}{
		{"all is well", nil, ok, "", report{"ready", []check{
			{"database", "ok", ""}, {"disk", "ok", ""}, {"provider host", "ok", ""}, {"provider libvirt", "ok", ""}}}},
		{"no writes", down, ok, "", report{"unavailable", []check{
			{"database", "failed", "it takes no writes; see the daemon's log"}, {"disk", "ok", ""}, {"provider host", "ok", ""}, {"provider libvirt", "ok", ""}}}},
		{"no machines", nil, map[string]error{"libvirt": down}, "", report{"unavailable", []check{
			{"database", "ok", ""}, {"disk", "ok", ""}, {"provider libvirt", "failed", "it cannot make machines; see sandboxctl doctor"}}}},
		{"one that is not needed", nil, map[string]error{"libvirt": nil, "host": down}, "", report{"ready", []check{
			{"database", "ok", ""}, {"disk", "ok", ""}, {"provider host", "absent", "it cannot make machines; see sandboxctl doctor"}, {"provider libvirt", "ok", ""}}}},
		{"no disk", nil, ok, "/nonexistent", report{"unavailable", []check{
			{"database", "ok", ""}, {"disk", "failed", "less than 64 MiB are free in the state directory"}, {"provider host", "ok", ""}, {"provider libvirt", "ok", ""}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := testHealth(t, &probed{err: c.db}, c.providers)
			if c.dir != "" {
				h.dir = c.dir
			}
			code, got := ask(h)
			if diff := cmp.Diff(c.want, got); diff != "" || (code == http.StatusOK) != (c.want.Status == "ready") {
				t.Errorf("status %d:\n%s", code, diff)
			}
		})
	}
}

// TestWhyNotReadyIsLogged: anybody may ask, so the answer is in general words;
// the log has the cause, once, however often somebody asks.
func TestWhyNotReadyIsLogged(t *testing.T) {
	var out strings.Builder
	db := &probed{err: errors.New("the cause")}
	h := testHealth(t, db, map[string]error{"libvirt": nil})
	h.log = slog.New(slog.NewTextHandler(&out, nil))
	for _, err := range []error{db.err, db.err, nil, nil} {
		db.err, h.at = err, time.Time{}
		ask(h)
	}
	if n, m := strings.Count(out.String(), "the cause"), strings.Count(out.String(), "ready again"); n != 1 || m != 1 {
		t.Errorf("the log has the cause %d times, and its end %d times:\n%s", n, m, out.String())
	}
}

// TestReadyzIsCheap: anybody may ask, so looks are shared.
func TestReadyzIsCheap(t *testing.T) {
	db := &probed{}
	h := testHealth(t, db, map[string]error{"libvirt": nil})
	start := time.Now()
	for range 1000 {
		ask(h)
	}
	if most := int64(time.Since(start)/probeAge) + 1; db.asked.Load() > most {
		t.Errorf("1000 requests made %d looks, want at most %d", db.asked.Load(), most)
	}
	h.ending.Store(true)
	if code, r := ask(h); code != http.StatusServiceUnavailable || r.Status != "stopping" {
		t.Errorf("while ending: status %d, %+v", code, r)
	}
}

func TestMetricsListen(t *testing.T) {
	for addr, good := range map[string]bool{
		"": true, "127.0.0.1:9420": true, "[::1]:0": true, "0.0.0.0:9420": false, "10.0.0.1:1": false, "localhost:1": false, ":9420": false, "x": false,
	} {
		c := metricsConfig{Listen: addr}
		if err := c.complete(); (err == nil) != good {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestMetricsWithoutAToken(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	log := slog.New(slog.DiscardHandler)
	d := &daemon{log: log, metrics: metrics.New(t.Context(), "v", log), cfg: config{Metrics: metricsConfig{Listen: addr}}}
	stop, err := d.serveMetrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/metrics": 200, "/api/v1/instances": 404, "/healthz": 404} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: status %d", path, res.StatusCode)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestNeeds(t *testing.T) {
	h := needs(auth.ScopeMetricsRead, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for scope, want := range map[auth.Scope]int{auth.ScopeMetricsRead: 200, auth.ScopeAdmin: 200, auth.ScopeFleetRead: 403} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), auth.Principal{Name: "p", Scopes: []auth.Scope{scope}})))
		if w.Code != want {
			t.Errorf("%s: status %d, want %d", scope, w.Code, want)
		}
	}
}

const someID = "0190b2a4-0000-7000-8000-000000000001"

func TestA2ARoutes(t *testing.T) {
	p := a2aPaths{domain: "agents.test"}
	for path, want := range map[string][3]string{
		"/agents/" + someID:                                 {"/", someID, ""},
		"/agents/" + someID + "/v1/message:send":            {"/message:send", someID, ""},
		"/agents/" + someID + "/tasks/t-1":                  {"/tasks/{task}", someID, "t-1"},
		"/agents/" + someID + "/tasks/t-1:cancel":           {"/tasks/{task}:cancel", someID, "t-1"},
		"/agents/" + someID + "/tasks/t-1/artifacts/a":      {"/tasks/{task}/artifacts/{artifact}", someID, "t-1"},
		"/agents/" + someID + "/v1/tasks/t:subscribe":       {"/tasks/{task}:subscribe", someID, "t"},
		"/agents/" + someID + "/tasks/evil\nline":           {"/tasks/{task}", someID, ""},
		"/agents/nobody/.well-known/agent-card.json":        {"/.well-known/{card}", "", ""},
		"/agents/" + someID + "/" + strings.Repeat("x/", 9): {"other", someID, ""},
	} {
		r := &http.Request{Host: "host.test", URL: mustURL(path)}
		id, task := p.names(r)
		if got := [3]string{p.route(r), id, task}; got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
	r := &http.Request{Host: someID + ".agents.test", URL: mustURL("/tasks/t")}
	if id, task := p.names(r); id != someID || task != "t" || p.route(r) != "/tasks/{task}" {
		t.Errorf("virtual host: %q, %q, %q", id, task, p.route(r))
	}
}

// TestA2ARequestsAreLogged with the name that the client gave them.
func TestA2ARequestsAreLogged(t *testing.T) {
	var out strings.Builder
	log := request.Log(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	d := &daemon{log: log, metrics: metrics.New(t.Context(), "v", log)}
	h := d.a2aSurface(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	r := httptest.NewRequest(http.MethodGet, "/agents/"+someID+"/tasks/t-1", nil)
	r.Header.Set(request.Header, "mine")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get(request.Header) != "mine" {
		t.Errorf("name is %q", w.Header().Get(request.Header))
	}
	for _, want := range []string{"request_id=mine", "instance=" + someID, "task=t-1", "status=418", "level=INFO", "route=/tasks/{task}"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log lacks %s: %s", want, out.String())
		}
	}
}

// TestUnknownClientsAreCounted and logged, and others are not twice.
func TestUnknownClientsAreCounted(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	d := &daemon{log: log, metrics: metrics.New(t.Context(), "v", log)}
	for _, status := range []int{401, 401, 200, 403} {
		h := d.unknown(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/instances", nil))
	}
	w := httptest.NewRecorder()
	d.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if want := `sandbox_http_requests_total{code="4xx",method="GET",route="none",surface="management"} 2`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("lacks %s", want)
	}
	if n := strings.Count(out.String(), "request without a known token"); n != 2 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}

// TestAnswerThatIsNotReadIsGivenUp: it would stay in memory for as long as its
// reader likes.
func TestAnswerThatIsNotReadIsGivenUp(t *testing.T) {
	failed := make(chan error, 1)
	big := strings.Repeat("x", 64<<20) // more than any socket buffer takes
	conn, resp := speakTo(t, steady(pace, 50*time.Millisecond, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, big)
		failed <- err
	})), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	defer conn.Close()
	if err := <-failed; err == nil {
		t.Error("nobody reads the answer, and the server waits for ever")
	}
	resp.Body.Close()
}

// TestStreamMayRest between two events for longer than an answer may take.
func TestStreamMayRest(t *testing.T) {
	next := make(chan struct{})
	_, resp := speakTo(t, steady(pace, 20*time.Millisecond, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for range 3 {
			if _, err := io.WriteString(w, "event\n"); err != nil {
				t.Error(err)
			}
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
	})), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	buf := make([]byte, 6)
	for range 3 {
		if _, err := io.ReadFull(resp.Body, buf); err != nil {
			t.Fatal(err)
		}
		rest := time.NewTimer(60 * time.Millisecond) // the deadline of the last piece has passed
		<-rest.C
		next <- struct{}{}
	}
}

func mustURL(path string) *url.URL { return &url.URL{Path: path} }
