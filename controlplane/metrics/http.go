package metrics

import (
	"net/http"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/answer"
)

// InFlight counts the requests of a surface that are being answered, and the
// streams among them.
func (m *Metrics) InFlight(surface string, next http.Handler) http.Handler {
	inFlight, streams := m.inFlight.WithLabelValues(surface), m.streams.WithLabelValues(surface)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inFlight.Inc()
		rec := &answer.Recorder{ResponseWriter: w, Flushed: streams.Inc}
		defer func() {
			inFlight.Dec()
			if rec.Stream {
				streams.Dec()
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// Measure counts the requests of a surface that does not do so itself. route
// is asked for the template of a request's path, one of few.
func (m *Metrics) Measure(surface string, route func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &answer.Recorder{ResponseWriter: w}
		defer func() {
			m.Observe(Request{
				Surface: surface, Route: route(r), Method: r.Method, Status: rec.Status, Took: time.Since(start), Stream: rec.Stream,
			})
		}()
		next.ServeHTTP(rec, r)
	})
}
