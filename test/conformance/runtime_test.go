package conformance

import (
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

func runtimeCases() []kase {
	return []kase{
		once("RUNTIME-CONF-001", cardDeclaresRuntime),
		every("RUNTIME-CONF-002", activationIsEchoed),
		every("RUNTIME-CONF-003", runtimeIsRequired),
		every("RUNTIME-CONF-004", tasksCarryRuntime, needCommand),
		once("RUNTIME-CONF-005", imageRefIsWhole),
		once("RUNTIME-CONF-006", instanceIDStays),
		rough(once("RUNTIME-CONF-006", instanceIDOutlivesServer, needKill)),
		once("RUNTIME-CONF-007", instanceIDIsUUID),
		once("RUNTIME-CONF-008", namesAreKept),
		once("RUNTIME-HOST-001", hostByPolicyOnly, needScopes),
		once("RUNTIME-HOST-002", hostIsAbsent, needOther),
		once("RUNTIME-URI-001", specificationIsServed),
	}
}

const cardPath = "/.well-known/agent-card.json"

// card fetches the card of the trial's version.
func (x *trial) card(more ...http.Header) *reply {
	x.Helper()
	y := x.in(form{x.form.version, httpJSON})
	r := y.raw(http.MethodGet, cardPath, nil, append([]http.Header{headers("A2A-Extensions", "")}, more...)...)
	if r.status != http.StatusOK {
		x.Fatalf("the card answers %d %.300s", r.status, r.raw)
	}
	return r
}

// runtimeParams are those of the card's entry.
func (x *trial) runtimeParams() object {
	x.Helper()
	for _, e := range list(x.card().body, "capabilities", "extensions") {
		if text(e, "uri") == extRuntime {
			p, _ := dig(e, "params").(object)
			return p
		}
	}
	x.Fatalf("the card does not declare %s", extRuntime)
	return nil
}

var (
	nameForm       = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	capabilityForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._:-]*$`)
	uuidForm       = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	qcow2Form      = regexp.MustCompile(`^qcow2://.+@sha256:[0-9a-f]{64}(\?.*)?$`)
	ociForm        = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?/[a-z0-9._/-]+(@sha256:[0-9a-f]{64}|:[A-Za-z0-9_][A-Za-z0-9._-]*)$`)
)

func cardDeclaresRuntime(x *trial) {
	var entries []any
	for _, e := range list(x.card().body, "capabilities", "extensions") {
		if text(e, "uri") == extRuntime {
			entries = append(entries, e)
		}
	}
	if len(entries) != 1 {
		x.Fatalf("the card has %d entries", len(entries))
	}
	x.want(dig(entries[0], "required") == true, "the entry is %v", entries[0])
	p, _ := dig(entries[0], "params").(object)
	for name, v := range p {
		s, isText := v.(string)
		ok := false
		switch name {
		case "runtime":
			ok = isText && len(s) <= 64 && nameForm.MatchString(s)
		case "loadout", "provider":
			ok = isText && len(s) <= 128 && nameForm.MatchString(s)
		case "image_ref":
			ok = isText && s != "" && len(s) <= 1024
		case "instance_id":
			ok = isText && uuidForm.MatchString(s)
		case "capabilities":
			ok = capabilitiesFit(v)
		}
		x.want(ok, "params.%s is %v", name, v)
	}
	for _, name := range []string{"runtime", "loadout", "instance_id"} {
		x.want(p[name] != nil, "params lack %s: %v", name, p)
	}
}

func capabilitiesFit(v any) bool {
	l, ok := v.([]any)
	seen := map[string]bool{}
	for _, e := range l {
		s, isText := e.(string)
		ok = ok && isText && len(s) <= 128 && capabilityForm.MatchString(s) && !seen[s]
		seen[s] = true
	}
	return ok && len(l) <= 128
}

// action is one operation with params that it takes.
type action struct {
	op     string
	params object
}

// actions are all operations that the trial's form has, on one task.
func (x *trial) actions(taskID string) []action {
	all := []action{
		{opSend, x.message("an action", nil)},
		{opStream, x.message("an action", nil)},
		{opGet, object{"id": taskID}},
		{opSubscribe, object{"id": taskID}},
		{opPushCreate, object{"taskId": taskID, "id": "hook", "url": "https://example.com/hook"}},
		{opPushGet, object{"taskId": taskID, "id": "hook"}},
		{opPushList, object{"taskId": taskID}},
		{opPushDelete, object{"taskId": taskID, "id": "hook"}},
		{opCancel, object{"id": taskID}},
	}
	if x.form != rpc03() {
		all = append(all, action{opList, object{}})
	}
	return all
}

func activationIsEchoed(x *trial) {
	for _, a := range x.actions("no-such-task") {
		var h http.Header
		if s, r := x.open(a.op, a.params); s != nil {
			h = s.header
			s.close()
		} else {
			h = r.header
		}
		x.want(slices.Contains(splitURIs(h.Values("A2A-Extensions")), extRuntime), "%s echoes %q", a.op, h.Values("A2A-Extensions"))
	}
}

func splitURIs(lines []string) (all []string) {
	for _, line := range lines {
		for uri := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(uri))
		}
	}
	return all
}

func runtimeIsRequired(x *trial) {
	others := []string{"", extRuntime + "/", strings.Replace(extRuntime, "v1", "v2", 1), extIdem, strings.ToUpper(extRuntime)}
	for _, asked := range others {
		for _, a := range x.actions("no-such-task") {
			s, r := x.open(a.op, a.params, headers("A2A-Extensions", asked))
			if s != nil {
				x.Fatalf("%s opens a stream with A2A-Extensions %q", a.op, asked)
			}
			x.refused(r, extensionRequired())
			found := false
			for _, d := range r.fault.details {
				found = found || text(d, "reason") == "EXTENSION_REQUIRED" && text(d, "domain") == "agentic-sandbox.aiwg.io" &&
					text(d, "metadata", "uri") == extRuntime
			}
			x.want(found, "%s does not say EXTENSION_REQUIRED with the URI: %.400s", a.op, r.raw)
		}
	}
}

// runtimeOf wants a task's metadata to say what the card says.
func (x *trial) runtimeOf(where string, task any, p object) {
	x.Helper()
	m := dig(task, "metadata")
	for key, name := range map[string]string{
		"runtime.instance_id": "instance_id", "runtime.kind": "runtime", "runtime.provider": "provider", "runtime.capabilities": "capabilities",
	} {
		x.want(reflect.DeepEqual(dig(m, key), p[name]), "%s: %s is %v, the card says %v", where, key, dig(m, key), p[name])
	}
	if host, there := m.(map[string]any)["runtime.host"]; there {
		s, ok := host.(string)
		x.want(ok && s != "" && len(s) <= 256, "%s: runtime.host is %v", where, host)
	}
}

func tasksCarryRuntime(x *trial) {
	p := x.in(rest10()).runtimeParams()
	x.runtimeOf(opSend, x.ok(opSend, x.message("hello", nil)).task(), p)
	h := x.all(x.follow(opStream, x.message("hello", nil)))
	x.want(len(h.events) > 0 && h.events[0].kind == "task", "the stream does not begin with a task: %+v", h.events)
	x.runtimeOf(opStream, h.events[0].body, p)
	id := x.running()
	x.runtimeOf(opGet, x.ok(opGet, object{"id": id}).task(), p)
	first, err := x.follow(opSubscribe, object{"id": id}).next()
	x.check(err)
	x.runtimeOf(opSubscribe, first.body, p)
	if x.form != rpc03() {
		tasks := list(x.ok(opList, object{"pageSize": 3}).result, "tasks")
		x.want(len(tasks) == 3, "the list has %d tasks", len(tasks))
		for _, t := range tasks {
			x.runtimeOf(opList, t, p)
		}
	}
	x.runtimeOf(opCancel, x.ok(opCancel, object{"id": id}).task(), p)
}

func imageRefIsWhole(x *trial) {
	p := x.runtimeParams()
	ref, there := p["image_ref"].(string)
	switch p["runtime"] {
	case "vm":
		x.want(!there || qcow2Form.MatchString(ref), "image_ref of a vm is %q", ref)
	case "container":
		x.want(!there || ociForm.MatchString(ref), "image_ref of a container is %q", ref)
	case "host":
		x.want(!there, "image_ref of a host is %q", ref)
	}
	if x.name == "vm" {
		x.want(there, "the machine's image is not published")
	}
}

func instanceIDStays(x *trial) {
	first := x.runtimeParams()["instance_id"]
	for range 3 {
		x.ok(opSend, x.message("hello", nil))
		x.want(x.runtimeParams()["instance_id"] == first, "instance_id was %v and is %v", first, x.runtimeParams()["instance_id"])
	}
	x.want(strings.HasSuffix(x.agent, fmt.Sprint(first)), "the address %s does not end in %v", x.agent, first)
}

func instanceIDOutlivesServer(x *trial) {
	before := x.runtimeParams()["instance_id"]
	x.restart()
	x.want(x.runtimeParams()["instance_id"] == before, "instance_id was %v and is %v", before, x.runtimeParams()["instance_id"])
}

func instanceIDIsUUID(x *trial) {
	id, _ := x.runtimeParams()["instance_id"].(string)
	x.want(uuidForm.MatchString(id), "instance_id is %q", id)
	k := x.ok(opSend, x.message("hello", nil)).task()
	x.want(text(k, "metadata", "runtime.instance_id") == id, "the task says %v, the card %s", dig(k, "metadata"), id)
}

func namesAreKept(x *trial) {
	p := x.runtimeParams()
	if provider, there := p["provider"]; there {
		s, _ := provider.(string)
		x.want(nameForm.MatchString(s), "provider is %v", provider)
	}
	if c, there := p["capabilities"]; there {
		x.want(capabilitiesFit(c), "capabilities are %v", c)
	}
	x.runtimeOf(opSend, x.ok(opSend, x.message("hello", nil)).task(), p)
}

func (x *trial) hostOf(token string) (any, bool) {
	x.Helper()
	m, _ := x.as(token).ok(opSend, x.message("hello", nil)).get("task", "metadata").(map[string]any)
	v, there := m["runtime.host"]
	return v, there
}

func hostByPolicyOnly(x *trial) {
	_, plain := x.hostOf(x.token)
	x.want(!plain, "a principal without fleet:read-host sees runtime.host")
	host, seen := x.hostOf(x.seer)
	if x.name == "host" { // started with --disclose-host
		s, _ := host.(string)
		x.want(seen && s != "", "a principal with fleet:read-host does not see runtime.host: %v", host)
	}
	if x.narrow != nil {
		_, seen := x.on(x.narrow).hostOf(x.narrow.seer)
		x.want(!seen, "runtime.host is shown although the operator does not disclose it")
	}
}

func hostIsAbsent(x *trial) {
	for _, token := range []string{x.token, x.other} {
		y := x.as(token)
		h := y.all(y.follow(opStream, x.message("hello", nil)))
		id := text(h.events[0].body, "id")
		for where, task := range map[string]any{
			opStream: h.events[0].body, opGet: y.ok(opGet, object{"id": id}).result,
			opList: dig(y.ok(opList, object{"pageSize": 1}).result, "tasks", 0),
		} {
			m, _ := dig(task, "metadata").(map[string]any)
			_, there := m["runtime.host"]
			x.want(m != nil && (!there || x.name == "against"), "%s: metadata is %v", where, m)
		}
	}
}

func specificationIsServed(x *trial) {
	for _, uri := range []string{extRuntime, extAdapter, extPrompt, extIdem} {
		path := strings.TrimPrefix(uri, "https://agentic-sandbox.aiwg.io")
		for accept, want := range map[string]string{"text/html": "text/html", "text/markdown": "text/markdown"} {
			resp := x.fetch(http.MethodGet, x.url+path, headers("Accept", accept))
			x.want(resp.status == http.StatusOK && strings.HasPrefix(resp.header.Get("Content-Type"), want) && len(resp.raw) > 500,
				"%s as %s: %d %v", path, accept, resp.status, resp.header)
		}
	}
}
