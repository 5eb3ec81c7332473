package interop

import (
	"strings"
	"testing"
)

// TestReport: nothing that is missing, failed, doubled, strange or better than
// it is said to be goes through.
func TestReport(t *testing.T) {
	whole := func() *report {
		p := &report{}
		(&report{}).each(func(client, version, binding, name string) {
			r := result{Client: client, SDK: "1", Version: version, Binding: binding, Case: name, OK: true}
			for _, d := range deviations {
				if d.covers(r) {
					// The first of the alternatives, spelt out, is an error that it wants.
					r.OK, r.Error = false, strings.NewReplacer("(?i)", "", `\`, "").Replace(strings.Split(d.err, "|")[0])
				}
			}
			p.add(r)
		})
		return p
	}
	if problems := whole().check(); len(problems) != 0 {
		t.Fatalf("as it should be: %q", problems)
	}
	index := func(p *report, client, version, binding, name string) int {
		for i, r := range p.results {
			if r.Client == client && r.Version == version && r.Binding == binding && r.Case == name {
				return i
			}
		}
		t.Fatalf("there is no %s %s %s %s", client, version, binding, name)
		return 0
	}
	for name, c := range map[string]struct {
		spoil func(p *report)
		want  string
	}{
		"failed": {func(p *report) {
			r := &p.results[index(p, "js", "1.0", "JSONRPC", "send")]
			r.OK, r.Error = false, "boom"
		}, "js 1.0 JSONRPC send: boom"},
		"missing": {func(p *report) {
			i := index(p, "go", "0.3", "HTTP+JSON", "restart")
			p.results = append(p.results[:i], p.results[i+1:]...)
		}, "go 0.3 HTTP+JSON restart: reported 0 times"},
		"doubled": {func(p *report) { p.add(p.results[0]) }, "reported 2 times"},
		"strange": {func(p *report) { p.add(result{Client: "js", Case: "new"}) }, "nobody asked for"},
		"no longer a deviation": {func(p *report) {
			p.results[index(p, "python", "0.3", "HTTP+JSON", "push-list")].OK = true
		}, "take its deviation out of the list"},
		"another error than the deviation's": {func(p *report) {
			p.results[index(p, "python", "0.3", "HTTP+JSON", "push-list")].Error = "boom"
		}, "boom"},
	} {
		p := whole()
		c.spoil(p)
		problems := p.check()
		if len(problems) != 1 || !strings.Contains(problems[0], c.want) {
			t.Errorf("%s: %q", name, problems)
		}
		if name != "strange" && !strings.Contains(p.table(), "FAIL") {
			t.Errorf("%s: the table shows no failure", name)
		}
	}
}
