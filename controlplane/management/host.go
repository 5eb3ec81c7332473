package management

import (
	"net/http"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

// GetHost shows this host with what it has and lacks.
func (a *api) GetHost(w http.ResponseWriter, r *http.Request) {
	facts, err := a.Host.Facts(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, host(facts))
}

// ListImages lists the images in the store.
func (a *api) ListImages(w http.ResponseWriter, r *http.Request) {
	facts, err := a.Host.Facts(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, managementv1.ImageList{Items: images(facts.Images)})
}

// GetVersion says which server this is and which versions of the API it has.
func (a *api) GetVersion(w http.ResponseWriter, r *http.Request) {
	facts, err := a.Host.Facts(r.Context())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, managementv1.Version{Version: facts.Version, Api: []string{"v1"}})
}
