package main

import (
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/gorilla/mux"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/management/docs"
	"agentic-sandbox.aiwg.io/sandbox/loadouts/catalog"
)

// handler is the three surfaces: management, A2A per instance, operations.
func (d *daemon) handler(url string) http.Handler {
	api := management.New(management.Config{
		Instances: d.fleet, Machines: d.fleet, Operations: d.fleet, Events: d.fleet, Guests: d.fleet,
		Host: d.cfg.Conformance.host(d.fleet), Once: d.db.ManagementRequests(), Catalog: shipped{}, Log: d.log, BaseURL: url,
	})
	agents := d.cfg.Conformance.require(d.tokens, d.cfg.Surface.Domain, d.agents(url))
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	d.cfg.Surface.virtualHosts(r, agents)
	r.HandleFunc("/healthz", d.healthz).Methods(http.MethodGet, http.MethodHead)
	r.HandleFunc("/readyz", d.readyz).Methods(http.MethodGet, http.MethodHead)
	d.public(r)
	// What the API is like is no secret, and people read it before they have a token.
	r.Handle(managementv1.BasePath+"/openapi.yaml", management.Document()).Methods(http.MethodGet, http.MethodHead)
	r.PathPrefix(docsPath).Handler(apiDocs(d.log)).Methods(http.MethodGet, http.MethodHead)
	r.PathPrefix("/agents/").Handler(agents)
	r.PathPrefix(managementv1.BasePath).Handler(auth.Require(d.tokens, api))
	r.NotFoundHandler = auth.Require(d.tokens, api) // its 404 is a problem document
	return r
}

// docsPath is where people read what the API can do.
const docsPath = managementv1.BasePath + "/docs"

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

// healthz says that the process serves requests.
func (d *daemon) healthz(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, http.StatusOK, "ok", "")
}

// readyz says whether machines can be made and tasks stored.
func (d *daemon) readyz(w http.ResponseWriter, r *http.Request) {
	if err := d.db.Ping(r.Context()); err != nil {
		d.log.ErrorContext(r.Context(), "database does not answer", "error", err)
		writeStatus(w, http.StatusServiceUnavailable, "unavailable", "the database does not answer")
		return
	}
	caps, err := d.drivers[providerLibvirt].Capabilities(r.Context())
	if err != nil || !caps.Available {
		writeStatus(w, http.StatusServiceUnavailable, "unavailable", "no provider can make machines; see sandboxctl doctor")
		return
	}
	writeStatus(w, http.StatusOK, "ready", "")
}

func writeStatus(w http.ResponseWriter, code int, status, detail string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	body := map[string]string{"status": status}
	if detail != "" {
		body["detail"] = detail
	}
	_ = json.NewEncoder(w).Encode(body) // the client has gone: nobody to tell
}
