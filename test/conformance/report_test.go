package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// outcome is what one case came to, on one target and in one form.
type outcome struct {
	Target string `json:"target"`
	Form   string `json:"form,omitempty"`
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
}

// Results of a case, and of a requirement.
const (
	pass = "pass"
	fail = "fail"
	skip = "skip"
	none = "-" // no case, for a reason
)

// report gathers outcomes.
type report struct {
	mu  sync.Mutex
	all map[string][]outcome
}

var results report

func (r *report) add(id string, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string][]outcome{}
	}
	r.all[id] = append(r.all[id], o)
}

// line is one requirement and what its cases came to.
type line struct {
	ID      string    `json:"id"`
	Level   Level     `json:"level"`
	Source  string    `json:"source"`
	Rule    string    `json:"rule"`
	Result  string    `json:"result"`
	Reason  string    `json:"reason,omitempty"`
	Results []outcome `json:"results"`
}

func (l line) group() string { g, _, _ := strings.Cut(l.ID, "-"); return g }

// lines sums up every requirement: one failure fails it, one pass without
// failures passes it.
func (r *report) lines() []line {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []line
	for _, q := range Registry() {
		l := line{ID: q.ID, Level: q.Level, Source: q.Source, Rule: q.Rule, Result: skip, Results: r.all[q.ID]}
		if q.Untested != "" {
			l.Result, l.Reason = none, q.Untested
		}
		for _, o := range l.Results {
			if l.Result != fail && (o.Result == fail || o.Result == pass) {
				l.Result = o.Result
			}
		}
		for _, o := range l.Results {
			if o.Result == l.Result && o.Reason != "" && l.Reason == "" {
				l.Reason = strings.Join(strings.Fields(o.Target+" "+o.Form+": "+o.Reason), " ")
			}
		}
		if l.Results == nil {
			l.Results = []outcome{}
		}
		all = append(all, l)
	}
	return all
}

// where says on which targets the requirement was looked at.
func (l line) where() string {
	var names []string
	for _, o := range l.Results {
		if o.Result != skip && !slices.Contains(names, o.Target) {
			names = append(names, o.Target)
		}
	}
	return strings.Join(names, ",")
}

const maxReason = 110

// print writes the table.
func (r *report) print(w io.Writer) error {
	all := r.lines()
	const row = "%-22s %-6s %-6s %-10s %s\n"
	var b strings.Builder
	group := ""
	count := map[Level]map[string]int{Must: {}, Should: {}, May: {}}
	for _, l := range all {
		if l.group() != group {
			group = l.group()
			fmt.Fprintf(&b, "\n"+row, group, "level", "result", "on", "")
		}
		reason := []rune(l.Reason)
		if len(reason) > maxReason {
			reason = append(reason[:maxReason], '…')
		}
		fmt.Fprintf(&b, row, "  "+l.ID, l.Level, l.Result, l.where(), string(reason))
		count[l.Level][l.Result]++
	}
	fmt.Fprintf(&b, "\n%-8s %6s %6s %6s %8s\n", "total", pass, fail, skip, "no case")
	for _, level := range []Level{Must, Should, May} {
		n := count[level]
		fmt.Fprintf(&b, "  %-6s %6d %6d %6d %8d\n", level, n[pass], n[fail], n[skip], n[none])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write keeps the results as JSON.
func (r *report) write(path string) error {
	body, err := json.MarshalIndent(map[string]any{"requirements": r.lines()}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(body, '\n'), 0o644) //nolint:gosec // for everybody to read
}

// defaultReport is where the Makefile looks for results.
func defaultReport() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return filepath.Join(d, ".build", "conformance.json"), nil
		}
		if d == filepath.Dir(d) {
			return filepath.Join(dir, "conformance.json"), nil
		}
	}
}
