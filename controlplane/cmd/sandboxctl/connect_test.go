package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// TestUnreached: whoever is not reached, the status is that of no answer and
// the next step is told.
func TestUnreached(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	foreign := httptest.NewUnstartedServer(http.NotFoundHandler())
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	foreign.StartTLS()
	defer foreign.Close()
	for _, tt := range []struct{ server, next string }{
		{"http://no..name", "no host of the name no..name is known here"},
		{foreign.URL, "have this host trust the server's certificate"},
		{strings.Replace(plain.URL, "http:", "https:", 1), "no TLS is spoken at"},
	} {
		a := &app{server: tt.server, stateDir: t.TempDir(), stderr: io.Discard}
		c, err := a.connect()
		if err != nil {
			t.Fatal(err)
		}
		_, err = fetch[managementv1.LoadoutList](t.Context(), c, func(ctx context.Context) (*http.Response, error) {
			return c.api.ListLoadouts(ctx)
		})
		if exitCodeOf(err) != exitUnreachable || !strings.Contains(remedyOf(err), tt.next) {
			t.Errorf("%s: status %d, %v, next %q", tt.server, exitCodeOf(err), err, remedyOf(err))
		}
	}
	c := &connection{server: "http://192.0.2.1"}
	dial := func(err error) error {
		return &url.Error{Op: "Get", URL: c.server, Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}
	}
	if err := c.explain(dial(syscall.EHOSTUNREACH)); exitCodeOf(err) != exitUnreachable || !strings.Contains(remedyOf(err), "check the network") {
		t.Errorf("no route: %v, next %q", err, remedyOf(err))
	}
	if err := c.explain(fmt.Errorf("dial: %w", context.Canceled)); exitCodeOf(err) == exitUnreachable {
		t.Errorf("an interruption is no lost server: %v", err)
	}
}
