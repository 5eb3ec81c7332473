package push

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Headers of a delivery. A2A 1.0 does not name the token's; both spellings
// that receivers look for are sent.
const (
	headerToken    = "A2A-Notification-Token"
	headerTokenOld = "X-A2A-Notification-Token" //nolint:gosec // the name of a header
	// headerKey is the same for every try of one event, so that a receiver can
	// tell a repetition.
	headerKey = "Idempotency-Key"
)

// Bounds of an answer, in bytes. Nothing in it is used; it is read so that the
// connection can be used again.
const (
	maxAnswer       = 64 << 10
	maxAnswerHeader = 16 << 10
)

// poster makes single tries.
type poster struct {
	guard     *Guard
	transport *http.Transport
	timeout   time.Duration
}

func newPoster(g *Guard, roots *x509.CertPool, timeout time.Duration) *poster {
	return &poster{guard: g, timeout: timeout, transport: &http.Transport{
		Proxy:                  nil, // not even from the environment: a proxy would hide where it goes
		DialContext:            g.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
	}}
}

func (p *poster) close() { p.transport.CloseIdleConnections() }

// failure says why a try failed.
type failure struct {
	cause string // one word or two, never text from outside
	err   error  // for the log
	// final: no other try makes sense. after asks for a pause of at least that.
	final bool
	after time.Duration
}

// try posts one event once. nil means that the webhook has taken it.
func (p *poster) try(ctx context.Context, h Hook, seq uint64, b Body) *failure {
	u, err := p.guard.parse(h.URL)
	if err != nil {
		return &failure{cause: "address refused", err: err} // the operator's rules have changed
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(b.Data))
	if err != nil {
		return &failure{cause: "address refused", err: errors.New("cannot make request")}
	}
	if f := setHeaders(req.Header, h, seq, b.ContentType); f != nil {
		return f
	}
	// RoundTrip and not a Client: it follows no redirect and keeps no cookie.
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return explain(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // see maxAnswer
	return judge(resp)
}

func setHeaders(h http.Header, hook Hook, seq uint64, contentType string) *failure {
	// Checked when it was stored; a database is no reason to trust a header.
	if !headerValue(string(hook.Token)) || !headerValue(string(hook.Credentials)) || !schemeForm(hook.Scheme) {
		return &failure{cause: "credentials refused", err: errors.New("stored credentials do not fit a header"), final: true}
	}
	h.Set("Content-Type", contentType)
	h.Set("User-Agent", "agentic-sandbox")
	h.Set(headerKey, `"`+hook.TaskID+"/"+strconv.FormatUint(seq, 10)+`"`)
	if hook.Token != "" {
		h.Set(headerToken, string(hook.Token))
		h.Set(headerTokenOld, string(hook.Token))
	}
	if hook.Scheme != "" {
		h.Set("Authorization", strings.TrimSpace(hook.Scheme+" "+string(hook.Credentials)))
	}
	return nil
}

// explain puts the error of a try in words of ours.
func explain(err error) *failure {
	f := &failure{cause: "not reachable", err: err}
	var timeout interface{ Timeout() bool }
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errForbidden):
		f.cause = "address refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.cause = "timeout"
	case errors.As(err, &cert):
		f.cause = "certificate refused"
	}
	return f
}

// judge reads an answer: any 2xx has taken the event.
func judge(resp *http.Response) *failure {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	cause := "status " + strconv.Itoa(resp.StatusCode)
	f := &failure{cause: cause, err: fmt.Errorf("webhook answers with %s", cause), final: resp.StatusCode == http.StatusGone}
	if n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
		f.after = time.Duration(n) * time.Second //nolint:gosec // 16 bits
	}
	return f
}

// last reports whether an event ends its task.
func last(e task.Event) bool { return e.Status != nil && e.Status.Status.State.Terminal() }
