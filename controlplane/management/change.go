package management

import (
	"errors"
	"maps"
	"net/http"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// patchTries bounds how often labels are merged anew because somebody else
// changed the instance in between.
const patchTries = 8

// UpdateInstance merges labels into those of an instance.
func (a *api) UpdateInstance(w http.ResponseWriter, r *http.Request, ref string, params managementv1.UpdateInstanceParams) {
	var body managementv1.UpdateInstance
	if err := decode(w, r, &body, mediaMergePatch, mediaJSON); err != nil {
		a.fail(w, r, err)
		return
	}
	if err := checkUpdate(body); err != nil {
		a.fail(w, r, err)
		return
	}
	view, err := a.mergeLabels(r, ref, params.IfMatch, body.Labels)
	a.showInstance(w, r, view, err)
}

func checkUpdate(body managementv1.UpdateInstance) error {
	var bad invalid
	bad.refuse(body.Labels == nil, "labels", "want an object")
	set := map[string]string{}
	for key, value := range body.Labels {
		if value != nil { // whatever there is may be taken away
			set[key] = *value
		}
	}
	bad.refuse(len(body.Labels) > maxLabels, "labels", "want at most %d labels", maxLabels)
	bad.checkLabels(set)
	return bad.sorted().or(codeInvalid)
}

// mergeLabels changes only what is named, whoever else changes the rest at the
// same time.
func (a *api) mergeLabels(r *http.Request, ref string, match *string, change map[string]*string) (fleet.View, error) {
	for try := 1; ; try++ {
		view, err := a.find(r, ref)
		if err != nil {
			return fleet.View{}, err
		}
		if _, err := ifMatch(match, view); err != nil {
			return fleet.View{}, err
		}
		merged := maps.Clone(view.Labels)
		if merged == nil {
			merged = map[string]string{}
		}
		for key, value := range change {
			if value == nil {
				delete(merged, key)
			} else {
				merged[key] = *value
			}
		}
		var bad invalid
		if bad.countLabels(merged); len(bad) > 0 {
			return fleet.View{}, bad.sorted().or(codeInvalid)
		}
		if maps.Equal(merged, view.Labels) {
			return view, nil
		}
		view, err = a.Instances.SetLabels(r.Context(), view.ID.String(), merged, view.Generation)
		var f *instance.Fault
		if try < patchTries && errors.As(err, &f) && f.Code == codeChanged && r.Context().Err() == nil {
			continue // with If-Match, the next look finds out
		}
		return view, err
	}
}

// RenewInstance moves the end of an instance's life.
func (a *api) RenewInstance(w http.ResponseWriter, r *http.Request, ref string, _ managementv1.RenewInstanceParams) {
	var body managementv1.RenewInstance
	if err := decode(w, r, &body, mediaJSON); err != nil {
		a.fail(w, r, err)
		return
	}
	ttl, err := duration("ttl", body.Ttl, maxTTL)
	if err == nil && body.Ttl == "" {
		err = invalid{{Field: "ttl", Code: "field.invalid", Message: "want a time such as 4h, or 0s for no end"}}.or(codeInvalid)
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	view, err := a.find(r, ref)
	if err == nil {
		view, err = a.Instances.Renew(r.Context(), view.ID.String(), ttl)
	}
	a.showInstance(w, r, view, err)
}

func (a *api) showInstance(w http.ResponseWriter, r *http.Request, view fleet.View, err error) {
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("ETag", etag(view))
	a.answer(w, r, http.StatusOK, instanceJSON(view, a.base(r)))
}

// DeleteInstance begins to remove an instance.
func (a *api) DeleteInstance(w http.ResponseWriter, r *http.Request, ref string, params managementv1.DeleteInstanceParams) {
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	generation, err := ifMatch(params.IfMatch, view)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Machines.Delete(r.Context(), view.ID.String(), generation)
	a.accepted(w, r, op, err)
}

// StartInstance boots a machine that has ended.
func (a *api) StartInstance(w http.ResponseWriter, r *http.Request, ref string, _ managementv1.StartInstanceParams) {
	a.act(w, r, ref, fleet.ActionStart, fleet.ActOptions{})
}

// StopInstance ends a machine and keeps its disk.
func (a *api) StopInstance(w http.ResponseWriter, r *http.Request, ref string, params managementv1.StopInstanceParams) {
	a.act(w, r, ref, fleet.ActionStop, fleet.ActOptions{Force: params.Force != nil && *params.Force})
}

// RestartInstance ends a machine and boots it again.
func (a *api) RestartInstance(w http.ResponseWriter, r *http.Request, ref string, _ managementv1.RestartInstanceParams) {
	a.act(w, r, ref, fleet.ActionRestart, fleet.ActOptions{})
}

// PauseInstance stops a machine's processor.
func (a *api) PauseInstance(w http.ResponseWriter, r *http.Request, ref string, _ managementv1.PauseInstanceParams) {
	a.act(w, r, ref, fleet.ActionPause, fleet.ActOptions{})
}

// ResumeInstance lets a paused machine go on.
func (a *api) ResumeInstance(w http.ResponseWriter, r *http.Request, ref string, _ managementv1.ResumeInstanceParams) {
	a.act(w, r, ref, fleet.ActionResume, fleet.ActOptions{})
}

func (a *api) act(w http.ResponseWriter, r *http.Request, ref string, action fleet.Action, o fleet.ActOptions) {
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Machines.Act(r.Context(), view.ID.String(), action, o)
	a.accepted(w, r, op, err)
}
