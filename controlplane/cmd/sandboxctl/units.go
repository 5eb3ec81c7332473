package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// size shows bytes as people write them.
func size(n int64) string {
	const units = "KMGT"
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	if unit < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[unit:unit+1] + "iB"
}

// age shows how long ago t was, in one unit.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(max(time.Since(t), 0))
}

// until shows how long it is to t.
func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(max(time.Until(t), 0))
}

func span(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// moment shows a time in the user's zone; nothing for none.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

func pairs(m map[string]string) string {
	all := make([]string, 0, len(m))
	for _, f := range sorted(m) {
		all = append(all, f[0]+"="+f[1])
	}
	return strings.Join(all, ", ")
}

// sorted turns a map into fields in the order of its keys.
func sorted(m map[string]string) [][2]string {
	fields := make([][2]string, 0, len(m))
	for k, v := range m {
		fields = append(fields, [2]string{k, v})
	}
	slices.SortFunc(fields, func(x, y [2]string) int { return cmp.Compare(x[0], y[0]) })
	return fields
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// first is the first text that says anything.
func first(texts ...string) string { return cmp.Or(texts...) }
