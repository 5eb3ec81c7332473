package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

const (
	idempotencyKey = "Idempotency-Key"
	maxRepeats     = 12 // with the naps between them about 20 s
)

// persistent carries every change out once, although the connection may break
// before the answer has come: it names each by a key, and repeats it under
// the same name while the server restarts.
type persistent struct {
	http.RoundTripper
	repeating func(error) // told before each repetition
}

// RoundTrip sends a request, and again if its answer was lost.
func (p *persistent) RoundTrip(r *http.Request) (*http.Response, error) {
	if !changes(r) {
		return p.RoundTripper.RoundTrip(r)
	}
	key, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("cannot name request: %w", err)
	}
	for attempt := 0; ; attempt++ {
		again := r.Clone(r.Context())
		again.Header.Set(idempotencyKey, key.String())
		if r.GetBody != nil {
			if again.Body, err = r.GetBody(); err != nil {
				return nil, fmt.Errorf("cannot repeat request: %w", err)
			}
		}
		resp, err := p.RoundTripper.RoundTrip(again)
		switch {
		case err == nil && !atWork(resp), attempt >= maxRepeats:
			return resp, err
		case err == nil:
			err = errors.New("the first request is still at work")
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
			_ = resp.Body.Close()                                         // only read from
		case !lost(err), attempt == 0 && errors.Is(err, syscall.ECONNREFUSED):
			return nil, err // nothing was lost: nobody was there to begin with
		}
		if p.repeating != nil {
			p.repeating(err)
		}
		if nerr := nap(r.Context(), min(firstNap<<min(attempt, 8), lastNap)); nerr != nil {
			return nil, nerr
		}
	}
}

// changes reports whether a request changes something and can be repeated. A
// stream of files is neither kept nor named.
func changes(r *http.Request) bool {
	if !strings.Contains(r.URL.Path, managementv1.BasePath+"/") || (r.GetBody == nil && r.Body != nil && r.Body != http.NoBody) {
		return false
	}
	return r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodDelete
}

// atWork reports whether the answer is that the same request is being carried
// out right now.
func atWork(resp *http.Response) bool {
	return resp.StatusCode == http.StatusConflict && resp.Header.Get("Retry-After") != ""
}

// lost reports whether the connection broke, so that nobody knows whether the
// request has been carried out.
func lost(err error) bool {
	var op *net.OpError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNREFUSED):
		return true
	}
	return errors.As(err, &op) && op.Op != "dial"
}

const (
	maxReopens = 60
	firstNap   = 100 * time.Millisecond
	lastNap    = 2 * time.Second
)

func nap(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
