package a2a

import (
	"context"
	"net/http"
	"regexp"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// Scopes that a token must have, by their names there. Whoever has scopeAdmin
// has all of them.
const (
	scopeNone   = "" // cards, which whoever gets here may see
	scopeInvoke = "agents:invoke"
	scopeAdmin  = "admin"
)

// scopesOfRoutes is the one table of what a request needs, by its method and
// its path below /agents/{id}; scopesOfMethods that of JSON-RPC, behind its own
// route. What is in neither is the administrator's: nobody has thought of it.
func scopesOfRoutes() map[string]string {
	all := map[string]string{
		"POST ":  scopeInvoke, // JSON-RPC
		"POST /": scopeInvoke,

		"GET /.well-known/agent-card.json":  scopeNone,
		"HEAD /.well-known/agent-card.json": scopeNone,
		"GET " + wellKnown03:                scopeNone,
		"HEAD " + wellKnown03:               scopeNone,

		"GET /tasks/{task}/artifacts/{artifact}":  scopeInvoke,
		"HEAD /tasks/{task}/artifacts/{artifact}": scopeInvoke,
		"GET /extendedAgentCard":                  scopeInvoke,
		"GET " + prefix03 + "/card":               scopeInvoke,
	}
	for _, prefix := range []string{"", prefix03} { // the versions share these
		for _, route := range [][2]string{
			{http.MethodPost, "/message:send"},
			{http.MethodPost, "/message:stream"},
			{http.MethodPost, "/messages:send"},
			{http.MethodPost, "/messages:stream"},
			{http.MethodGet, "/tasks"},
			{http.MethodGet, "/tasks/{task}"},
			{http.MethodPost, "/tasks/{task}:cancel"},
			{http.MethodGet, "/tasks/{task}:subscribe"},
			{http.MethodPost, "/tasks/{task}:subscribe"},
			{http.MethodGet, "/tasks/{task}/pushNotificationConfigs"},
			{http.MethodPost, "/tasks/{task}/pushNotificationConfigs"},
			{http.MethodGet, "/tasks/{task}/pushNotificationConfigs/{config}"},
			{http.MethodDelete, "/tasks/{task}/pushNotificationConfigs/{config}"},
		} {
			all[route[0]+" "+prefix+route[1]] = scopeInvoke
		}
	}
	return all
}

func scopesOfMethods() map[string]string {
	return map[string]string{
		"SendMessage":          scopeInvoke,
		"SendStreamingMessage": scopeInvoke,
		"GetTask":              scopeInvoke,
		"ListTasks":            scopeInvoke,
		"CancelTask":           scopeInvoke,
		"SubscribeToTask":      scopeInvoke,
		"GetExtendedAgentCard": scopeInvoke,

		"CreateTaskPushNotificationConfig": scopeInvoke,
		"GetTaskPushNotificationConfig":    scopeInvoke,
		"ListTaskPushNotificationConfigs":  scopeInvoke,
		"DeleteTaskPushNotificationConfig": scopeInvoke,

		"message/send":                       scopeInvoke,
		"message/stream":                     scopeInvoke,
		"tasks/get":                          scopeInvoke,
		"tasks/cancel":                       scopeInvoke,
		"tasks/resubscribe":                  scopeInvoke,
		"agent/getAuthenticatedExtendedCard": scopeInvoke,

		"tasks/pushNotificationConfig/set":    scopeInvoke,
		"tasks/pushNotificationConfig/get":    scopeInvoke,
		"tasks/pushNotificationConfig/list":   scopeInvoke,
		"tasks/pushNotificationConfig/delete": scopeInvoke,
	}
}

// scopeFrom is what a table asks for under a name.
func scopeFrom(table map[string]string, name string) string {
	if scope, ok := table[name]; ok {
		return scope
	}
	return scopeAdmin
}

var variableForm = regexp.MustCompile(`:\[[^\]]*\]\+`)

// plainPath is a path of a route without the forms of its variables.
func plainPath(path string) string { return variableForm.ReplaceAllString(path, "") }

type scopeKey struct{}

// asking makes the requests of a route ask for what it needs.
func asking(scope string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		next(w, r.WithContext(context.WithValue(r.Context(), scopeKey{}, scope)))
	}
}

// allow refuses a caller who lacks what the route of a request needs.
func (c Caller) allow(ctx context.Context) *fault {
	scope, ok := ctx.Value(scopeKey{}).(string)
	if !ok {
		scope = scopeAdmin
	}
	return c.allowScope(scope)
}

func (c Caller) allowScope(scope string) *fault {
	if scope == scopeNone || c.May == nil || c.May(scope) {
		return nil
	}
	return errForbidden(scope)
}

// scope is whose tasks the caller may see.
func (c Caller) scope() task.Scope {
	return task.Scope{Tenant: c.Tenant, Owner: c.Name, AllOwners: c.AllTasks}
}
