// Package instance holds the nouns of one machine's life: its identity, its
// phase, what may happen to it and whose fault a failure is. It does no I/O
// and knows no driver, no store and no protocol.
package instance

import (
	"fmt"
	"regexp"

	"github.com/google/uuid"
)

// DefaultTenant owns what nobody else owns.
const DefaultTenant = "default"

// ID is the stable identity of one runtime instance, a lower-case RFC 9562
// UUID. It never changes while the machine exists (runtime/v1, section 2.1).
type ID string

// NewID returns a fresh UUIDv7.
func NewID() (ID, error) {
	u, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("cannot make instance id: %w", err)
	}
	return ID(u.String()), nil
}

// ParseID accepts a canonical lower-case UUID of version 4 or 7.
func ParseID(s string) (ID, error) {
	u, err := uuid.Parse(s)
	if err != nil || u.String() != s {
		return "", fmt.Errorf("cannot parse instance id %q: not a lower-case UUID", s)
	}
	if v := u.Version(); v != 4 && v != 7 {
		return "", fmt.Errorf("cannot parse instance id %q: UUID version is %d, want 4 or 7", s, v)
	}
	return ID(s), nil
}

func (id ID) String() string { return string(id) }

var nameRule = regexp.MustCompile(`^[a-z][a-z0-9-]{0,61}[a-z0-9]$`)

// CheckName reports whether s can name an instance. The rule is that of a
// host name label, since the guest gets it as its host name.
func CheckName(s string) error {
	if !nameRule.MatchString(s) {
		return fmt.Errorf("cannot use name %q: want 2 to 63 of a-z, 0-9 and -, starting with a letter and not ending with -", s)
	}
	return nil
}
