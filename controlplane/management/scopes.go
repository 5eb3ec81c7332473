package management

import "agentic-sandbox.aiwg.io/sandbox/controlplane/auth"

// scopeTable is what a token must allow, by method and template of the path.
type scopeTable map[string]auth.Scope

// scopes is the one table of who may do what. The document says the same in
// x-scope; a test compares them. A route that is missing here is the
// administrator's alone.
func scopes() scopeTable {
	const (
		read  = auth.ScopeFleetRead
		write = auth.ScopeFleetWrite
	)
	return scopeTable{
		"GET /instances":                read,
		"POST /instances":               write,
		"GET /instances/{ref}":          read,
		"PATCH /instances/{ref}":        write,
		"DELETE /instances/{ref}":       write,
		"POST /instances/{ref}:start":   write,
		"POST /instances/{ref}:stop":    write,
		"POST /instances/{ref}:restart": write,
		"POST /instances/{ref}:pause":   write,
		"POST /instances/{ref}:resume":  write,
		"POST /instances/{ref}:renew":   write,
		"PUT /instances/{ref}/files":    write,
		"GET /instances/{ref}/logs":     read,
		"GET /instances/{ref}/console":  read,

		"GET /operations":              read,
		"GET /operations/{id}":         read,
		"POST /operations/{id}:cancel": write,
		"GET /operations/{id}/events":  read,
		"GET /events":                  read,
		"GET /events/stream":           read,

		"GET /loadouts":           read,
		"GET /loadouts/{name}":    read,
		"POST /loadouts:validate": read,
		"GET /images":             read,
		"GET /providers":          read,
		"GET /host":               read,
		"GET /orphans":            read,
		"DELETE /orphans/{id}":    auth.ScopeAdmin,
		"GET /version":            read,
	}
}
