// Package conformance holds a server to the requirements of A2A and of the
// extensions that this system publishes, from outside: over raw HTTP, with no
// SDK and no code of the server's in between. README.md says how to run it and
// how to read its table.
//
// A requirement is a line of Registry, a case is a test of its name. What
// stands in the registry without a case says why there is none.
package conformance

import "slices"

// Level is how much a requirement binds (RFC 2119).
type Level string

// The levels.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
	May    Level = "MAY"
)

// Requirement is one rule that a server is held to.
type Requirement struct {
	// ID is the rule's name: that of the document that states it where it gives
	// one, that of the public A2A conformance kit, or one of ours.
	ID    string
	Level Level
	// Source is where the rule stands: a section of A2A 1.0.1 ("3.1.1"), an
	// extension ("runtime/v1 7"), A2A 0.3 ("0.3"), or a public report of a server
	// that broke it ("a2a-go#439").
	Source string
	// Rule is what is required, in our words.
	Rule string
	// Untested says why no case can show it; empty if one does.
	Untested string
}

// Registry lists every requirement, by groups.
func Registry() []Requirement {
	return slices.Concat(
		runtimeRules(), adapterRules(), promptRules(), idempotencyRules(),
		coreRules(), contextRules(), modelRules(), streamRules(), pushRules(),
		cardRules(), versionRules(), authRules(), bindingRules(), grpcRules(),
		oldRules(), limitRules(),
	)
}
