package scripts

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
)

type normalKey struct{}

// normal replaces what differs from run to run.
type normal []replacement

type replacement struct {
	what *regexp.Regexp
	by   string
}

func newNormal(work, files, state, url string) normal {
	text := func(s, by string) replacement { return replacement{regexp.MustCompile(regexp.QuoteMeta(s)), by} }
	expr := func(s, by string) replacement { return replacement{regexp.MustCompile(s), by} }
	host, _ := os.Hostname()
	n := normal{
		text(work, "WORK"), text(files, "FILES"), text(state, "STATE"), text(url, "URL"),
		expr(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, "ID"),
		expr(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`, "TIME"),
		expr(`\b\d\d:\d\d:\d\d\b`, "TIME"),
		expr(`sha256:[0-9a-f]{64}`, "sha256:HASH"),
		expr(`\b[A-Za-z0-9_-]{43}  `, "KEY  "),
		expr(`"(seq|boot_ms|generation|percent|last_event|size|packages|instances)":( ?)\d+`, `"$1":${2}N`),
		expr(`(?m)^( *(generation|percent|boot_ms|seq)): \d+$`, `$1: N`),
		expr(`(?m)^\d+( +TIME)`, "N$1"),
		expr(`\b\d+[smhd]( |$)`, "AGE$1"),
		expr(`(?m)\b\d+[smhd]$`, "AGE"),
		expr(`\b\d+%`, "N%"),
		// Columns are as wide as what was replaced.
		expr(`(\S)  +`, "$1  "), expr(`(?m) +$`, ""),
		// What the host and the build are.
		expr(`("?(agent_version|kernel|os|containment)"?: )"?[^",\n]*"?`, "$1 …"),
		expr(`(?m)^(guest|agent):  .*$`, "$1:  …"),
		expr(`  unix  (\S+)  (\S+)  (URL)`, "  unix  $1  …  $3"),
	}
	if host != "" {
		n = append(n, replacement{regexp.MustCompile(`("?\bhost"?: +"?)` + regexp.QuoteMeta(host) + `\b`), "${1}HOST"})
	}
	return n
}

func (n normal) apply(text string) string {
	for _, r := range n {
		text = r.what.ReplaceAllString(text, r.by)
	}
	return text
}

func normalized(ts *testscript.TestScript) string {
	n, ok := ts.Value(normalKey{}).(normal)
	if !ok {
		ts.Fatalf("no replacements")
	}
	return n.apply(ts.ReadFile("stdout"))
}

// golden compares what the last command printed with a file of the script.
func golden(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: golden FILE")
	}
	got := normalized(ts)
	if os.Getenv("UPDATE_SCRIPTS") != "" {
		update(ts, args[0], got)
		return
	}
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("%s differs (UPDATE_SCRIPTS=1 rewrites it)\n--- got ---\n%s--- want ---\n%s", args[0], got, want)
	}
}

// update writes a file of a script.
func update(ts *testscript.TestScript, name, content string) {
	path := filepath.Join("testdata", "script", ts.Getenv("SCRIPT")+".txtar")
	archive, err := txtar.ParseFile(path)
	ts.Check(err)
	for i := range archive.Files {
		if archive.Files[i].Name == name {
			archive.Files[i].Data = []byte(content)
			ts.Check(os.WriteFile(path, txtar.Format(archive), 0o644)) //nolint:gosec // as it was
			return
		}
	}
	archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(content)})
	ts.Check(os.WriteFile(path, txtar.Format(archive), 0o644)) //nolint:gosec // as it was
}

// capture makes a variable of what the last command printed.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture VAR REGEXP")
	}
	m := regexp.MustCompile(`(?m)` + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("nothing matches %s", args[1])
	}
	ts.Setenv(args[0], m[len(m)-1])
}

// patience is how long eventually repeats a command.
const patience = 60 * time.Second

// eventually repeats a command until it ends and prints as it should.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: eventually STATUS REGEXP COMMAND…")
	}
	want := regexp.MustCompile(`(?m)` + args[1])
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		status := run(ts, args[2:])
		out := ts.ReadFile("stdout")
		if strconv.Itoa(status) == args[0] && want.MatchString(out) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			ts.Fatalf("status is %d, want %s and %s in\n%s", status, args[0], want, strings.TrimSpace(out))
		}
	}
}
