package loadouts

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
)

// MiB is the unit machines are sized in.
const MiB int64 = 1 << 20

var sizeRule = regexp.MustCompile(`^([0-9]{1,15})([KMGT])i?$`)

// ParseSize reads a size such as "512M" or "60G" as bytes. The units are
// powers of 1024 with and without the i, as in the tools that make disks and
// machines. A number without a unit is refused: it could be bytes or MiB.
func ParseSize(s string) (int64, error) {
	m := sizeRule.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("cannot parse size %q: want a number and K, M, G or T, such as 2G", clip(s))
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot parse size %q: %w", s, err)
	}
	unit := map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[2]]
	if n > math.MaxInt64/unit {
		return 0, fmt.Errorf("cannot parse size %q: it is too large", s)
	}
	return n * unit, nil
}

// FormatSize returns the shortest form that ParseSize reads back as n, which
// must be a multiple of 1024; any other n is given in bytes.
func FormatSize(n int64) string {
	for _, u := range []struct {
		unit int64
		name string
	}{{1 << 40, "T"}, {1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}} {
		if n != 0 && n%u.unit == 0 {
			return strconv.FormatInt(n/u.unit, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
