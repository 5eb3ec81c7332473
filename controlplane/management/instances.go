package management

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/loadouts"
)

// ListInstances answers one page of instances, in the order of their ids.
func (a *api) ListInstances(w http.ResponseWriter, r *http.Request, params managementv1.ListInstancesParams) {
	filter, err := filterOf(r, params)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	page, err := a.Instances.List(r.Context(), filter)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	base := a.base(r)
	if unchanged(w, params.IfNoneMatch, etagOfPage(page, base)) {
		return
	}
	list := managementv1.InstanceList{
		Items: make([]managementv1.Instance, 0, len(page.Views)), NextCursor: cursorOf(cursorInstance, string(page.Next)),
	}
	for _, v := range page.Views {
		i := instanceJSON(v, base)
		i.Fault.Console, i.Health.Console = "", "" // long; who looks at one gets it
		list.Items = append(list.Items, i)
	}
	a.answer(w, r, http.StatusOK, list)
}

func filterOf(r *http.Request, params managementv1.ListInstancesParams) (fleet.Filter, error) {
	filter := fleet.Filter{Tenant: tenant(r)}
	var bad invalid
	if params.State != nil {
		filter.Phase = instance.Phase(*params.State)
		if !slices.Contains(instance.Phases(), filter.Phase) {
			bad = append(bad, fleet.FieldError{Field: "state", Code: "parameter.unknown",
				Message: fmt.Sprintf("want one of %s, found %q", phaseNames(), clip(string(*params.State)))})
		}
	}
	var err error
	if len(params.Label) > 0 {
		if slices.Contains(params.Label, "") {
			bad = append(bad, fleet.FieldError{Field: "label", Code: "parameter.form", Message: "want a label selector, found nothing"})
		} else if filter.Selector, err = fleet.ParseSelector(strings.Join(params.Label, ",")); err != nil {
			f := instance.AsFault(err)
			bad = append(bad, fleet.FieldError{Field: "label", Code: f.Code, Message: f.Error()})
		}
	}
	bad = bad.and(checkTags("If-None-Match", params.IfNoneMatch))
	after, err := cursor(cursorInstance, params.Cursor)
	bad = bad.and(err)
	filter.After = instance.ID(after)
	filter.Limit, err = pageSize(params.Limit)
	return filter, bad.and(err).or(codeInvalidParameter)
}

func phaseNames() string {
	var names []string
	for _, p := range instance.Phases() {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

// CreateInstance records a new instance and answers with the operation that
// makes it.
func (a *api) CreateInstance(w http.ResponseWriter, r *http.Request, _ managementv1.CreateInstanceParams) {
	var body managementv1.CreateInstance
	if err := decode(w, r, &body, mediaJSON); err != nil {
		a.fail(w, r, err)
		return
	}
	if err := checkCreate(body); err != nil {
		a.fail(w, r, err)
		return
	}
	ttl, err := duration("ttl", body.Ttl, maxTTL)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	op, err := a.Instances.Create(r.Context(), fleet.CreateRequest{
		Name: body.Name, Labels: body.Labels, Env: body.Env, Loadout: source(body.Loadout), Tenant: tenant(r),
		TTL: ttl, Endless: ttl == 0 && body.Ttl != "",
	})
	a.accepted(w, r, op, err)
}

// source is a loadout as it came with a request.
func source(body managementv1.LoadoutSource) fleet.Source {
	s := fleet.Source{Name: body.Name}
	if body.Content != "" {
		s.Data = []byte(body.Content)
	}
	if len(body.Layers) > 0 {
		s.Layers = make(map[string][]byte, len(body.Layers))
		for ref, content := range body.Layers {
			s.Layers[ref] = []byte(content)
		}
	}
	return s
}

// Bounds of a request to create, as the OpenAPI document states them.
const (
	maxLabels      = 64
	maxEnv         = 256
	maxLayers      = 64
	maxLoadout     = 1 << 20
	maxLoadoutName = 1024
)

// refuse notes a broken rule.
func (e *invalid) refuse(wrong bool, field, format string, args ...any) {
	if wrong {
		*e = append(*e, fleet.FieldError{Field: field, Code: "field.invalid", Message: fmt.Sprintf(format, args...)})
	}
}

// sorted orders the errors by field: maps have no order.
func (e invalid) sorted() invalid {
	slices.SortFunc(e, func(x, y fleet.FieldError) int { return strings.Compare(x.Field, y.Field) })
	return e
}

// checkCreate finds what is wrong with a request before the fleet sees it.
// Values of env may be secrets and are not repeated.
func checkCreate(body managementv1.CreateInstance) error {
	var bad invalid
	if body.Name != "" {
		if err := instance.CheckName(body.Name); err != nil {
			bad.refuse(true, "name", "%v", err)
		}
	}
	bad.checkSource("loadout.", body.Loadout)
	bad.checkLabels(body.Labels)
	bad.refuse(len(body.Env) > maxEnv, "env", "want at most %d variables", maxEnv)
	for key, value := range body.Env {
		if want := loadouts.CheckEnv(key, value); want != "" {
			bad.refuse(true, "env."+clip(key), "%s", want)
		}
	}
	return bad.sorted().or(codeInvalid)
}

func (e *invalid) checkSource(prefix string, s managementv1.LoadoutSource) {
	e.refuse(s.Name == "", prefix+"name", "want the name of a loadout")
	e.refuse(len(s.Name) > maxLoadoutName, prefix+"name", "want at most %d bytes", maxLoadoutName)
	e.refuse(len(s.Content) > maxLoadout, prefix+"content", "want at most %d bytes", maxLoadout)
	e.refuse(len(s.Layers) > maxLayers, prefix+"layers", "want at most %d layers", maxLayers)
	for ref, content := range s.Layers {
		e.refuse(len(content) > maxLoadout, prefix+"layers."+clip(ref), "want at most %d bytes", maxLoadout)
	}
}

func (e *invalid) countLabels(labels map[string]string) {
	e.refuse(len(labels) > maxLabels, "labels", "want at most %d labels", maxLabels)
}

// checkLabels holds labels to the rules of loadouts, so that there is one rule.
func (e *invalid) checkLabels(labels map[string]string) {
	e.countLabels(labels)
	for key, value := range labels {
		if want := loadouts.CheckLabel(key, value); want != "" {
			e.refuse(true, "labels."+clip(key), "%s", want)
		}
	}
}

// GetInstance shows one instance, or nothing when the client has it already.
func (a *api) GetInstance(w http.ResponseWriter, r *http.Request, ref string, params managementv1.GetInstanceParams) {
	if err := checkTags("If-None-Match", params.IfNoneMatch); err != nil {
		a.fail(w, r, err)
		return
	}
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if unchanged(w, params.IfNoneMatch, etag(view)) {
		return
	}
	a.answer(w, r, http.StatusOK, instanceJSON(view, a.base(r)))
}

// find returns an instance of the principal's tenant. One of another tenant
// is answered as one that is not there.
func (a *api) find(r *http.Request, ref string) (fleet.View, error) {
	if err := checkRef(ref); err != nil {
		return fleet.View{}, err
	}
	view, err := a.Instances.Get(r.Context(), ref)
	if err != nil {
		return fleet.View{}, err
	}
	if view.Tenant != "" && view.Tenant != tenant(r) {
		return fleet.View{}, noInstance(ref)
	}
	notesOf(r.Context()).instance = view.ID
	return view, nil
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
	return noInstance(ref)
}

func noInstance(ref string) error {
	return callerFault(codeNoInstance, "`GET "+managementv1.BasePath+"/instances` lists what there is",
		"there is no instance %q", clip(ref))
}
