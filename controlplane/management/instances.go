package management

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// ListInstances answers one page of instances, in the order of their ids.
func (a *api) ListInstances(w http.ResponseWriter, r *http.Request, params managementv1.ListInstancesParams) {
	filter, err := filterOf(params)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	after, err := cursor(params.Cursor)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	limit, err := pageSize(params.Limit)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	all, err := a.Instances.List(r.Context(), filter)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	views := all.Views
	slices.SortFunc(views, func(x, y fleet.View) int { return strings.Compare(string(x.ID), string(y.ID)) })
	key := func(v fleet.View) string { return string(v.ID) }
	start, _ := slices.BinarySearchFunc(views, after, func(v fleet.View, after string) int {
		if string(v.ID) <= after {
			return -1
		}
		return 1
	})
	page, next := cut(views[start:], limit, key)
	list := managementv1.InstanceList{Items: make([]managementv1.Instance, 0, len(page)), NextCursor: next}
	base := a.base(r)
	for _, v := range page {
		list.Items = append(list.Items, instanceJSON(v, base))
	}
	a.answer(w, r, http.StatusOK, list)
}

func filterOf(params managementv1.ListInstancesParams) (fleet.Filter, error) {
	var (
		filter fleet.Filter
		bad    invalid
		labels = map[string]string{}
	)
	if params.State != nil {
		filter.Phase = instance.Phase(*params.State)
		if !slices.Contains(instance.Phases(), filter.Phase) {
			bad = append(bad, fleet.FieldError{Field: "state", Code: "parameter.unknown",
				Message: fmt.Sprintf("%q is no state; want one of %v", clip(string(*params.State)), instance.Phases())})
		}
	}
	for _, l := range params.Label {
		key, value, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			bad = append(bad, fleet.FieldError{Field: "label", Code: "parameter.form",
				Message: fmt.Sprintf("%q is not of the form key=value", clip(l))})
			continue
		}
		labels[key] = value
	}
	filter.Selector = fleet.SelectLabels(labels)
	return filter, bad.or(codeInvalidParameter)
}

// CreateInstance records a new instance and answers with the operation that
// makes it.
func (a *api) CreateInstance(w http.ResponseWriter, r *http.Request) {
	var body managementv1.CreateInstance
	if err := decode(w, r, &body); err != nil {
		a.fail(w, r, err)
		return
	}
	if err := checkCreate(body); err != nil {
		a.fail(w, r, err)
		return
	}
	req := fleet.CreateRequest{
		Name:    body.Name,
		Labels:  body.Labels,
		Env:     body.Env,
		Loadout: fleet.Source{Name: body.Loadout.Name},
	}
	if body.Loadout.Content != "" {
		req.Loadout.Data = []byte(body.Loadout.Content)
	}
	if len(body.Loadout.Layers) > 0 {
		req.Loadout.Layers = make(map[string][]byte, len(body.Loadout.Layers))
		for ref, content := range body.Loadout.Layers {
			req.Loadout.Layers[ref] = []byte(content)
		}
	}
	op, err := a.Instances.Create(r.Context(), req)
	a.accepted(w, r, op, err)
}

// Bounds of a request to create, as the OpenAPI document states them.
const (
	maxLabels      = 64
	maxLabel       = 256
	maxEnv         = 256
	maxEnvValue    = 32 << 10
	maxLayers      = 64
	maxLoadout     = 1 << 20
	maxLoadoutName = 1024
)

// checkCreate finds what is wrong with a request before the fleet sees it.
// Values of env may be secrets and are not repeated.
func checkCreate(body managementv1.CreateInstance) error {
	var bad invalid
	refuse := func(wrong bool, field, format string, args ...any) {
		if wrong {
			bad = append(bad, fleet.FieldError{Field: field, Code: "field.invalid", Message: fmt.Sprintf(format, args...)})
		}
	}
	if body.Name != "" {
		if err := instance.CheckName(body.Name); err != nil {
			refuse(true, "name", "%v", err)
		}
	}
	refuse(body.Loadout.Name == "", "loadout.name", "want the name of a loadout")
	refuse(len(body.Loadout.Name) > maxLoadoutName, "loadout.name", "want at most %d bytes", maxLoadoutName)
	refuse(len(body.Loadout.Content) > maxLoadout, "loadout.content", "want at most %d bytes", maxLoadout)
	refuse(len(body.Loadout.Layers) > maxLayers, "loadout.layers", "want at most %d layers", maxLayers)
	for ref, content := range body.Loadout.Layers {
		refuse(len(content) > maxLoadout, "loadout.layers."+clip(ref), "want at most %d bytes", maxLoadout)
	}
	refuse(len(body.Labels) > maxLabels, "labels", "want at most %d labels", maxLabels)
	for key, value := range body.Labels {
		refuse(key == "" || len(key) > maxLabel || len(value) > maxLabel, "labels."+clip(key),
			"want a key of 1 to %d bytes and a value of at most as many", maxLabel)
	}
	refuse(len(body.Env) > maxEnv, "env", "want at most %d variables", maxEnv)
	for key, value := range body.Env {
		refuse(key == "" || len(key) > maxLabel || strings.ContainsAny(key, "=\x00"), "env."+clip(key),
			"want a name of 1 to %d bytes without = and NUL", maxLabel)
		refuse(len(value) > maxEnvValue || strings.ContainsRune(value, 0), "env."+clip(key),
			"want a value of at most %d bytes without NUL", maxEnvValue)
	}
	slices.SortFunc(bad, func(x, y fleet.FieldError) int { return strings.Compare(x.Field, y.Field) })
	return bad.or(codeInvalid)
}

// GetInstance shows one instance, or nothing when the client has it already.
func (a *api) GetInstance(w http.ResponseWriter, r *http.Request, ref string, params managementv1.GetInstanceParams) {
	if err := checkRef(ref); err != nil {
		a.fail(w, r, err)
		return
	}
	view, err := a.Instances.Get(r.Context(), ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	etag := strconv.Quote(string(view.ID) + "." + strconv.FormatInt(view.Generation, 10))
	w.Header().Set("ETag", etag)
	if params.IfNoneMatch != nil && matchesETag(*params.IfNoneMatch, etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	a.answer(w, r, http.StatusOK, instanceJSON(view, a.base(r)))
}

// matchesETag compares as If-None-Match does (RFC 9110, 13.1.2).
func matchesETag(header, etag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		one = strings.TrimSpace(one)
		if one == "*" || strings.TrimPrefix(one, "W/") == etag {
			return true
		}
	}
	return false
}

// DeleteInstance begins to remove an instance.
func (a *api) DeleteInstance(w http.ResponseWriter, r *http.Request, ref string) {
	if err := checkRef(ref); err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Instances.Delete(r.Context(), ref, 0)
	a.accepted(w, r, op, err)
}

// StartInstance boots a machine that has ended.
func (a *api) StartInstance(w http.ResponseWriter, r *http.Request, ref string) {
	a.act(w, r, ref, fleet.ActionStart)
}

// StopInstance ends a machine and keeps its disk.
func (a *api) StopInstance(w http.ResponseWriter, r *http.Request, ref string) {
	a.act(w, r, ref, fleet.ActionStop)
}

// PauseInstance stops a machine's processor.
func (a *api) PauseInstance(w http.ResponseWriter, r *http.Request, ref string) {
	a.act(w, r, ref, fleet.ActionPause)
}

// ResumeInstance lets a paused machine go on.
func (a *api) ResumeInstance(w http.ResponseWriter, r *http.Request, ref string) {
	a.act(w, r, ref, fleet.ActionResume)
}

func (a *api) act(w http.ResponseWriter, r *http.Request, ref string, action fleet.Action) {
	if err := checkRef(ref); err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Instances.Act(r.Context(), ref, action, fleet.ActOptions{})
	a.accepted(w, r, op, err)
}

// checkRef refuses what can be neither an id nor a name, so that it reaches
// no store and no log as it is.
func checkRef(ref string) error {
	if _, err := instance.ParseID(ref); err == nil {
		return nil
	}
	if instance.CheckName(ref) == nil {
		return nil
	}
	return callerFault(codeNoInstance, "GET "+managementv1.BasePath+"/instances lists what there is",
		"there is no instance %q", clip(ref))
}
