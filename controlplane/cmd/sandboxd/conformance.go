package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/a2a"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/runner/scripted"
)

// conformanceConfig lets public conformance kits drive the instances. It is
// said at the start, by the checks of the host and on every AgentCard.
type conformanceConfig struct {
	Enabled   bool
	Anonymous string // principal of requests without a token; empty: they are refused
}

func (c *conformanceConfig) flags(f *pflag.FlagSet) {
	f.BoolVar(&c.Enabled, "conformance", false, "for conformance kits, never for use: the ids of messages that begin with tck- "+
		"script the tasks of every instance, and no A2A extension is required")
	f.StringVar(&c.Anonymous, "conformance-anonymous", "", "with --conformance, on loopback only: take A2A requests that carry no token "+
		"for requests of `PRINCIPAL`")
}

// principalForm is a name that nobody mistakes.
var principalForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// complete also checks that nobody but this host can be anonymous: neither
// directly nor through a proxy in front.
func (c *conformanceConfig) complete(listen, publicURL string) error {
	if c.Anonymous == "" {
		return nil
	}
	const flag = "--conformance-anonymous"
	host, _, err := net.SplitHostPort(listen)
	addr, aerr := netip.ParseAddr(host)
	public, perr := url.Parse(publicURL)
	switch {
	case !c.Enabled:
		return errors.New(flag + ": needs --conformance")
	case !principalForm.MatchString(c.Anonymous), c.Anonymous == "admin":
		return fmt.Errorf("%s %q: want a name of lower-case letters, digits and -, and not admin", flag, c.Anonymous)
	case err != nil, aerr != nil, !addr.IsLoopback():
		return fmt.Errorf("%s: needs --listen to be an address of loopback, such as 127.0.0.1:8420, not %q", flag, listen)
	case publicURL != "" && (perr != nil || !loopbackHost(public.Host)):
		return fmt.Errorf("%s: needs --public-url to be on loopback, not %q", flag, publicURL)
	}
	return nil
}

// announce says that the daemon is not for use.
func (c *conformanceConfig) announce(ctx context.Context, log *slog.Logger) {
	if !c.Enabled {
		return
	}
	log.WarnContext(ctx, "CONFORMANCE MODE, NOT FOR USE: messages whose ids begin with tck- script the tasks of every instance, "+
		"and no A2A extension is required")
	if c.Anonymous != "" {
		log.WarnContext(ctx, "CONFORMANCE MODE, NOT FOR USE: everybody on this host may invoke every instance without a token",
			"principal", c.Anonymous)
	}
}

// runners are those the daemon offers; the last takes whatever nobody else
// does. Scripts come right before it: an adapter command in a message has to be
// carried out or refused, whatever the message's id.
func (c *conformanceConfig) runners(all ...runner.Runner) []runner.Runner {
	if c.Enabled {
		all = slices.Insert(slices.Clone(all), len(all)-1, runner.Runner(scripted.Runner{}))
	}
	return all
}

// instances has every agent take scripted messages, and say so.
func (c *conformanceConfig) instances(next a2a.Instances) a2a.Instances {
	if !c.Enabled {
		return next
	}
	return scriptedAgents{next}
}

type scriptedAgents struct{ a2a.Instances }

const conformanceNotice = "CONFORMANCE MODE, NOT FOR USE."

// Instance implements a2a.Instances.
func (s scriptedAgents) Instance(ctx context.Context, id instance.ID) (a2a.Agent, error) {
	agent, err := s.Instances.Instance(ctx, id)
	if err != nil {
		return agent, err //nolint:wrapcheck // it is one of those that a2a asks for
	}
	if agent.Description != "" {
		agent.Description = " " + agent.Description
	}
	agent.Description = conformanceNotice + agent.Description
	agent.Runners = append(slices.Clone(agent.Runners), scripted.Name)
	agent.Skills = append(slices.Clone(agent.Skills), a2a.Skill{
		ID: "conformance.scripted", Name: "Scripted tasks", Tags: []string{"conformance"},
		Description: "For conformance kits: a message whose id begins with tck- takes its task through the states that the id names.",
	})
	return agent, nil
}

// host adds the mode to the checks of the host.
func (c *conformanceConfig) host(next management.Host) management.Host {
	if !c.Enabled {
		return next
	}
	return conformanceHost{next, c.Anonymous}
}

type conformanceHost struct {
	management.Host
	anonymous string
}

// Facts implements management.Host.
func (h conformanceHost) Facts(ctx context.Context) (fleet.HostFacts, error) {
	facts, err := h.Host.Facts(ctx)
	if err != nil {
		return facts, err //nolint:wrapcheck // it is the fleet's own
	}
	check := fleet.Check{
		Name: "conformance", Status: "warning",
		Detail: "the ids of messages script the tasks of every instance, and no A2A extension is required",
		Remedy: "start sandboxd without --conformance",
	}
	if h.anonymous != "" {
		check.Detail += fmt.Sprintf("; A2A requests without a token are those of %q", h.anonymous)
	}
	i := slices.IndexFunc(facts.Checks, func(c fleet.Check) bool { return c.Status == "ok" }) // worst first
	if i < 0 {
		i = len(facts.Checks)
	}
	facts.Checks = slices.Insert(facts.Checks, i, check)
	return facts, nil
}

// require lets requests with a token pass, and those of this host without one
// if there is a principal for them.
func (c *conformanceConfig) require(v auth.Verifier, domain string, next http.Handler) http.Handler {
	denial := func(w http.ResponseWriter, r *http.Request, cause string) {
		a2a.NewRefusals(domain).Unauthenticated(w, r, cause+" ("+auth.Remedy+")")
	}
	strict := auth.RequireOr(v, denial, next)
	if c.Anonymous == "" {
		return strict
	}
	who := auth.Principal{Name: c.Anonymous, Scopes: []auth.Scope{auth.ScopeInvoke}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !anonymous(r, domain) {
			strict.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), who)))
	})
}

// anonymous reports whether a request is one of a program on this host that
// carries no token. A page in a browser here speaks for somebody else, by its
// own origin or under a name that it had resolved to loopback, and so does a
// proxy.
func anonymous(r *http.Request, domain string) bool {
	for _, name := range []string{"Authorization", "Origin", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	_, virtual := a2a.VirtualHost(r.Host, domain)
	return err == nil && peer.Addr().Unmap().IsLoopback() && (virtual || loopbackHost(r.Host))
}

// loopbackHost reports whether a host, with or without a port, is this one by
// a name or an address that cannot be another one.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}
