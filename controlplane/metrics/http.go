package metrics

import (
	"net/http"
	"time"
)

// InFlight counts the requests of a surface that are being answered, and the
// streams among them.
func (m *Metrics) InFlight(surface string, next http.Handler) http.Handler {
	inFlight, streams := m.inFlight.WithLabelValues(surface), m.streams.WithLabelValues(surface)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inFlight.Inc()
		rec := &recorder{ResponseWriter: w, streams: streams}
		defer func() {
			inFlight.Dec()
			if rec.stream {
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
		rec := &recorder{ResponseWriter: w}
		defer func() {
			m.Observe(Request{
				Surface: surface, Route: route(r), Method: r.Method, Status: rec.status, Took: time.Since(start), Stream: rec.stream,
			})
		}()
		next.ServeHTTP(rec, r)
	})
}

type gauge interface {
	Inc()
	Dec()
}

// recorder notices how an answer goes. One that is flushed before its end is a
// stream.
type recorder struct {
	http.ResponseWriter
	streams gauge // may be nil
	status  int
	stream  bool
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b) //nolint:wrapcheck // it is the writer's own
}

// FlushError is what http.ResponseController calls.
func (r *recorder) FlushError() error {
	if !r.stream {
		r.stream = true
		if r.streams != nil {
			r.streams.Inc()
		}
	}
	return http.NewResponseController(r.ResponseWriter).Flush() //nolint:wrapcheck // it is the writer's own
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
