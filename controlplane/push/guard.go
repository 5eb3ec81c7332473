package push

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Resolver finds the addresses of a name. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

var _ Resolver = (*net.Resolver)(nil)

// Guard decides which addresses webhooks may have. A client chooses the
// address, and this process can reach what the client cannot: the host's own
// services, the networks of machines, the metadata service of a cloud.
//
// A name is judged by every address it has, when the webhook is made, and
// again by the very address that is dialed.
type Guard struct {
	// Allow lists networks that the operator permits although they would be
	// refused. A metadata address is permitted only by itself (/32, /128).
	Allow []netip.Prefix
	// HTTP permits http beside https.
	HTTP bool
	// Resolver is the system's when nil.
	Resolver Resolver
	// Own lists the addresses of this host; the interfaces' when nil.
	Own func() ([]netip.Addr, error)
}

// resolveTimeout bounds the lookup of a name when a webhook is made.
const resolveTimeout = 5 * time.Second

// Errors of a guard.
var (
	errForbidden = errors.New("address may not be reached by webhooks")
	errNoAddress = errors.New("name has no address")
)

// CheckURL says with a *Refusal what is wrong with a webhook's address. A name
// that cannot be resolved now is taken: it is judged again at every delivery,
// and one's own trouble with DNS is no fault of the client.
func (g *Guard) CheckURL(ctx context.Context, raw string) error {
	u, err := g.parse(raw)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	// The answer does not say what the name resolves to: it would tell the
	// client about networks it cannot see.
	if _, err := g.resolve(ctx, u.Hostname()); errors.Is(err, errForbidden) {
		return &Refusal{"url", "names an address that webhooks may not have here"}
	}
	return nil
}

// parse checks the form of a webhook's address.
func (g *Guard) parse(raw string) (*url.URL, error) {
	refuse := func(rule string) (*url.URL, error) { return nil, &Refusal{"url", rule} }
	if raw == "" {
		return refuse("is required")
	}
	if len(raw) > maxURL || !visible(raw) || strings.Contains(raw, `\`) {
		return refuse(fmt.Sprintf("must be at most %d visible ASCII characters", maxURL))
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return refuse("must be an absolute URL such as https://example.org/hook")
	case u.Scheme != "https" && (u.Scheme != "http" || !g.HTTP):
		if g.HTTP {
			return refuse("must begin with https:// or http://")
		}
		return refuse("must begin with https://")
	case u.User != nil:
		return refuse("must not hold a user or password; use authentication")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return refuse("must not have a fragment")
	case !portForm(u.Port(), u.Host):
		return refuse("must have a port between 1 and 65535, or none")
	case !hostForm(u.Hostname()):
		return refuse("must name its host by letters, digits, dots and hyphens (punycode), or by an IP address in its usual form")
	}
	return u, nil
}

func portForm(port, host string) bool {
	if port == "" {
		return !strings.HasSuffix(host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

const maxHost = 253

func hostForm(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Zone() == ""
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	return len(host) <= maxHost && !slices.Contains(labels, "") && !number(labels[len(labels)-1]) &&
		!strings.ContainsFunc(host, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
		})
}

// number tells whether a host that ends in this label is an address of IPv4 to
// some (2130706433, 0x7f.1, 0177.0.0.1, 127.1): C's inet_aton and browsers read
// it so, and no name ends like this.
func number(label string) bool {
	digits := "0123456789"
	if rest, hex := strings.CutPrefix(strings.ToLower(label), "0x"); hex {
		label, digits = rest, digits+"abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// isLocal tells whether a name is this host's loopback, which is so whatever a
// resolver says (RFC 6761, section 6.3).
func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// resolve returns the addresses of a host, of which every one is permitted.
func (g *Guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{a}
	} else if isLocal(host) {
		addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	} else {
		r := g.Resolver
		if r == nil {
			r = net.DefaultResolver
		}
		if addrs, err = r.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, fmt.Errorf("cannot resolve webhook's host %q: %w", host, err)
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("cannot resolve webhook's host %q: %w", host, errNoAddress)
	}
	for _, a := range addrs {
		if err := g.checkAddr(a); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// checkAddr returns errForbidden for an address that may not be reached.
func (g *Guard) checkAddr(a netip.Addr) error {
	refuse := func(why string) error { return fmt.Errorf("%w: %s is %s", errForbidden, a, why) }
	if a.Zone() != "" {
		return refuse("one with a zone")
	}
	a = a.Unmap()
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return refuse("no address of one host")
	}
	metadata := isMetadata(a)
	for _, p := range g.Allow {
		if unmapPrefix(p).Contains(a) && (!metadata || unmapPrefix(p).IsSingleIP()) {
			return nil
		}
	}
	if metadata {
		return refuse("a metadata service")
	}
	if name := special(a); name != "" {
		return refuse(name)
	}
	own, err := g.own()
	if err != nil {
		return fmt.Errorf("cannot list this host's addresses: %w", err)
	}
	for _, o := range own {
		if o.Unmap().WithZone("") == a {
			return refuse("this host")
		}
	}
	return nil
}

func (g *Guard) own() ([]netip.Addr, error) {
	if g.Own != nil {
		return g.Own()
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, i := range list {
		if n, ok := i.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}

// unmapPrefix is a prefix of IPv4-mapped addresses as one of IPv4.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// network is an address range that is not the public internet.
type network struct{ prefix, name string }

// metadataAddrs are the metadata services of clouds; some have addresses that
// look public.
func metadataAddrs() []string {
	return []string{
		"169.254.169.254", "169.254.170.2", "169.254.170.23", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254",
	}
}

// specialNetworks are IANA's special-purpose ranges that a webhook cannot be
// in, and those that carry an IPv4 address within an IPv6 one.
func specialNetworks() []network {
	return []network{
		{"0.0.0.0/8", "this network"},
		{"10.0.0.0/8", "private"},
		{"100.64.0.0/10", "behind a carrier's NAT"},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local"},
		{"172.16.0.0/12", "private"},
		{"192.0.0.0/24", "reserved"},
		{"192.0.2.0/24", "documentation"},
		{"192.88.99.0/24", "a 6to4 relay"},
		{"192.168.0.0/16", "private"},
		{"198.18.0.0/15", "for benchmarks"},
		{"198.51.100.0/24", "documentation"},
		{"203.0.113.0/24", "documentation"},
		{"240.0.0.0/4", "reserved"},
		// Of IPv6 only 2000::/3 is given out.
		{"2001::/23", "reserved (Teredo and others)"},
		{"2001:db8::/32", "documentation"},
		{"2002::/16", "6to4"},
		{"3fff::/20", "documentation"},
	}
}

func isMetadata(a netip.Addr) bool {
	for _, s := range metadataAddrs() {
		if netip.MustParseAddr(s) == a {
			return true
		}
	}
	return false
}

// special names the range that keeps an address from being public; empty if
// there is none.
func special(a netip.Addr) string {
	if a.Is6() && !netip.MustParsePrefix("2000::/3").Contains(a) {
		return "not global unicast" // loopback, ULA, link-local, NAT64, …
	}
	for _, n := range specialNetworks() {
		if netip.MustParsePrefix(n.prefix).Contains(a) {
			return n.name
		}
	}
	return ""
}

// dial connects to a webhook: it resolves by itself, tries the addresses in
// turn, and the kernel is handed none that was not judged.
func (g *Guard) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("cannot dial webhook: %w", err)
	}
	addrs, err := g.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: g.control}
	var errs []error
	for _, a := range addrs[:min(len(addrs), 4)] {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(a.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// control judges the address of a socket just before it connects. Nothing gets
// past resolve today; this holds also if somebody changes dial.
func (g *Guard) control(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%w: network %q", errForbidden, network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", errForbidden, err)
	}
	return g.checkAddr(ap.Addr())
}
