package push

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Secret is text that no log, error or answer may show.
type Secret string

const redacted = "[redacted]"

// String hides the secret from fmt and everything built on it.
func (Secret) String() string { return redacted }

// GoString hides it from %#v.
func (Secret) GoString() string { return redacted }

// MarshalText hides it from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue hides it from logs.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// State says how far a webhook is.
type State string

// States of a webhook.
const (
	Active State = "active"  // events are delivered, or will be
	Done   State = "done"    // it has had the task's last event
	GaveUp State = "gave_up" // it failed too often or too long
)

// Hook is one webhook of one task.
type Hook struct {
	// Serial names this registration for ever: one that replaces it, under the
	// same task and id, has another.
	Serial int64
	TaskID string
	ID     string // chosen by the client, or made; unique in the task
	// Version is the protocol version it was registered under; what is sent
	// has the form of that version.
	Version string
	URL     string
	// Token is sent in a header so that the receiver can tell us from others;
	// empty for none.
	Token Secret
	// Scheme and Credentials make the header Authorization; both may be empty.
	Scheme      string
	Credentials Secret
	CreatedAt   time.Time
	Progress    Progress
}

// Progress is how far a webhook's deliveries are.
type Progress struct {
	State State
	// Delivered is the newest event that was delivered.
	Delivered uint64
	// Failures counts the failed tries of the event after Delivered, the first
	// of them at FailingSince; the next is not before NotBefore. The times are
	// zero when there was none.
	Failures     int
	FailingSince time.Time
	NotBefore    time.Time
	// Cause says in a word why the last try failed; never text from outside.
	Cause string
}

// resumed is a stored progress as it is taken up again. The webhook has failed
// for as long as it was tried: neither the time in which there was no process
// counts, nor by how much the clock was set meanwhile, and what comes is
// measured by time as it passes.
func (p Progress) resumed(now time.Time) Progress {
	if p.Failures == 0 {
		return p
	}
	until := now
	if p.NotBefore.Before(now) {
		until = p.NotBefore
	}
	p.FailingSince = now.Add(-max(0, until.Sub(p.FailingSince)))
	return p
}

// public is the webhook without its secrets.
func (h Hook) public() Hook {
	h.Token, h.Credentials = "", ""
	return h
}

// Registration asks for a webhook.
type Registration struct {
	ID          string // empty: one is made
	Version     string
	URL         string
	Token       Secret
	Scheme      string
	Credentials Secret
}

// Bounds of what a registration may hold, in bytes.
const (
	maxURL    = 2048
	maxID     = 256
	maxSecret = 8192 // tokens can be long
	maxScheme = 64
)

// Refusal says which field of a registration breaks which rule.
type Refusal struct{ Field, Rule string }

// Error implements error.
func (r *Refusal) Error() string { return "cannot register webhook: " + r.Field + " " + r.Rule }

func (r Registration) check() error {
	switch {
	case len(r.ID) > maxID || !visible(r.ID) || strings.Contains(r.ID, "/") || r.ID == "." || r.ID == "..":
		return &Refusal{"id", fmt.Sprintf("must be at most %d visible ASCII characters without a slash", maxID)}
	case !headerValue(string(r.Token)):
		return &Refusal{"token", headerRule}
	case r.Scheme == "" && r.Credentials != "":
		return &Refusal{"authentication.scheme", "is required"}
	case len(r.Scheme) > maxScheme || !schemeForm(r.Scheme):
		return &Refusal{"authentication.scheme", "must be the name of an HTTP authentication scheme such as Bearer"}
	case !headerValue(string(r.Credentials)):
		return &Refusal{"authentication.credentials", headerRule}
	}
	return nil
}

var headerRule = fmt.Sprintf("must be at most %d printable ASCII characters, with no space at either end", maxSecret)

// headerValue reports whether s is safe in a header: no line can be ended or
// folded in it.
func headerValue(s string) bool {
	return len(s) <= maxSecret && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// schemeForm reports whether s is a token of HTTP.
func schemeForm(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && (r > '~' || !strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}
