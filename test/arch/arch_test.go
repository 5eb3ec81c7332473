package arch

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// imports gathers what each package imports outside its tests.
func imports(all []file) map[string]map[string]bool {
	graph := map[string]map[string]bool{}
	for _, f := range all {
		if f.test {
			continue
		}
		if graph[f.dir] == nil {
			graph[f.dir] = map[string]bool{}
		}
		for _, imported := range f.imports {
			graph[f.dir][imported] = true
		}
	}
	return graph
}

// TestArrows: a package imports another of ours only by an arrow of the
// table. A new arrow is a line there, with its reason.
func TestArrows(t *testing.T) {
	graph := imports(files(t))
	used := map[arrow]bool{}
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		for _, to := range slices.Sorted(maps.Keys(graph[from])) {
			if !ours(to) {
				continue
			}
			allowed := false
			for _, a := range arrows {
				if matches(a.from, from) && matches(a.to, to) {
					allowed, used[a] = true, true
				}
			}
			if !allowed {
				t.Errorf("%s must not import %s: no arrow in test/arch/arrows_test.go allows it. Either the code belongs elsewhere, or add\n\t{%q, %q, \"the reason\"},",
					from, to, from, to)
			}
		}
	}
	for _, a := range arrows {
		if a.why == "" {
			t.Errorf("the arrow %s → %s has no reason", a.from, a.to)
		}
		if !used[a] {
			t.Errorf("nothing uses the arrow %s → %s: take it out of the table", a.from, a.to)
		}
	}
}

// TestForbidden: what must never be reached, directly or through others.
func TestForbidden(t *testing.T) {
	graph := imports(files(t))
	for _, rule := range forbidden {
		found := false
		for _, from := range slices.Sorted(maps.Keys(graph)) {
			if !matches(rule.from, from) {
				continue
			}
			found = true
			for _, chain := range chains(graph, from) {
				last := chain[len(chain)-1]
				if slices.ContainsFunc(rule.never, func(p string) bool { return matches(p, last) }) {
					t.Errorf("%s must not reach %s: %s", strings.Join(chain, " → "), last, rule.why)
				}
			}
		}
		if !found {
			t.Errorf("there is no package %s: take its rule out of the table", rule.from)
		}
	}
}

// chains gives one shortest way from a package to each package it reaches.
func chains(graph map[string]map[string]bool, from string) [][]string {
	seen := map[string]bool{from: true}
	queue := [][]string{{from}}
	var all [][]string
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, to := range slices.Sorted(maps.Keys(graph[chain[len(chain)-1]])) {
			if seen[to] {
				continue
			}
			seen[to] = true
			longer := append(slices.Clone(chain), to)
			all = append(all, longer)
			queue = append(queue, longer)
		}
	}
	return all
}

// TestPure: packages that compute only. What they must not touch would make
// them need a host to be tested.
func TestPure(t *testing.T) {
	graph := imports(files(t))
	for _, dir := range pure {
		if graph[dir] == nil {
			t.Errorf("there is no package %s: take it out of the list", dir)
		}
		for _, effect := range effects {
			if graph[dir][effect] {
				t.Errorf("%s is pure and must not import %q", dir, effect)
			}
		}
	}
}

// TestThirdParty: a module we stand on has one home, so that it can be
// replaced there.
func TestThirdParty(t *testing.T) {
	graph := imports(files(t))
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		for _, to := range slices.Sorted(maps.Keys(graph[from])) {
			for _, home := range homes {
				if to != home.module && !strings.HasPrefix(to, home.module+"/") {
					continue
				}
				if !testSupport(from) && !slices.ContainsFunc(home.in, func(p string) bool { return matches(p, from) }) {
					t.Errorf("%s must not import %s: it belongs in %s", from, to, strings.Join(home.in, ", "))
				}
			}
		}
	}
}

// TestTrees: host and guest never import each other, not even in tests; they
// meet in api only, and over a connection.
func TestTrees(t *testing.T) {
	for _, f := range files(t) {
		for _, imported := range f.imports {
			if matches("controlplane/...", f.dir) && matches("guestagent/...", imported) ||
				matches("guestagent/...", f.dir) && matches("controlplane/...", imported) {
				t.Errorf("%s imports %s: the two trees meet in api only", f.path, imported)
			}
			if !f.test && !testSupport(f.dir) && ours(imported) && testSupport(imported) {
				t.Errorf("%s imports %s, which is for tests only", f.path, imported)
			}
		}
	}
}

// folder is where a package counts for cycles: the compiler sees to packages,
// but two folders whose packages import each other are one tangle as well.
func folder(dir string) string {
	parts := strings.SplitN(dir, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

func TestFoldersHaveNoCycles(t *testing.T) {
	graph := map[string]map[string]bool{}
	for from, tos := range imports(files(t)) {
		if testSupport(from) {
			continue
		}
		for to := range tos {
			if !ours(to) {
				continue
			}
			for _, pair := range [][2]string{{folder(from), folder(to)}, {first(from), first(to)}} {
				if pair[0] != pair[1] {
					if graph[pair[0]] == nil {
						graph[pair[0]] = map[string]bool{}
					}
					graph[pair[0]][pair[1]] = true
				}
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		for _, to := range slices.Sorted(maps.Keys(graph[from])) {
			for _, chain := range chains(graph, to) {
				if chain[len(chain)-1] == from {
					t.Errorf("folders import one another: %s → %s", from, strings.Join(chain, " → "))
				}
			}
		}
	}
}

func first(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

func TestNames(t *testing.T) {
	nothing := []string{"base", "common", "helper", "helpers", "misc", "shared", "types", "util", "utils"}
	for _, f := range files(t) {
		name := strings.TrimSuffix(path.Base(f.path), ".go")
		for _, part := range []string{path.Base(f.dir), strings.TrimSuffix(name, "_test")} {
			if slices.Contains(nothing, part) {
				t.Errorf("%s: %q says nothing about what is in it; name the concern", f.path, part)
			}
		}
	}
}

// maxLines leaves a little air over the 400 that files should stay under.
const maxLines = 420

func TestFileSize(t *testing.T) {
	for _, f := range files(t) {
		if !f.test && !f.generated && f.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it by concern", f.path, f.lines, maxLines)
		}
	}
}

func TestNoSleep(t *testing.T) {
	for _, f := range files(t) {
		if f.test {
			continue
		}
		for _, at := range f.uses("time", "Sleep") {
			t.Errorf("%s: time.Sleep: wait on an event or a deadline", at)
		}
	}
}
