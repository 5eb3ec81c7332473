package main

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/gorilla/mux"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/docs"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/request"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// handler is the three surfaces: management, A2A per instance, operations.
func (d *daemon) handler(url string) http.Handler {
	api := management.New(management.Config{
		Instances: d.fleet, Machines: d.fleet, Operations: d.fleet, Events: d.fleet, Guests: d.fleet,
		Host: d.cfg.Conformance.host(d.fleet), Once: d.db.ManagementRequests(), Catalog: shipped{}, Log: d.log, BaseURL: url,
		Observe: seen(d.metrics),
	})
	admins := request.Identify(d.metrics.InFlight(surfaceManagement, d.unknown(auth.Require(d.tokens, inTenant(api)))))
	agents := d.a2aSurface(d.cfg.Conformance.require(d.tokens, d.cfg.Surface.Domain, d.agents(url)))
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	d.cfg.Surface.virtualHosts(r, agents)
	r.Handle("/healthz", reading(http.HandlerFunc(d.health.healthz)))
	r.Handle("/readyz", reading(http.HandlerFunc(d.health.readyz)))
	scrape := auth.Require(d.tokens, needs(auth.ScopeMetricsRead, d.metrics.Handler()))
	r.Handle("/metrics", request.Identify(reading(scrape)))
	d.public(r)
	// What the API is like is no secret, and people read it before they have a token.
	r.Handle(managementv1.BasePath+"/openapi.yaml", reading(management.Document()))
	r.PathPrefix(docsPath).Handler(reading(apiDocs(d.log)))
	for _, path := range []string{"/", managementv1.BasePath, managementv1.BasePath + "/"} {
		r.Handle(path, reading(http.HandlerFunc(welcome)))
	}
	r.PathPrefix("/agents/").Handler(agents)
	r.PathPrefix(managementv1.BasePath).Handler(admins)
	r.NotFoundHandler = admins // its 404 is a problem document
	return r
}

// reading serves GET and HEAD, and says so to others.
func reading(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "request.method", "Method not served",
			fmt.Sprintf("method %q is not served here", r.Method), "use GET or HEAD")
	})
}

// docsPath is where people read what the API can do.
const docsPath = managementv1.BasePath + "/docs"

// welcome tells who asks at the root, perhaps before having a token, where to
// read on.
func welcome(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{
		"name": "agentic-sandbox", "documentation": docsPath, "openapi": managementv1.BasePath + "/openapi.yaml",
		"health": "/healthz", "ready": "/readyz",
	})
}

// apiDocs is the page that shows the management API.
func apiDocs(log *slog.Logger) http.Handler {
	h, err := docs.New(managementv1.Document, docsPath, managementv1.BasePath+"/openapi.yaml")
	if err != nil { // a broken build
		log.Error("cannot show the management API", "error", err)
		return http.NotFoundHandler()
	}
	return h
}

// shipped is the catalog in the form management asks for.
type shipped struct{}

func (shipped) Names() []string { return catalog.Names() }

func (shipped) Lookup(ref string) ([]byte, string, error) { return catalog.Lookup(ref) }
