package interop

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"
)

// result is how one case went, as clients report it.
type result struct {
	Client  string `json:"client"`
	SDK     string `json:"sdk"`
	Version string `json:"version"`
	Binding string `json:"binding"`
	Case    string `json:"case"`
	OK      bool   `json:"ok"`
	Error   string `json:"error"`
	Barrier string `json:"barrier"`
}

// ways are the columns of the table: versions and their bindings.
var ways = [][2]string{{"1.0", "JSONRPC"}, {"1.0", "HTTP+JSON"}, {"0.3", "JSONRPC"}, {"0.3", "HTTP+JSON"}}

// cardCases and taskCases are its rows. The former do not depend on the binding.
var (
	cardCases = []string{"card", "card-unauthenticated", "card-signature", "card-signature-parsed"}
	taskCases = []string{
		"send", "get", "list", "errors", "extension-required", "stream", "send-immediately", "subscribe", "cancel",
		"input-required", "extended-card", "push-create", "push-get", "push-list", "push-deliver", "push-delete", "restart-begun", "restart",
	}
)

// expected lists the cases that a client must report for a version.
func expected(name, version string) (card, task []string) {
	card = cardCases[:1]
	if version == "1.0" {
		switch name {
		case "go": // this SDK verifies no signatures
			card = cardCases[:2]
		case "python":
			card = cardCases[:3]
		default:
			card = cardCases
		}
	}
	return card, taskCases
}

// deviation is what a client does differently than the specification has it,
// or cannot do. Its error is wanted: when it no longer comes, the line goes.
type deviation struct {
	clients, versions, bindings, cases string // divided by |
	err                                string // a regular expression
	reason                             string
}

var deviations = []deviation{
	{"go", "0.3", "card", "card", `want HTTP\+JSON 0.3 among 1 interfaces`,
		"the SDK passes over interfaces of a card of 0.3 that share the first one's address; it knows them from the card of 1.0"},
	{"go|js|python", "0.3", "JSONRPC", "list", "(?i)not supported|tasks/list", "0.3 has no method to list tasks"},
	{"js|python", "0.3", "HTTP+JSON", "list", "(?i)not supported|tasks/list", "the SDK lists no tasks on HTTP+JSON of 0.3"},
	{"python", "0.3", "HTTP+JSON", "push-list", "NotImplementedError", "the SDK lists no webhooks on HTTP+JSON of 0.3"},
	{"python", "0.3", "HTTP+JSON", "push-delete", "NotImplementedError", "the SDK deletes no webhooks on HTTP+JSON of 0.3"},
	{"js", "1.0", "card", "card-signature-parsed", "No valid signatures",
		"the SDK loses securitySchemes when it puts a card it has parsed into canonical form; the card as served verifies"},
}

func (d deviation) covers(r result) bool {
	among := func(s, list string) bool { return slices.Contains(strings.Split(list, "|"), s) }
	return among(r.Client, d.clients) && among(r.Version, d.versions) && among(r.Binding, d.bindings) && among(r.Case, d.cases)
}

// report gathers the results of all clients.
type report struct {
	results []result
	sdks    map[string]string
}

func (p *report) add(r result) {
	if p.sdks == nil {
		p.sdks = map[string]string{}
	}
	p.sdks[r.Client] = r.SDK
	p.results = append(p.results, r)
}

func (p *report) find(client, version, binding, name string) []result {
	var found []result
	for _, r := range p.results {
		if r.Client == client && r.Version == version && r.Binding == binding && r.Case == name {
			found = append(found, r)
		}
	}
	return found
}

// judge is the cell of a case, and what is wrong with it.
func (p *report) judge(client, version, binding, name string) (cell, problem string) {
	found := p.find(client, version, binding, name)
	what := strings.Join([]string{client, version, binding, name}, " ")
	if len(found) != 1 {
		return "FAIL", fmt.Sprintf("%s: reported %d times", what, len(found))
	}
	r := found[0]
	for i, d := range deviations {
		switch {
		case !d.covers(r):
		case r.OK:
			return "FAIL", fmt.Sprintf("%s works: take its deviation out of the list (%s)", what, d.reason)
		case regexp.MustCompile(d.err).MatchString(r.Error):
			return fmt.Sprintf("(%d)", i+1), ""
		}
	}
	if !r.OK {
		return "FAIL", what + ": " + r.Error
	}
	return "ok", ""
}

// each calls f for every case that is wanted.
func (p *report) each(f func(client, version, binding, name string)) {
	for _, client := range []string{"go", "js", "python"} {
		for _, w := range ways {
			card, task := expected(client, w[0])
			if w[1] == ways[0][1] {
				for _, name := range card {
					f(client, w[0], "card", name)
				}
			}
			for _, name := range task {
				f(client, w[0], w[1], name)
			}
		}
	}
}

// check lists what is not as it should be.
func (p *report) check() (problems []string) {
	wanted := map[[4]string]bool{}
	p.each(func(client, version, binding, name string) {
		wanted[[4]string{client, version, binding, name}] = true
		if _, problem := p.judge(client, version, binding, name); problem != "" {
			problems = append(problems, problem)
		}
	})
	for _, r := range p.results {
		if !wanted[[4]string{r.Client, r.Version, r.Binding, r.Case}] {
			problems = append(problems, fmt.Sprintf("nobody asked for %+v", r))
		}
	}
	return problems
}

// table shows every case and client.
func (p *report) table() string {
	cells := map[string]map[string]string{}
	p.each(func(client, version, binding, name string) {
		cell, _ := p.judge(client, version, binding, name)
		if cells[name] == nil {
			cells[name] = map[string]string{}
		}
		cells[name][client+version+binding] = cell
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	clients := slices.Sorted(maps.Keys(p.sdks))
	var head, under strings.Builder
	short := strings.NewReplacer("JSONRPC", "rpc", "HTTP+JSON", "rest")
	for _, client := range clients {
		fmt.Fprintf(&head, "\t%s %s\t\t\t", client, p.sdks[client])
		for _, way := range ways {
			fmt.Fprintf(&under, "\t%s %s", way[0], short.Replace(way[1]))
		}
	}
	fmt.Fprintf(w, "%s\ncase%s\n", &head, &under)
	for _, name := range append(slices.Clone(cardCases), taskCases...) {
		fmt.Fprint(w, name)
		for _, client := range clients {
			for _, way := range ways {
				cell := cells[name][client+way[0]+way[1]]
				if slices.Contains(cardCases, name) && way[1] == ways[0][1] {
					cell = cells[name][client+way[0]+"card"]
				}
				fmt.Fprint(w, "\t", cell)
			}
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // to memory
	rows := strings.Split(b.String(), "\n")
	for i := range rows {
		rows[i] = strings.TrimRight(rows[i], " ")
	}
	for i, d := range deviations {
		rows = append(rows, fmt.Sprintf("(%d) %s", i+1, d.reason))
	}
	return strings.Join(rows, "\n") + "\n"
}

var update = flag.Bool("update", false, "write the table of README.md anew")

// compareReadme wants README.md to show the table as it is.
func compareReadme(t *testing.T, table string) {
	t.Helper()
	const file, fence = "README.md", "```\n"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), fence)
	shown, after, closed := strings.Cut(rest, fence)
	if !ok || !closed {
		t.Fatalf("%s has no table", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+fence+table+fence+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(shown, table); diff != "" {
		t.Errorf("the table of %s (-) is not what was seen (+); make interop INTEROPFLAGS=-update writes it anew:\n%s", file, diff)
	}
}
