// Package metrics tells Prometheus how this host is doing.
//
// Every label has few values, whatever happens and whoever asks: templates of
// paths, methods, classes of answers, phases, kinds and states, never an id or
// a name that somebody chose; what exceeds a label's bound is counted as
// "other". What is stored or known elsewhere is asked for when it is scraped.
// The package knows none of the nouns it counts.
package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	namespace = "sandbox"
	// scrapeTimeout bounds what one scrape may cost.
	scrapeTimeout  = 10 * time.Second
	scrapesAtOnce  = 4
	maxLabelValues = 64
	other          = "other"
)

// Metrics is everything that is measured. Safe for concurrent use.
type Metrics struct {
	registry  *prometheus.Registry
	log       *slog.Logger
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	streams   *prometheus.GaugeVec
	boots     *prometheus.HistogramVec

	routes, providers, accelerators *bound
}

// New makes the metrics of a process of that version. Sources are asked at
// every scrape, until ctx, the life of the process, ends.
func New(ctx context.Context, version string, log *slog.Logger, sources ...Source) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), log: log,
		routes: newBound(maxLabelValues * 2), providers: newBound(8), accelerators: newBound(8),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "http_requests_total",
			Help: "Requests that were answered, by surface, template of the path, method and class of the status.",
		}, []string{"surface", "route", "method", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "http_request_duration_seconds",
			Help:    "Time from the request to the end of its answer, streams excepted.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"surface", "route", "method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "http_requests_in_flight", Help: "Requests that are being answered, streams included.",
		}, []string{"surface"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "http_streams", Help: "Answers that are open and sent piece by piece.",
		}, []string{"surface"}),
		boots: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "boot_duration_seconds",
			Help:    "Time from the start of the hypervisor to the first answer of the agent.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120},
		}, []string{"provider", "accelerator"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with what this process was built from.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(
		m.requests, m.durations, m.inFlight, m.streams, m.boots, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newScraper(ctx, log, sources),
	)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: m.registry, MaxRequestsInFlight: scrapesAtOnce, Timeout: 2 * scrapeTimeout,
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	})
}

// Request is one request that was answered.
type Request struct {
	// Surface is one of a few, such as "management".
	Surface string
	// Route is the template of the path; empty if it has none.
	Route  string
	Method string
	Status int
	Took   time.Duration
	// Stream is set when the answer was sent piece by piece.
	Stream bool
}

// Observe counts a request.
func (m *Metrics) Observe(r Request) {
	route, method := "none", knownMethod(r.Method)
	if r.Route != "" {
		route = m.routes.value(r.Route)
	}
	m.requests.WithLabelValues(r.Surface, route, method, class(r.Status)).Inc()
	if !r.Stream {
		m.durations.WithLabelValues(r.Surface, route, method).Observe(r.Took.Seconds())
	}
}

// Booted counts the start of a machine.
func (m *Metrics) Booted(provider, accelerator string, took time.Duration) {
	if accelerator == "" {
		accelerator = "none"
	}
	m.boots.WithLabelValues(m.providers.value(provider), m.accelerators.value(accelerator)).Observe(took.Seconds())
}

func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return other
}

// class is 2xx for 204 and the like. An answer that never came has none.
func class(status int) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return strconv.Itoa(status/100) + "xx"
}

// bound lets the first values of a label pass and makes one of all others.
type bound struct {
	most int

	mu   sync.Mutex
	seen map[string]bool
}

func newBound(most int) *bound { return &bound{most: most, seen: map[string]bool{}} }

const maxLabelLength = 96

func (b *bound) value(v string) string {
	if v == "" {
		return "none"
	}
	if len(v) > maxLabelLength {
		return other
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[v] {
		return v
	}
	if len(b.seen) >= b.most {
		return other
	}
	b.seen[v] = true
	return v
}
