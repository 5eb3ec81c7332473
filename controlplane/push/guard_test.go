package push_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/push"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// names is a resolver that knows what it is told.
type names func(host string) []string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	list := n(host)
	if list == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, s := range list {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs, nil
}

const ownAddr = "45.33.32.156"

func own() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(ownAddr), netip.MustParseAddr("2600:3c01::1")}, nil
}

func refused(t *testing.T, g *push.Guard, url string) bool {
	t.Helper()
	err := g.CheckURL(t.Context(), url)
	var refusal *push.Refusal
	if err != nil && (!errors.As(err, &refusal) || refusal.Field != "url") {
		t.Errorf("%q: %v is no refusal of url", url, err)
	}
	return err != nil
}

func TestAddresses(t *testing.T) {
	g := &push.Guard{Own: own, Resolver: names(func(host string) []string {
		return map[string][]string{
			"public.example": {"93.184.216.34", "2606:2800:220:1::1"}, "private.example": {"10.1.2.3"},
			"mixed.example": {"93.184.216.34", "127.0.0.1"}, "localhost": {"127.0.0.1", "::1"},
			"mapped.example": {"::ffff:192.168.0.1"}, "zone.example": {"fe80::1%eth0"},
		}[host]
	})}
	for _, host := range []string{
		"93.184.216.34", "8.8.8.8", "[2606:2800:220:1::1]", "[::ffff:8.8.8.8]", "public.example", "unknown.example",
	} {
		if refused(t, g, "https://"+host+"/hook") {
			t.Errorf("%s is refused", host)
		}
	}
	for _, host := range []string{
		"127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "169.254.169.254", "169.254.0.1",
		"172.16.0.1", "172.31.255.255", "192.168.1.1", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
		"224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
		"[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]", "[fe80::1]", "[fc00::1]",
		"[fd00:ec2::254]", "[fec0::1]", "[ff02::1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::1]", "[2001:0:7f00:1::]", "[2001:db8::1]",
		"[100::1]", "[::ffff:0:127.0.0.1]", "[fe80::1%25eth0]",
		ownAddr, "[2600:3c01::1]", "[::ffff:" + ownAddr + "]",
		"localhost", "private.example", "mixed.example", "mapped.example", "zone.example",
	} {
		if !refused(t, g, "https://"+host+"/hook") {
			t.Errorf("%s is taken", host)
		}
	}
}

func TestAllowed(t *testing.T) {
	g := &push.Guard{HTTP: true, Own: own, Allow: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00::/8"),
		netip.MustParsePrefix("::ffff:192.168.7.0/120"), netip.MustParsePrefix(ownAddr + "/32"), netip.MustParsePrefix("168.63.129.16/32"),
	}}
	for host, want := range map[string]bool{
		"10.1.2.3": true, "[::ffff:10.1.2.3]": true, "10.2.0.1": false, "169.254.1.1": true, "169.254.169.254": false,
		"[fd12::1]": true, "[fd00:ec2::254]": false, "192.168.7.9": true, "192.168.8.1": false, ownAddr: true, "168.63.129.16": true,
	} {
		if refused(t, g, "http://"+host) == want {
			t.Errorf("%s: allowed should be %v", host, want)
		}
	}
	everything := &push.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	for _, host := range []string{"0.0.0.0", "[::]", "224.0.0.1", "255.255.255.255", "169.254.169.254"} {
		if !refused(t, everything, "https://"+host) {
			t.Errorf("%s is taken", host)
		}
	}
}

func TestURLs(t *testing.T) {
	g := &push.Guard{Own: own, Resolver: names(func(string) []string { return []string{"8.8.8.8"} })}
	for _, s := range []string{
		"https://example.org", "https://example.org/", "https://example.org:8443/a/b?c=d&e=%20", "https://xn--bcher-kva.example/x", "HTTPS://EXAMPLE.ORG",
		"https://example.org./x", "https://a_b.example",
	} {
		if refused(t, g, s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{
		"", "example.org", "//example.org", "/hook", "http://example.org", "ftp://example.org", "file:///etc/passwd", "gopher://example.org",
		"javascript:alert(1)", "https:example.org", "https://", "https:///x", "https://user@example.org", "https://user:pw@example.org",
		"https://@example.org", "https://example.org#f", "https://example.org/#", "https://example.org:0", "https://example.org:", "https://example.org:65536",
		"https://example.org:x", "https://exa mple.org", "https://example.org/a b", "https://example.org/\r\nX: 1", "https://example.org/\x00",
		"https://bücher.example", "https://example.org/ü", `https://example.org\@127.0.0.1/`, "https://exa%6dple.org/%", "https://[::1", "https://a,b",
		"https://" + strings.Repeat("a", 254), "https://example.org/" + strings.Repeat("a", 2048),
	} {
		if !refused(t, g, s) {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestOtherSpellings: what some take for an address is judged as one when the
// webhook is made, whatever a resolver makes of it.
func TestOtherSpellings(t *testing.T) {
	var asked []string
	g := &push.Guard{Own: own, Resolver: names(func(host string) []string {
		asked = append(asked, host)
		return []string{"8.8.8.8"}
	})}
	for _, host := range []string{
		"2130706433", "0x7f000001", "0X7F000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "127.0.0x1", "127.1", "127.0.1", "0", "0x", "00",
		"127.0.0.1.", "127.1.", "8.8.8.8.", "example.1", "example.0xa", "1.2.3.4.5", "999.999.999.999",
		"localhost", "localhost.", "LocalHost", "a.localhost", "a.b.LOCALHOST.", ".", "..", "example..org", "example.org..", ".example.org",
	} {
		if !refused(t, g, "https://"+host+"/hook") {
			t.Errorf("%s is taken", host)
		}
	}
	if len(asked) > 0 {
		t.Errorf("a resolver was asked for %q", asked)
	}
	for _, host := range []string{"1.example", "0x1.example", "4.3.2.1.in-addr.arpa", "example.a1", "example.0xg", "1e100.net", "notlocalhost", "localhost.example", "example.org."} {
		if refused(t, g, "https://"+host+"/hook") {
			t.Errorf("%s is refused", host)
		}
	}
	// An operator who permits loopback permits its name.
	g.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	if refused(t, g, "https://localhost:8443/hook") {
		t.Error("localhost is refused although its address is permitted")
	}
}

// untouched is a listener on loopback that nobody may reach.
func untouched(t *testing.T) (url string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("somebody got through: %s %s", r.Method, r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func port(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

// TestRebinding: a name that has a public address when the webhook is made and
// another when it is called reaches nothing.
func TestRebinding(t *testing.T) {
	target := untouched(t)
	for _, inner := range []string{"127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::"} {
		t.Run(inner, func(t *testing.T) {
			var asked atomic.Int32
			r := newRig(t, func(c *push.Config) {
				c.Limits.MaxTries = 3
				c.Guard = &push.Guard{HTTP: true, Resolver: names(func(string) []string {
					if asked.Add(1) == 1 {
						return []string{"93.184.216.34"}
					}
					return []string{inner}
				})}
			})
			r.task("t")
			r.hook("t", "http://rebind.example:"+port(t, target))
			p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp })
			if p.Cause != "address refused" || asked.Load() != 4 {
				t.Errorf("progress is %+v after %d lookups", p, asked.Load())
			}
		})
	}
}

// TestRulesChange: a webhook that was made under other rules is judged by those
// of now.
func TestRulesChange(t *testing.T) {
	for name, g := range map[string]*push.Guard{
		"address": {HTTP: true}, "scheme": {Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *push.Config) { c.Guard = g; c.Limits.MaxTries = 2 })
			r.task("t")
			_, err := r.db.Webhooks().Put(t.Context(), task.System(), push.Hook{TaskID: "t", ID: "h", Version: "1.0", URL: untouched(t)}, 0, 16)
			r.must(err)
			r.must(r.s.Start(t.Context()))
			if p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp }); p.Cause != "address refused" {
				t.Errorf("progress is %+v", p)
			}
		})
	}
}

// TestRedirect: a redirect is a failure and nothing more, wherever it leads.
func TestRedirect(t *testing.T) {
	target := untouched(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", target)
			w.WriteHeader(status)
		}))
		t.Cleanup(srv.Close)
		r := newRig(t, func(c *push.Config) { c.Limits.MaxTries = 2 })
		r.task("t")
		r.hook("t", srv.URL)
		if p := r.stored("t", func(p push.Progress) bool { return p.State == push.GaveUp }); !strings.HasPrefix(p.Cause, "status 30") {
			t.Errorf("progress is %+v", p)
		}
	}
}

// TestNoProxy: a proxy of the environment is not used; it would go where the
// guard cannot see.
func TestNoProxy(t *testing.T) {
	proxy := untouched(t)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy)
	}
	hook := newReceiver(t, nil)
	r := newRig(t, func(c *push.Config) {
		c.Guard.Resolver = names(func(string) []string { return []string{"127.0.0.1"} })
	})
	r.task("t")
	// By name: Go itself never uses a proxy for loopback addresses.
	r.hook("t", "http://hook.example:"+port(t, hook.url)+"/x")
	r.move("t", task.Completed)
	r.done("t")
}

// TestTLS: https is spoken with who proves to be the host that was named.
func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	for name, c := range map[string]struct {
		host  string
		roots *x509.CertPool
		state push.State
		cause string
	}{
		"trusted":    {"example.com", roots, push.Done, ""}, // the test server's name
		"other name": {"other.example", roots, push.GaveUp, "certificate refused"},
		"untrusted":  {"example.com", nil, push.GaveUp, "certificate refused"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *push.Config) {
				cfg.RootCAs = c.roots
				cfg.Limits.MaxTries = 2
				cfg.Guard.HTTP = false
				cfg.Guard.Resolver = names(func(string) []string { return []string{"127.0.0.1"} })
			})
			r.task("t")
			r.move("t", task.Completed)
			r.hook("t", "https://"+c.host+":"+port(t, srv.URL))
			if p := r.stored("t", func(p push.Progress) bool { return p.State == c.state }); p.Cause != c.cause {
				t.Errorf("progress is %+v", p)
			}
		})
	}
}

// FuzzCheckURL: what is taken names, to Go's own client too, a host that was
// judged: here only a public IP address, as every name is one of loopback.
func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{
		"https://93.184.216.34/x?y", "http://[::ffff:127.0.0.1]:80", "https://127.1", "https://0x7f000001", "https://2130706433", "https://017700000001",
		"https://[::1]", "https://8.8.8.8:443#", "https://8.8.8.8@127.0.0.1/", `https://8.8.8.8\@127.0.0.1`, "https://127.0.0.1\t.example", "https://8.8.8.8%00",
		"https://[fe80::1%25lo]", "https://８.8.8.8", "https://localhost.", "hTTp://8.8.8.8",
	} {
		f.Add(s)
	}
	g := &push.Guard{HTTP: true, Own: own, Resolver: names(func(string) []string { return []string{"127.0.0.1"} })}
	f.Fuzz(func(t *testing.T, raw string) {
		if refused(t, g, raw) {
			return
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, raw, nil)
		if err != nil {
			t.Fatalf("%q is taken, but cannot be called: %v", raw, err)
		}
		u := req.URL
		a, err := netip.ParseAddr(u.Hostname())
		if err != nil || u.User != nil || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
			t.Fatalf("%q is taken as %#v", raw, u)
		}
		if a = a.Unmap(); !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.Zone() != "" || a == netip.MustParseAddr(ownAddr) {
			t.Fatalf("%q is taken, it is %v", raw, a)
		}
		if strings.ContainsAny(raw, "\r\n\x00 \t") {
			t.Fatalf("%q is taken", raw)
		}
	})
}
