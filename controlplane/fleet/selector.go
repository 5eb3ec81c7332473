package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// Selector picks instances by their labels, as label selectors of Kubernetes
// do: requirements joined by commas, all of which must hold. The zero value
// picks everything.
type Selector struct{ requirements []requirement }

// operator is how a requirement compares.
type operator string

const (
	opIn     operator = "in"
	opNotIn  operator = "notin"
	opExists operator = "exists"
	opAbsent operator = "absent"
)

type requirement struct {
	key    string
	op     operator
	values []string // sorted, each once
}

// Bounds of one selector.
const (
	maxSelector       = 4096 // bytes
	maxRequirements   = 64
	maxSelectorValues = 64
)

// selectorWord is a label's key or value. It is wider than Kubernetes's names
// are, since labels here may be.
var selectorWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$`)

// ParseSelector reads a selector such as
//
//	a=b,c!=d,e in (x,y),f notin (z),g,!h
//
// An error is the caller's fault "selector.invalid".
func ParseSelector(s string) (Selector, error) {
	if len(s) > maxSelector {
		return Selector{}, selectorFault(s[:32]+"…", fmt.Sprintf("want at most %d bytes", maxSelector))
	}
	var sel Selector
	for _, part := range splitSelector(s) {
		part = strings.TrimSpace(part)
		if part == "" {
			if strings.TrimSpace(s) == "" {
				return Selector{}, nil
			}
			return Selector{}, selectorFault(s, "a requirement is empty")
		}
		r, broken := parseRequirement(part)
		if broken != "" {
			return Selector{}, selectorFault(part, broken)
		}
		sel.requirements = append(sel.requirements, r)
	}
	if len(sel.requirements) > maxRequirements {
		return Selector{}, selectorFault(s, fmt.Sprintf("want at most %d requirements", maxRequirements))
	}
	return sel, nil
}

func selectorFault(part, broken string) error {
	return &instance.Fault{
		Blame: instance.Caller, Code: "selector.invalid",
		Hint: "write it as a=b,c!=d,e in (x,y),f notin (z),g,!h",
		Err:  fmt.Errorf("cannot read selector %q: %s", part, broken),
	}
}

// splitSelector cuts at the commas outside of parentheses.
func splitSelector(s string) []string {
	var parts []string
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth <= 0 {
				parts = append(parts, s[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, s[from:])
}

var setRequirement = regexp.MustCompile(`^(\S+)\s+(in|notin)\s*\((.*)\)$`)

// parseRequirement returns what is wrong with it, or nothing.
func parseRequirement(s string) (r requirement, broken string) {
	if m := setRequirement.FindStringSubmatch(s); m != nil {
		return setOf(m[1], operator(m[2]), strings.Split(m[3], ","))
	}
	if key, ok := strings.CutPrefix(s, "!"); ok && !strings.Contains(key, "=") {
		return wordOf(strings.TrimSpace(key), opAbsent)
	}
	if key, value, ok := strings.Cut(s, "!="); ok {
		return setOf(strings.TrimSpace(key), opNotIn, []string{value})
	}
	if key, value, ok := strings.Cut(s, "="); ok {
		return setOf(strings.TrimSpace(key), opIn, []string{strings.TrimPrefix(value, "=")})
	}
	return wordOf(s, opExists)
}

func wordOf(key string, op operator) (requirement, string) {
	if !selectorWord.MatchString(key) {
		return requirement{}, "want a label's name of letters, digits and ._/:@+-"
	}
	return requirement{key: key, op: op}, ""
}

func setOf(key string, op operator, values []string) (requirement, string) {
	r, broken := wordOf(key, op)
	if broken != "" {
		return r, broken
	}
	if len(values) > maxSelectorValues {
		return r, fmt.Sprintf("want at most %d values", maxSelectorValues)
	}
	for _, v := range values {
		v = strings.TrimSpace(v)
		// An empty value is one: "a=" picks labels that are empty.
		if v != "" && !selectorWord.MatchString(v) {
			return r, "want values of letters, digits and ._/:@+-"
		}
		r.values = append(r.values, v)
	}
	slices.Sort(r.values)
	r.values = slices.Compact(r.values)
	return r, ""
}

// Matches reports whether a set of labels fulfils every requirement. As with
// Kubernetes, "a!=b" and "a notin (b)" also pick what has no label a.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s.requirements {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r requirement) matches(labels map[string]string) bool {
	value, has := labels[r.key]
	switch r.op {
	case opIn:
		return has && slices.Contains(r.values, value)
	case opNotIn:
		return !has || !slices.Contains(r.values, value)
	case opExists:
		return has
	case opAbsent:
		return !has
	}
	return false
}

// Empty reports whether everything is picked.
func (s Selector) Empty() bool { return len(s.requirements) == 0 }

// Equal reports whether two selectors say the same in the same order.
func (s Selector) Equal(o Selector) bool { return s.String() == o.String() }

// String is the selector in the form that ParseSelector reads.
func (s Selector) String() string {
	parts := make([]string, 0, len(s.requirements))
	for _, r := range s.requirements {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ",")
}

func (r requirement) String() string {
	switch {
	case r.op == opExists:
		return r.key
	case r.op == opAbsent:
		return "!" + r.key
	case len(r.values) == 1:
		return r.key + map[operator]string{opIn: "=", opNotIn: "!="}[r.op] + r.values[0]
	}
	return r.key + " " + string(r.op) + " (" + strings.Join(r.values, ",") + ")"
}
