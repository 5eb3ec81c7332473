package metrics_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/metrics"
)

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wants(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("lacks %q", line)
		}
	}
}

func phases(n int) metrics.Source {
	return metrics.Source{
		Name:     "fleet",
		Families: []metrics.Family{{Name: "instances", Help: "Instances.", Labels: []string{"phase"}}, {Name: "outbox_events", Help: "Waiting."}},
		Read: func(context.Context) ([]metrics.Sample, error) {
			samples := []metrics.Sample{{Family: "outbox_events", Value: 3}, {Family: "unknown", Value: 1}, {Family: "instances", Value: 9}}
			for i := range n {
				samples = append(samples, metrics.Sample{Family: "instances", Labels: []string{fmt.Sprint("phase", i)}, Value: 2})
			}
			return samples, nil
		},
	}
}

func TestWhatIsTold(t *testing.T) {
	m := metrics.New(t.Context(), "1.2.3", slog.New(slog.DiscardHandler), phases(2))
	m.Observe(metrics.Request{Surface: "management", Route: "/instances/{ref}", Method: "GET", Status: 404, Took: time.Millisecond})
	m.Observe(metrics.Request{Surface: "management", Method: "BREW", Status: 405})
	m.Observe(metrics.Request{Surface: "a2a", Route: "/", Method: "POST", Status: 200, Took: time.Hour, Stream: true})
	m.Booted("libvirt", "kvm", 700*time.Millisecond)
	m.Booted("host", "", time.Millisecond)
	text := scrape(t, m)
	wants(t, text,
		`sandbox_http_requests_total{code="4xx",method="GET",route="/instances/{ref}",surface="management"} 1`,
		`sandbox_http_requests_total{code="4xx",method="other",route="none",surface="management"} 1`,
		`sandbox_http_requests_total{code="2xx",method="POST",route="/",surface="a2a"} 1`,
		`sandbox_http_request_duration_seconds_count{method="GET",route="/instances/{ref}",surface="management"} 1`,
		`sandbox_instances{phase="phase0"} 2`, `sandbox_instances{phase="phase1"} 2`, `sandbox_outbox_events 3`,
		`sandbox_boot_duration_seconds_bucket{accelerator="kvm",provider="libvirt",le="0.5"} 0`,
		`sandbox_boot_duration_seconds_bucket{accelerator="kvm",provider="libvirt",le="1"} 1`,
		`sandbox_boot_duration_seconds_count{accelerator="none",provider="host"} 1`,
		`sandbox_scrape_failures_total{source="fleet"} 0`,
	)
	for _, name := range []string{"go_goroutines ", "process_resident_memory_bytes ", `version="1.2.3"`} {
		if !strings.Contains(text, name) {
			t.Errorf("lacks %s", name)
		}
	}
	if strings.Contains(text, `request_duration_seconds_count{method="POST",route="/",surface="a2a"}`) {
		t.Error("the life of a stream counts as a duration")
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sandbox_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestLabelsAreBounded: whatever comes, a scrape stays small, and nothing is
// lost from the sums.
func TestLabelsAreBounded(t *testing.T) {
	m := metrics.New(t.Context(), "v", slog.New(slog.DiscardHandler), phases(10_000))
	for i := range 10_000 {
		id := fmt.Sprintf("%036d", i)
		m.Observe(metrics.Request{Surface: "management", Route: "/" + id, Method: "M" + id, Status: i})
		m.Booted(id, id, time.Second)
	}
	m.Observe(metrics.Request{Surface: "management", Route: "/" + strings.Repeat("x", 1000), Method: "GET", Status: 200})
	text := scrape(t, m)
	var lines, requests, instances int
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		var n float64
		name, value, _ := strings.Cut(line, "} ")
		fmt.Sscan(value, &n)
		switch {
		case strings.HasPrefix(name, "sandbox_http_requests_total"):
			requests += int(n)
		case strings.HasPrefix(name, "sandbox_instances"):
			instances += int(n)
		}
	}
	if lines > 6000 || len(text) > 1<<20 {
		t.Errorf("a scrape has %d lines, %d bytes", lines, len(text))
	}
	if requests != 10_001 || instances != 20_000 {
		t.Errorf("sums are %d requests and %d instances", requests, instances)
	}
	if strings.Contains(text, strings.Repeat("x", 100)) || strings.Contains(text, "000009999") {
		t.Error("a value beyond the bound is shown")
	}
	wants(t, text, `sandbox_instances{phase="other"} 19872`)
}

func TestSourceThatFails(t *testing.T) {
	failing := metrics.Source{
		Name: "store", Families: []metrics.Family{{Name: "tasks", Help: "Tasks."}},
		Read: func(context.Context) ([]metrics.Sample, error) { return nil, errors.New("disk is gone") },
	}
	var log strings.Builder
	m := metrics.New(t.Context(), "v", slog.New(slog.NewTextHandler(&log, nil)), failing, phases(1))
	text := scrape(t, m)
	wants(t, text, `sandbox_scrape_failures_total{source="store"} 1`, `sandbox_instances{phase="phase0"} 2`)
	if strings.Contains(text, "sandbox_tasks") || !strings.Contains(log.String(), "disk is gone") {
		t.Errorf("log is %s", log.String())
	}
}

// TestStreamsAreCounted while they are open.
func TestStreamsAreCounted(t *testing.T) {
	m := metrics.New(t.Context(), "v", slog.New(slog.DiscardHandler))
	route := func(*http.Request) string { return "/{x}" }
	s := httptest.NewServer(m.InFlight("a2a", m.Measure("a2a", route, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plain" {
			fmt.Fprint(w, "done")
			return
		}
		fmt.Fprint(w, "first\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	}))))
	defer s.Close()
	get := func(ctx context.Context, path string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	get(t.Context(), "/plain").Body.Close()
	ctx, leave := context.WithCancel(t.Context())
	res := get(ctx, "/stream")
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	wants(t, scrape(t, m), `sandbox_http_streams{surface="a2a"} 1`)
	leave()
	res.Body.Close()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(scrape(t, m), `sandbox_http_streams{surface="a2a"} 0`+"\n") {
		if time.Now().After(deadline) {
			t.Fatal("a stream that has ended is counted")
		}
	}
	wants(t, scrape(t, m), `sandbox_http_request_duration_seconds_count{method="GET",route="/{x}",surface="a2a"} 1`,
		`sandbox_http_requests_in_flight{surface="a2a"} 0`)
}
