package loadouts_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/loadouts"
	"github.com/google/go-cmp/cmp"
)

const head = "apiVersion: loadout/v1\nkind: loadout\nmetadata: {name: x}\n"

// fromMap looks documents up in a map.
func fromMap(docs map[string]string) loadouts.Lookup {
	return func(ref string) ([]byte, string, error) {
		doc, ok := docs[ref]
		if !ok {
			return nil, "", fs.ErrNotExist
		}
		return []byte(doc), ref, nil
	}
}

func resolve(t *testing.T, doc string) *loadouts.Resolved {
	t.Helper()
	r, err := loadouts.Resolve("x", fromMap(map[string]string{"x": doc}))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDefaults(t *testing.T) {
	got := resolve(t, head+"image: minimal\n").Loadout
	want := loadouts.Loadout{
		Name:      "x",
		Resources: loadouts.Resources{CPUs: 1, Memory: 512 << 20},
		Runtime:   loadouts.RuntimeOptions{Kind: loadouts.RuntimeVM},
		Network:   loadouts.Network{Mode: loadouts.NetworkIsolated},
		Runners:   []string{"echo"},
		Agent: loadouts.Agent{
			Name:        "x",
			Description: "One machine of the loadout x.",
			Version:     "1.0.0",
			User:        "agent",
		},
		Workspace: loadouts.Workspace{Path: "/workspace", User: "agent"},
		Readiness: loadouts.Readiness{SetupTimeoutSeconds: 300},
	}
	want.Image.Name = "minimal"
	if len(got.Agent.Skills) != 1 || got.Agent.Skills[0].ID != "echo" || len(got.Agent.Skills[0].Tags) == 0 {
		t.Errorf("skills are %+v, want one for the runner, with tags", got.Agent.Skills)
	}
	got.Agent.Skills = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestWorkspaceBelongsToTheAgentsUserUnlessSaid(t *testing.T) {
	got := resolve(t, head+"image: minimal\nagent: {user: worker}\n")
	if got.Workspace.User != "worker" {
		t.Errorf("workspace user is %q, want worker", got.Workspace.User)
	}
}

func TestSizes(t *testing.T) {
	good := map[string]int64{
		"1K": 1 << 10, "512M": 512 << 20, "512Mi": 512 << 20, "8G": 8 << 30, "8Gi": 8 << 30, "1T": 1 << 40, "0G": 0,
	}
	for s, want := range good {
		got, err := loadouts.ParseSize(s)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "8", "G", "8g", "8GB", "8 G", "-8G", "+8G", "1.5G", "8G\n", "0x8G", "9999999999T", "8Ki i", "٨G"} {
		if got, err := loadouts.ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
	for _, n := range []int64{1 << 10, 1 << 20, 3 << 20, 1 << 30, 5 << 40} {
		got, err := loadouts.ParseSize(loadouts.FormatSize(n))
		if err != nil || got != n {
			t.Errorf("%d does not come back: %d, %v", n, got, err)
		}
	}
}

// TestMerged holds the rules that only show after merging.
func TestMerged(t *testing.T) {
	parent := func(body string) map[string]string {
		return map[string]string{
			"p": "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: p}\n" + body,
		}
	}
	var long strings.Builder
	long.WriteString("env:\n")
	for i := range 3 {
		fmt.Fprintf(&long, "  V%d: %s\n", i, strings.Repeat("x", 30<<10))
	}
	var many strings.Builder
	for i := range 16 {
		fmt.Fprintf(&many, "    l%d: x\n", i+60)
	}
	var before strings.Builder
	for i := range 60 {
		fmt.Fprintf(&before, "    l%d: x\n", i)
	}
	tests := map[string]struct {
		parent, child, want string
	}{
		"no image": {
			"", "", "x:1:1: image: want this field here or in what the loadout extends",
		},
		"a skill twice": {
			"image: minimal\nagent: {skills: [{id: s, name: S, description: S}]}\n",
			"agent: {skills: [{id: s, name: S, description: S}]}\n",
			`x:5:23: agent.skills[1].id: want an id of its own: "s" stands first at p:5:23`,
		},
		"a capability wanted and unwanted": {
			"image: minimal\nruntime_options: {required_capabilities: [a, b]}\n",
			"runtime_options: {excluded_capabilities: [c, b]}\n",
			`x:5:46: runtime_options.excluded_capabilities[1]: "b" is required too`,
		},
		"too much environment": {
			"image: minimal\n" + long.String(), "env: {SMALL: x}\n",
			"x:5:6: env: want at most 64K of names and values, not 92",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			docs := parent(test.parent)
			docs["x"] = head + "extends: [p]\n" + test.child
			_, err := loadouts.Resolve("x", fromMap(docs))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	docs := map[string]string{
		"p": "apiVersion: loadout/v1\nkind: layer\nmetadata:\n  name: p\n  labels:\n" + before.String(),
		"x": "apiVersion: loadout/v1\nkind: loadout\nextends: [p]\nimage: minimal\nmetadata:\n  name: x\n  labels:\n" + many.String(),
	}
	_, err := loadouts.Resolve("x", fromMap(docs))
	if want := "metadata.labels: want at most 64 items, not 76 after merging"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestExtends(t *testing.T) {
	doc := func(kind, name string, extends ...string) string {
		return fmt.Sprintf("apiVersion: loadout/v1\nkind: %s\nmetadata: {name: %s}\nextends: [%s]\nimage: minimal\n",
			kind, name, strings.Join(extends, ", "))
	}
	chain := map[string]string{}
	for i := range 20 {
		chain[fmt.Sprintf("c%d", i)] = doc("loadout", "c", fmt.Sprintf("c%d", i+1))
	}
	wide := map[string]string{"root": doc("loadout", "root", "w0", "w1", "w2", "w3", "w4")}
	for i := range 5 {
		var leaves []string
		for j := range 15 {
			leaf := fmt.Sprintf("w%d-%d", i, j)
			leaves = append(leaves, leaf)
			wide[leaf] = doc("layer", "leaf")
		}
		wide[fmt.Sprintf("w%d", i)] = doc("layer", "w", leaves...)
	}
	tests := map[string]struct {
		docs      map[string]string
		ref, want string
	}{
		"itself": {
			map[string]string{"a": doc("loadout", "a", "a")}, "a",
			"a:4:11: extends[0]: documents extend one another in a circle: a → a",
		},
		"a circle below": {
			map[string]string{
				"a": doc("loadout", "a", "b"), "b": doc("layer", "b", "c"), "c": doc("layer", "c", "b"),
			}, "a",
			"c:4:11: extends[0]: documents extend one another in a circle: b → c → b",
		},
		"a layer": {
			map[string]string{"a": doc("layer", "a")}, "a",
			"a:2:7: kind: a layer cannot become a machine",
		},
		"nothing": {
			map[string]string{"a": doc("loadout", "a", "gone")}, "a",
			`a:4:11: extends[0]: cannot read "gone": file does not exist`,
		},
		"too deep": {chain, "c0", "c15:4:11: extends[0]: want at most 16 documents one above the other"},
		"too many": {wide, "root", "w3:4:99: extends[14]: want at most 64 documents in all"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := loadouts.Resolve(test.ref, fromMap(test.docs))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			var errs loadouts.Errors
			if !errors.As(err, &errs) {
				t.Errorf("got %T, want Errors", err)
			}
		})
	}
}

func TestAMissingDocumentIsTold(t *testing.T) {
	_, err := loadouts.Resolve("gone", fromMap(nil))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	_, err = loadouts.Resolve("x", fromMap(map[string]string{"x": head + "extends: [gone]\n"}))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

// TestAllDocumentsAreReported: whoever mends a loadout wants to do it once.
func TestAllDocumentsAreReported(t *testing.T) {
	_, err := loadouts.Resolve("x", fromMap(map[string]string{
		"x": head + "extends: [a, b]\n",
		"a": "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: a}\nwrong: 1\n",
		"b": "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: b}\nwrong: 1\n",
	}))
	want := "a:4:1: unknown field \"wrong\"\nb:4:1: unknown field \"wrong\""
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want\n%s", err, want)
	}
}

func TestAParentReachedTwiceDoesNotUndoItsChildren(t *testing.T) {
	layer := func(name, rest string) string {
		return "apiVersion: loadout/v1\nkind: layer\nmetadata: {name: " + name + "}\n" + rest
	}
	r, err := loadouts.Resolve("x", fromMap(map[string]string{
		"base": layer("base", "image: minimal\nresources: {cpus: 1, memory: 1G}\n"),
		"big":  layer("big", "extends: [base]\nresources: {cpus: 8}\n"),
		"tool": layer("tool", "extends: [base]\nenv: {TOOL: yes-it-is}\n"),
		"x":    head + "extends: [big, tool]\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if r.Resources.CPUs != 8 {
		t.Errorf("cpus are %d, want those of big", r.Resources.CPUs)
	}
	var names []string
	for _, s := range r.Sources {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{"base", "big", "tool", "x"}, names); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestHashIsThatOfTheMeaning(t *testing.T) {
	a := resolve(t, head+"image: minimal\nresources: {memory: 1G, cpus: 1}\nenv: {A: 1, B: 2}\n")
	same := resolve(t, "# another form\nkind: loadout\napiVersion: 'loadout/v1'\nmetadata:\n  name: x\n"+
		"env: {B: \"2\", A: '1'}\nresources:\n  memory: 1024Mi\nimage: minimal\nrunners: [echo]\n")
	if a.Hash() != same.Hash() {
		t.Errorf("equal loadouts have the hashes %s and %s", a.Hash(), same.Hash())
	}
	for _, doc := range []string{
		"image: minimal\nresources: {memory: 1G, cpus: 2}\nenv: {A: 1, B: 2}\n",
		"image: minimal\nresources: {memory: 1G, cpus: 1}\nenv: {A: 1, B: 3}\n",
		"image: other\nresources: {memory: 1G, cpus: 1}\nenv: {A: 1, B: 2}\n",
	} {
		if other := resolve(t, head+doc); other.Hash() == a.Hash() {
			t.Errorf("the hash does not see the difference of %q", doc)
		}
	}
}

func TestSecretsAreWarnedOfAndNotShown(t *testing.T) {
	r := resolve(t, head+"image: minimal\nenv: {GITHUB_TOKEN: hunter2, DB_PASSWORD: '', TOKENIZER: fast, MY_API_KEY: hunter3}\n")
	got := r.Warnings.Error()
	for _, want := range []string{"env.GITHUB_TOKEN", "env.MY_API_KEY"} {
		if !strings.Contains(got, want) {
			t.Errorf("no warning of %s in %q", want, got)
		}
	}
	for _, not := range []string{"hunter", "DB_PASSWORD", "TOKENIZER"} {
		if strings.Contains(got, not) {
			t.Errorf("%s stands in %q", not, got)
		}
	}
}

func TestBounds(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"size":     {head + strings.Repeat("#", loadouts.MaxSize), "x:1:1: want at most 256K, not "},
		"nesting":  {head + "agent: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "\n", "want a map, not a list"},
		"unclosed": {head + "agent: " + strings.Repeat("[", 9000), "not YAML"},
		"unknown":  {head + unknownFields(20_000), "and 50 more"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := loadouts.Parse("x", []byte(test.doc))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %.200v, want %q", err, test.want)
			}
			if n := len(err.Error()); n > 20_000 {
				t.Errorf("the report is %d bytes long", n)
			}
		})
	}
}

func unknownFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "f%d: 1\n", i)
	}
	return b.String()
}
