package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/invoke"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

const (
	requestTimeout = 3 * time.Minute // of one request that is no stream
	maxAnswer      = 64 << 20        // bytes
)

// connection is a server and how to speak to it.
type connection struct {
	server   string // address without a slash at its end
	token    string
	origin   string // where the server was found, for doctor
	stateDir string // its state directory, if it was found by that
	http     *http.Client
	api      *managementv1.Client
}

// connect finds the server and the token.
func (a *app) connect() (*connection, error) {
	c, err := a.resolve()
	if err != nil {
		return nil, err
	}
	if u, err := url.Parse(c.server); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, withRemedy(fmt.Errorf("cannot use server %q: not an address", c.server),
			"write it like http://127.0.0.1:8420")
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        4,
		IdleConnTimeout:     30 * time.Second,
	}
	repeating := func(err error) { a.note("connection broke (%s), asking again", terminal.Line(err.Error())) }
	c.http = &http.Client{Transport: &persistent{transport, repeating}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the token is for this server only
	}}
	api, err := managementv1.NewClient(c.server+managementv1.BasePath,
		managementv1.WithHTTPClient(c.http),
		managementv1.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("User-Agent", "sandboxctl/"+version)
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("cannot use server %q: %w", c.server, err)
	}
	c.api = api
	return c, nil
}

// agent is a client for a machine's A2A address. It goes to the server we
// know, whatever name that gives itself, so the token goes nowhere else.
func (c *connection) agent(a2aURL string) (*invoke.Client, error) {
	u, err := url.Parse(a2aURL)
	if err != nil || !strings.HasPrefix(u.Path, "/") {
		return nil, fmt.Errorf("server gave %q as A2A address", a2aURL)
	}
	return &invoke.Client{
		HTTP: c.http, Base: c.server + strings.TrimRight(u.EscapedPath(), "/"), Token: c.token,
		Limits: invoke.DefaultLimits(),
	}, nil
}

// problemError is an answer of the management API that says what went wrong.
type problemError struct{ managementv1.Problem }

func (e *problemError) Error() string {
	var b strings.Builder
	b.WriteString(first(e.Cause, e.Detail, e.Title, fmt.Sprintf("HTTP status %d", e.Status)))
	for _, f := range e.Errors {
		line := f.Message
		if f.Field != "" && !strings.Contains(line, f.Field) {
			line = f.Field + ": " + line
		}
		if !strings.Contains(b.String(), line) {
			b.WriteString("\n  " + line)
		}
	}
	return b.String()
}

// receive reads an answer of the management API into a T.
func receive[T any](c *connection, resp *http.Response, err error) (T, error) {
	var v T
	if err != nil {
		return v, c.explain(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return v, c.explain(err)
	}
	if len(body) > maxAnswer {
		return v, fmt.Errorf("cannot read answer: it is longer than %d bytes", maxAnswer)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return v, problemOf(resp, body)
	}
	if resp.StatusCode == http.StatusNoContent {
		return v, nil
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("cannot read answer of %s: %w", c.server, err)
	}
	return v, nil
}

// problemOf makes an error of an answer that is none of success.
func problemOf(resp *http.Response, body []byte) error {
	var p managementv1.Problem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return withRemedy(fmt.Errorf("server answered HTTP status %d and no explanation", resp.StatusCode),
			"is SANDBOX_SERVER the address of a sandboxd?")
	}
	p.Status = resp.StatusCode
	switch {
	case p.Code == "request.no_route", p.Code == "request.path":
		p.Remediation = "look at the name; if it is right, see whether the server is of another version: sandboxctl version"
	case resp.StatusCode == http.StatusUnauthorized:
		p.Remediation = "run this as the user that runs sandboxd, or set SANDBOX_TOKEN to a token of this server"
	}
	return &problemError{p}
}

// explain says what to do when no answer came.
func (c *connection) explain(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return &exitError{exitUnreachable, withRemedy(fmt.Errorf("no server answers at %s", c.server), startIt(c.stateDir))}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitUnreachable,
			withRemedy(fmt.Errorf("server at %s did not answer in time", c.server), "see the log of sandboxd")}
	}
	if next, ok := c.unreached(err); ok {
		return &exitError{exitUnreachable, withRemedy(fmt.Errorf("cannot reach server: %w", err), next)}
	}
	err = fmt.Errorf("cannot ask server: %w", err)
	if lost(err) {
		return &exitError{exitUnreachable, withRemedy(err, "it has ended or is being restarted: try again")}
	}
	return err
}

// unreached says what to do when nobody was reached, or somebody who is not
// the server that was meant.
func (c *connection) unreached(err error) (next string, ok bool) {
	var (
		name    *net.DNSError
		op      *net.OpError
		foreign *tls.CertificateVerificationError
		alert   tls.AlertError
		record  tls.RecordHeaderError
		network net.Error
	)
	from := c.server
	switch {
	case errors.Is(err, context.Canceled):
	case errors.As(err, &name):
		return "no host of the name " + terminal.Line(name.Name) + " is known here; correct the address " + from, true
	case errors.As(err, &foreign):
		return "have this host trust the server's certificate, for example with SSL_CERT_FILE, or correct the address " + from, true
	case errors.As(err, &record), errors.As(err, &alert), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "no TLS is spoken at " + from + "; write the address with http://", true
	case errors.As(err, &op) && op.Op == "dial", errors.As(err, &network) && network.Timeout():
		return "check the network between this host and the server, and the address " + from, true
	}
	return "", false
}

// unreachable reports whether no answer came, so that one may come later.
func unreachable(err error) bool {
	var problem *problemError
	return exitCodeOf(err) == exitUnreachable && !errors.As(err, &problem)
}

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}
