package sqlite

import "agentic-sandbox.aiwg.io/sandbox/controlplane/task"

// inScope is the condition that a row of tasks is within a scope, whose
// arguments scopeArgs returns.
const inScope = `(? OR tenant = ? AND (? OR owner = ?))`

// ofScope is the condition that the task of an id, its first argument, is
// within a scope. It asks once, however many rows a query has.
const ofScope = `EXISTS (SELECT 1 FROM tasks WHERE id = ? AND ` + inScope + `)`

func scopeArgs(s task.Scope) []any {
	return []any{s.Everywhere(), s.TenantOrDefault(), s.AllOwners, s.Owner}
}

// scoped is args followed by those of a condition ofScope.
func scoped(s task.Scope, taskID string, args ...any) []any {
	return append(append(args, taskID), scopeArgs(s)...)
}
