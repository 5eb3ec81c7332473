package main

import (
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
	r.HandleFunc("/healthz", d.health.healthz).Methods(http.MethodGet, http.MethodHead)
	r.HandleFunc("/readyz", d.health.readyz).Methods(http.MethodGet, http.MethodHead)
	scrape := auth.Require(d.tokens, needs(auth.ScopeMetricsRead, d.metrics.Handler()))
	r.Handle("/metrics", request.Identify(scrape)).Methods(http.MethodGet)
	d.public(r)
	// What the API is like is no secret, and people read it before they have a token.
	r.Handle(managementv1.BasePath+"/openapi.yaml", management.Document()).Methods(http.MethodGet, http.MethodHead)
	r.PathPrefix(docsPath).Handler(apiDocs(d.log)).Methods(http.MethodGet, http.MethodHead)
	for _, path := range []string{"/", managementv1.BasePath, managementv1.BasePath + "/"} {
		r.HandleFunc(path, welcome).Methods(http.MethodGet, http.MethodHead)
	}
	r.PathPrefix("/agents/").Handler(agents)
	r.PathPrefix(managementv1.BasePath).Handler(admins)
	r.NotFoundHandler = admins // its 404 is a problem document
	return r
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
