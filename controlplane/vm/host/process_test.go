package host

import (
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestParseStat(t *testing.T) {
	const tail = " S 17 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"
	for _, c := range []struct {
		line string
		want stat
		ok   bool
	}{
		{"42 (sh)" + tail, stat{42, 17, 'S', 4711}, true},
		{"42 (a) R 1 (b) )" + tail, stat{42, 17, 'S', 4711}, true},
		{"42 (sh) S 17", stat{}, false},
		{"", stat{}, false},
		{"42 sh" + tail, stat{}, false},
		{"42 (sh) S x 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", stat{}, false},
	} {
		if got, ok := parseStat(42, []byte(c.line)); got != c.want || ok != c.ok {
			t.Errorf("%q: %+v, %v", c.line, got, ok)
		}
	}
	if s, ok := readStat(os.Getpid()); !ok || s.parent != os.Getppid() || !s.alive() {
		t.Errorf("of ourselves: %+v, %v", s, ok)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sh) S 17 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"))
	f.Fuzz(func(_ *testing.T, data []byte) { parseStat(1, data) })
}

// The tree holds exactly those whose chain of parents leads to the root, each
// once, parents before children; loops in a torn table do no harm.
func TestTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		all := make([]stat, n)
		parent := map[int]int{}
		for i := range all {
			all[i] = stat{pid: i + 1, parent: rapid.IntRange(0, n).Draw(t, "parent"), start: uint64(i)}
			parent[i+1] = all[i].parent
		}
		root := rapid.SampledFrom(all).Draw(t, "root")
		got := tree(rapid.Permutation(all).Draw(t, "order"), root)
		var pids []int
		for _, s := range got {
			if s.pid != root.pid && !slices.Contains(pids, s.parent) {
				t.Fatalf("%d comes before its parent", s.pid)
			}
			if slices.Contains(pids, s.pid) {
				t.Fatalf("%d comes twice", s.pid)
			}
			pids = append(pids, s.pid)
		}
		for _, s := range all {
			p := s.pid
			for range n {
				if p == root.pid {
					break
				}
				p = parent[p]
			}
			if (p == root.pid) != slices.Contains(pids, s.pid) {
				t.Fatalf("%d is found: %v", s.pid, p != root.pid)
			}
		}
		if got := tree(all, stat{pid: root.pid, start: root.start + 1000}); len(got) != 0 {
			t.Fatalf("another process of that pid has %d", len(got))
		}
	})
}
