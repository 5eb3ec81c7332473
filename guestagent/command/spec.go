// Package command runs bounded processes: one argv without a shell, in a box
// that none of its descendants can leave unseen, with a timeout, a kill
// ladder, input by offset, and output that is kept until the host has it.
//
// A box is a control group where cgroup v2 can be written, and otherwise a
// small supervisor process that adopts orphans (see subreaper.go).
//
// The package knows the nouns of the agent contract. It must not know gRPC,
// connections, or how the machine was booted.
package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
)

// Kind says what a caller can do about a Refusal.
type Kind int

// The kinds of refusal.
const (
	Invalid      Kind = iota // the request breaks a rule
	NotFound                 // no such run
	Conflict                 // the run id is taken by another spec
	Exhausted                // a bound is reached
	Precondition             // the machine's state does not allow it
	OutOfRange               // output that has been freed
	Superseded               // a newer attachment has taken over
	Internal                 // the agent's own failure
)

// Refusal is an error that the host is told of by kind and reason.
type Refusal struct {
	Kind Kind
	// Reason is a stable name such as "PROGRAM_NOT_FOUND".
	Reason string
	// Subject is what the reason is about, such as the program.
	Subject string
	Err     error
}

func (r *Refusal) Error() string { return r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

func refuse(kind Kind, reason, subject, format string, args ...any) *Refusal {
	return &Refusal{Kind: kind, Reason: reason, Subject: subject, Err: fmt.Errorf(format, args...)}
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// bounds are the limits of one run, with the defaults filled in.
type bounds struct {
	timeout time.Duration
	grace   time.Duration
	buffer  int
}

// checkID accepts the lower-case text form of a UUID, and nothing that could
// mean something in a path.
func checkID(id string) error {
	if len(id) != 36 {
		return fmt.Errorf("run id %q is not a lower-case UUID", id)
	}
	for i, c := range []byte(id) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash && c != '-' || !dash && !hex {
			return fmt.Errorf("run id %q is not a lower-case UUID", id)
		}
	}
	return nil
}

// checkSpec holds a spec against the limits of the contract.
func checkSpec(spec *agentv1.RunSpec) (bounds, error) {
	var b bounds
	if spec == nil {
		return b, errors.New("there is no spec")
	}
	if err := checkArgs(spec); err != nil {
		return b, err
	}
	if spec.GetRoot() == "" || spec.GetRoot()[0] != '/' {
		return b, fmt.Errorf("root %q is not absolute", spec.GetRoot())
	}
	if len(spec.GetRoot()) > agentv1.MaxPath || len(spec.GetWorkingDir()) > agentv1.MaxPath {
		return b, fmt.Errorf("a path is longer than %d bytes", agentv1.MaxPath)
	}
	var err error
	if b.timeout, err = duration("timeout", spec.GetTimeout(), 0, agentv1.MaxRunTimeout); err != nil {
		return b, err
	}
	if b.timeout == 0 {
		return b, errors.New("timeout is missing")
	}
	if b.grace, err = duration("kill_grace", spec.GetKillGrace(), agentv1.DefaultKillGrace, agentv1.MaxKillGrace); err != nil {
		return b, err
	}
	b.buffer = int(spec.GetOutputBuffer())
	if b.buffer == 0 {
		b.buffer = agentv1.DefaultOutputBuffer
	}
	if b.buffer < agentv1.MinOutputBuffer || b.buffer > agentv1.MaxOutputBuffer {
		return b, fmt.Errorf("output_buffer is %d, want %d to %d", b.buffer, agentv1.MinOutputBuffer, agentv1.MaxOutputBuffer)
	}
	return b, nil
}

func checkArgs(spec *agentv1.RunSpec) error {
	argv := spec.GetArgv()
	if len(argv) == 0 || argv[0] == "" {
		return errors.New("argv names no program")
	}
	if len(argv) > agentv1.MaxArgs || len(spec.GetEnv()) > agentv1.MaxArgs {
		return fmt.Errorf("more than %d arguments or environment variables", agentv1.MaxArgs)
	}
	size := 0
	for i, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("argument %d holds a NUL", i)
		}
		size += len(arg) + 1
	}
	if size > agentv1.MaxArgBytes {
		return fmt.Errorf("argv is %d bytes, at most %d", size, agentv1.MaxArgBytes)
	}
	size = 0
	for name, value := range spec.GetEnv() {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			// The value may be a secret: only the name is shown.
			return fmt.Errorf("environment variable %q is not well-formed", name)
		}
		size += len(name) + len(value) + 2
	}
	if size > agentv1.MaxArgBytes {
		return fmt.Errorf("env is %d bytes, at most %d", size, agentv1.MaxArgBytes)
	}
	return nil
}

// duration reads an optional duration: absent is the default, what lies
// outside (0, most] is refused, except that an explicit zero grace is allowed.
func duration(name string, d *durationpb.Duration, absent, most time.Duration) (time.Duration, error) {
	if d == nil {
		return absent, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	v := d.AsDuration()
	if v < 0 || v > most {
		return 0, fmt.Errorf("%s is %v, want 0 to %v", name, v, most)
	}
	return v, nil
}

// environment is the complete environment of a process, sorted: what the spec
// says, and defaults for HOME, USER and PATH.
func environment(spec *agentv1.RunSpec, home, user string) []string {
	all := map[string]string{"HOME": home, "USER": user, "PATH": defaultPath}
	maps.Copy(all, spec.GetEnv())
	env := make([]string, 0, len(all))
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}
