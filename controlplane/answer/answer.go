// Package answer remembers how a request was answered, for logs and metrics.
// It changes nothing of an answer and knows nothing of what one says.
package answer

import "net/http"

// Recorder passes an answer on and remembers how it went.
type Recorder struct {
	http.ResponseWriter
	// Status is that of the answer; 0 before there is one.
	Status int
	// Bytes counts those of the body.
	Bytes int64
	// Stream is true once the answer was flushed before its end.
	Stream bool
	// Flushed is called when Stream becomes true; nil: nobody is.
	Flushed func()
}

// WriteHeader implements http.ResponseWriter. Informational answers are none.
func (r *Recorder) WriteHeader(status int) {
	if r.Status == 0 && status >= http.StatusOK {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.Bytes += int64(n)
	return n, err
}

// FlushError is what http.ResponseController calls.
func (r *Recorder) FlushError() error {
	if !r.Stream {
		r.Stream = true
		if r.Flushed != nil {
			r.Flushed()
		}
	}
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
