package loadouts

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// clip shortens foreign text for a message.
func clip(s string) string {
	const most = 60
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most]) + "…"
}

// quote shows foreign text in a message, on one line whatever it holds.
func quote(s string) string { return strconv.Quote(clip(s)) }

// didYouMean returns `, did you mean "x"?` for a known name near to what was
// written, or nothing.
func didYouMean(written string, known []string) string {
	if len(written) > 64 {
		return ""
	}
	best, bestDistance := "", 3
	slices.Sort(known)
	for _, k := range known {
		d := distance(strings.ToLower(written), strings.ToLower(k))
		if d < bestDistance && d < len(k) {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// distance is the edit distance, with a swap of neighbours as one edit.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
