package management

import (
	"net/http"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// facts answers with a part of what is known of this host.
func (a *api) facts(w http.ResponseWriter, r *http.Request, part func(fleet.HostFacts) any) {
	facts, err := a.Host.Facts(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, part(facts))
}

// GetHost shows this host with what it has and lacks.
func (a *api) GetHost(w http.ResponseWriter, r *http.Request) {
	a.facts(w, r, func(f fleet.HostFacts) any { return host(f) })
}

// ListImages lists the images in the store.
func (a *api) ListImages(w http.ResponseWriter, r *http.Request) {
	a.facts(w, r, func(f fleet.HostFacts) any { return managementv1.ImageList{Items: images(f.Images)} })
}

// ListProviders lists what runs machines here, and why something does not.
func (a *api) ListProviders(w http.ResponseWriter, r *http.Request) {
	a.facts(w, r, func(f fleet.HostFacts) any { return managementv1.ProviderList{Items: providers(f.Providers)} })
}

// GetVersion says which server this is and which versions of the API it has.
func (a *api) GetVersion(w http.ResponseWriter, r *http.Request) {
	a.facts(w, r, func(f fleet.HostFacts) any {
		return managementv1.Version{Version: f.Version, Api: []string{"v1"}}
	})
}

// ListOrphans lists what belongs to no instance.
func (a *api) ListOrphans(w http.ResponseWriter, r *http.Request) {
	orphans, err := a.Host.Orphans(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	list := managementv1.OrphanList{Items: make([]managementv1.Orphan, 0, len(orphans))}
	for _, o := range orphans {
		list.Items = append(list.Items, orphan(o))
	}
	a.answer(w, r, http.StatusOK, list)
}

// RemoveOrphan removes one of them before its time.
func (a *api) RemoveOrphan(w http.ResponseWriter, r *http.Request, id string, _ managementv1.RemoveOrphanParams) {
	parsed, err := instance.ParseID(id)
	if err != nil {
		a.fail(w, r, callerFault(codeNoOrphan, "`GET "+managementv1.BasePath+"/orphans` lists what there is",
			"there is no orphan %q", clip(id)))
		return
	}
	notesOf(r.Context()).instance = parsed
	if err := a.Host.RemoveOrphan(r.Context(), parsed); err != nil {
		a.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
