package instance

import (
	"errors"
	"fmt"
)

// Blame says whose fault a failure is.
type Blame string

// The three parties of every failure.
const (
	Guest  Blame = "guest"  // the machine or what runs in it
	Host   Blame = "host"   // us, or the host we run on
	Caller Blame = "caller" // the request
)

// Fault is a failure that an operator can act on.
type Fault struct {
	Blame Blame
	// Code is a stable machine-readable name in the form "noun.condition",
	// for example "image.digest_mismatch".
	Code string
	// Hint says what to do next. May be empty.
	Hint string
	// Console is the end of the machine's console, already made printable.
	Console string
	Err     error
}

// Error gives the cause and the hint, never the console.
func (f *Fault) Error() string {
	if f.Hint == "" {
		return f.Err.Error()
	}
	return fmt.Sprintf("%v (%s)", f.Err, f.Hint)
}

func (f *Fault) Unwrap() error { return f.Err }

// AsFault returns the fault in err's chain. An error without one is the
// host's fault: what nobody has explained is ours.
func AsFault(err error) *Fault {
	if err == nil {
		return nil
	}
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	return &Fault{Blame: Host, Code: "internal", Err: err}
}
