package a2a

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// VirtualHost reads the instance out of a host of the form
// {instance_id}.<domain>, with or without a port. It reports false for every
// other host.
func VirtualHost(host, domain string) (instance.ID, bool) {
	name, domain := hostName(host), hostName(domain)
	label, ok := strings.CutSuffix(name, "."+domain)
	if !ok || domain == "" {
		return "", false
	}
	id, err := instance.ParseID(label)
	return id, err == nil
}

// hostName is a host without port and final dot, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

type originKey struct{}

// virtualHosts serves every agent also at the root of its own origin, if there
// is a domain for that. Below it, such a request looks as if it had come by
// path.
func (s *surface) virtualHosts(next http.Handler) http.Handler {
	domain := s.cfg.VirtualHostDomain
	if domain == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := VirtualHost(r.Host, domain)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		prefix := "/agents/" + id.String()
		u := *r.URL
		u.Path = prefix + u.Path
		if u.RawPath != "" {
			u.RawPath = prefix + u.RawPath
		}
		r = r.WithContext(context.WithValue(r.Context(), originKey{}, true))
		r.URL = &u
		next.ServeHTTP(w, r)
	})
}

// baseFor is the agent's address in the form the request came in by.
func (s *surface) baseFor(r *http.Request, a Agent) string {
	if at, _ := r.Context().Value(originKey{}).(bool); at {
		return s.origin(a)
	}
	return s.base(a)
}

// origin is the agent's own origin: the scheme of the public URL, and its port
// unless the domain has one.
func (s *surface) origin(a Agent) string {
	domain, scheme := s.cfg.VirtualHostDomain, "http"
	if public, err := url.Parse(s.cfg.PublicURL); err == nil {
		if public.Scheme != "" {
			scheme = public.Scheme
		}
		if _, _, err := net.SplitHostPort(domain); err != nil && public.Port() != "" {
			domain = net.JoinHostPort(domain, public.Port())
		}
	}
	return scheme + "://" + a.ID.String() + "." + domain
}
