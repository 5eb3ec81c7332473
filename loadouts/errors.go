package loadouts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxErrors bounds what one report says; a broken document can break a rule
// at every line.
const maxErrors = 50

// Pos is a place in a document. Line and Column count from 1.
type Pos struct {
	File   string
	Line   int
	Column int
}

// String returns "file:line:column".
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Error is one broken rule.
type Error struct {
	Pos
	// Path names the field, such as "resources.memory"; empty when the
	// document as a whole is meant.
	Path string
	// Rule says what is wanted, in one line.
	Rule string
	// Err is what a lookup said, when that is the reason.
	Err error
}

// Error returns "file:line:column: path: rule".
func (e Error) Error() string {
	if e.Path == "" {
		return e.Pos.String() + ": " + e.Rule
	}
	return e.Pos.String() + ": " + e.Path + ": " + e.Rule
}

// Unwrap returns what a lookup said.
func (e Error) Unwrap() error { return e.Err }

// Errors is every broken rule of one reading, in the order of the documents.
type Errors []Error

// Error returns one line for each broken rule.
func (e Errors) Error() string {
	lines := make([]string, 0, len(e))
	for i, one := range e {
		if i == maxErrors {
			lines = append(lines, fmt.Sprintf("and %d more", len(e)-maxErrors))
			break
		}
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.Is and errors.As every single error.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i := range e {
		all[i] = e[i]
	}
	return all
}

// sorted orders the errors of one document by place.
func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}
