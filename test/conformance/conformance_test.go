package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// Environment of a run against a server that is there already.
const (
	envAgainst = "SANDBOX_CONFORMANCE_URL"          // A2A address of an instance
	envToken   = "SANDBOX_CONFORMANCE_TOKEN_FILE"   //nolint:gosec // the name of a variable
	envOther   = "SANDBOX_CONFORMANCE_TOKEN_FILE_2" //nolint:gosec // likewise; of a second principal
	envReport  = "SANDBOX_CONFORMANCE_REPORT"       // where the results go as JSON
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Cases wait more than they compute; a principal of its own keeps one from
	// seeing what another does.
	if err := flag.Set("test.parallel", itoa(crowd)); err != nil {
		panic(err)
	}
	code := m.Run()
	if len(results.all) > 0 {
		if err := publish(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// publish shows the table, and keeps the results of a whole run.
func publish() error {
	if err := results.print(os.Stdout); err != nil {
		return err
	}
	if f := flag.Lookup("test.run"); f != nil && f.Value.String() != "" && os.Getenv(envReport) == "" {
		return nil // what was left out would read as skipped
	}
	path := os.Getenv(envReport)
	if path == "" {
		var err error
		if path, err = defaultReport(); err != nil {
			return err
		}
	}
	return results.write(path)
}

// kase is one case: how a requirement is shown.
type kase struct {
	id    string
	run   func(*trial)
	forms []form // how it is to be spoken; none: once, in HTTP+JSON 1.0
	needs []need
	// rough cases end the server, and come last.
	rough bool
}

// cases are all, in the order of the registry's groups.
func cases() []kase {
	return slices.Concat(
		runtimeCases(), adapterCases(), promptCases(), idempotencyCases(),
		coreCases(), listCases(), contextCases(), modelCases(), streamCases(), pushCases(),
		cardCases(), versionCases(), authCases(), bindingCases(), oldCases(), limitCases(), scriptedCases(), crashCases(),
	)
}

func once(id string, run func(*trial), needs ...need) kase {
	return kase{id: id, run: run, needs: needs}
}

func both(id string, run func(*trial), needs ...need) kase {
	return kase{id: id, run: run, needs: needs, forms: []form{rpc10(), rest10()}}
}

// every is both, in 0.3 as well.
func every(id string, run func(*trial), needs ...need) kase {
	return kase{id: id, run: run, needs: needs, forms: []form{rpc10(), rest10(), rpc03(), rest03()}}
}

func old(id string, run func(*trial), needs ...need) kase {
	return kase{id: id, run: run, needs: needs, forms: []form{rpc03(), rest03()}}
}

func rough(k kase) kase { k.rough = true; return k }

// TestRegistry wants a case or a reason for every requirement.
func TestRegistry(t *testing.T) {
	have := map[string]int{}
	for _, k := range cases() {
		have[k.id]++
	}
	seen := map[string]bool{}
	for _, r := range Registry() {
		switch {
		case seen[r.ID]:
			t.Errorf("%s stands there twice", r.ID)
		case r.Source == "" || !strings.HasSuffix(r.Rule, "."):
			t.Errorf("%s needs a source and a rule that is a sentence", r.ID)
		case r.Level != Must && r.Level != Should && r.Level != May:
			t.Errorf("%s has level %q", r.ID, r.Level)
		case have[r.ID] == 0 && r.Untested == "":
			t.Errorf("%s has neither a case nor a reason why not", r.ID)
		case have[r.ID] > 0 && r.Untested != "":
			t.Errorf("%s has a case and a reason why not", r.ID)
		}
		seen[r.ID] = true
	}
	for id := range have {
		if !seen[id] {
			t.Errorf("there is a case for %s, which the registry does not know", id)
		}
	}
}

// crowd is how many cases run at once.
const crowd = 6

// alone reports whether the case disturbs others, or is disturbed by them.
func (k kase) alone() bool {
	return k.rough || slices.Contains(k.needs, needNarrow) || slices.Contains(k.needs, needScript)
}

// conform runs the cases that are picked as subtests: first those that must be
// alone, then all others at once.
func conform(t *testing.T, at *target, pick func(id string) bool) {
	t.Helper()
	client := newClient()
	t.Cleanup(client.CloseIdleConnections)
	free := make(chan string, len(at.tokens))
	for _, token := range at.tokens {
		free <- token
	}
	for _, alone := range []bool{true, false} {
		for _, k := range cases() {
			if k.alone() != alone || !pick(k.id) {
				continue
			}
			t.Run(k.id, func(t *testing.T) {
				if !alone {
					t.Parallel()
				}
				mine := *at
				mine.token = <-free
				defer func() { free <- mine.token }()
				k.conform(t, &mine, client.Transport)
			})
		}
	}
}

// TestAgainst holds an instance that is running somewhere to the suite.
func TestAgainst(t *testing.T) {
	agent := strings.TrimSuffix(os.Getenv(envAgainst), "/")
	if agent == "" {
		t.Skipf("to run it against a server of your own: make conformance AGAINST=https://host/agents/ID TOKEN_FILE=admin.token")
	}
	server, _, found := strings.Cut(agent, "/agents/")
	if !found {
		t.Fatalf("%s is %q, want the A2A address of an instance, .../agents/ID", envAgainst, agent)
	}
	at := &target{name: "against", url: server, agent: agent, token: tokenFile(t, envToken), missing: map[need]string{
		needScopes: "needs principals with chosen scopes: make conformance without AGAINST",
		needHooks:  "needs a server that may call this host: make conformance without AGAINST",
		needKill:   "needs a server that may be killed: make conformance without AGAINST",
		needNarrow: "needs a server with narrow limits: make conformance without AGAINST",
		needKeys:   "needs keys that may be rotated: make conformance without AGAINST",
	}}
	at.scripted = at // if its card says so
	if at.other = tokenFile(t, envOther); at.other == "" {
		at.missing[needOther] = "needs a second principal: set " + envOther
	}
	at.tokens = []string{at.token}
	at.look(t)
	conform(t, at, func(string) bool { return true })
}

func tokenFile(t *testing.T, env string) string {
	path := os.Getenv(env)
	if path == "" {
		return ""
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// look finds out what the target can do.
func (at *target) look(t *testing.T) {
	t.Helper()
	x := &trial{T: t, target: at, form: rest10(), client: newClient(), notes: &notes{}}
	defer x.client.CloseIdleConnections()
	k := x.run("echo ready", nil)
	if text(k, "status", "state") != "TASK_STATE_COMPLETED" || output(k, "stdout") != "ready\n" {
		at.missing[needCommand] = "needs the suite's workspace: sandboxctl up agentic-dev --workspace test/conformance/workspace"
	}
	if at.scripted == at && !scriptedSkill(x.card().body) {
		at.missing[needScript] = "needs the scripted runner: sandboxd serve --conformance, which is not for use"
	}
}

// scriptedSkill reports whether a card declares the scripted runner.
func scriptedSkill(card any) bool {
	return slices.ContainsFunc(list(card, "skills"), func(s any) bool { return text(s, "id") == "conformance.scripted" })
}

// principals are those of the servers that the suite starts.
func principals(stateDir string) (map[string]string, error) {
	scopes := map[string][]string{
		"bob": {"agents:invoke"}, "reader": {"fleet:read"},
		"seer": {"agents:invoke", "fleet:read-host"},
	}
	for i := range crowd {
		scopes["alice"+itoa(i)] = []string{"agents:invoke"}
	}
	tokens := map[string]string{}
	var entries []object
	for name, s := range scopes {
		token := unique("sbx_" + name)
		hash := sha256.Sum256([]byte(token))
		tokens[name] = token
		entries = append(entries, object{
			"name": name, "sha256": hex.EncodeToString(hash[:]), "scopes": s, "created": time.Now().UTC().Format(time.RFC3339),
		})
	}
	body, err := json.Marshal(object{"version": 1, "tokens": entries})
	if err != nil {
		return nil, err
	}
	return tokens, os.WriteFile(filepath.Join(stateDir, "tokens.json"), body, 0o600)
}

// serve starts a server with one machine for the suite.
func serve(t *testing.T, name string, args []string, up func(dir string) []string) *target {
	t.Helper()
	dir := open(t, "")
	tokens, err := principals(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := rig.Start(t.Context(), rig.Options{StateDir: dir, Args: args})
	if errors.Is(err, rig.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { leave(t, d) })
	out, err := d.Must(t.Context(), append([]string{"up", "-o", "json", "--name", machineName}, up(dir)...)...)
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		A2AURL string `json:"a2a_url"`
	}
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.A2AURL == "" {
		t.Fatalf("up says %s: %v", out, err)
	}
	at := &target{
		name: name, url: d.URL, agent: made.A2AURL, token: tokens["alice0"], other: tokens["bob"], reader: tokens["reader"],
		seer: tokens["seer"], missing: map[need]string{}, process: d, stateDir: dir,
	}
	for i := range crowd {
		at.tokens = append(at.tokens, tokens["alice"+itoa(i)])
	}
	return at
}

const machineName = "conformance"

// leave removes the machine and wants nothing to be left.
func leave(t *testing.T, d *rig.Daemon) {
	if t.Failed() {
		t.Logf("end of sandboxd's log:\n%s", d.Log())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*patience)
	defer cancel()
	if _, err := d.Must(ctx, "rm", machineName); err != nil {
		t.Error(err)
	}
	err := d.Stop()
	left, leftErr := d.Leftovers()
	if err := errors.Join(err, leftErr, d.Remove()); err != nil {
		t.Error(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// conform runs the case in each of its forms.
func (k kase) conform(t *testing.T, at *target, via transport) {
	forms := k.forms
	if len(forms) == 0 || at.once && slices.Contains(k.needs, needCommand) {
		k.try(t, at, rest10(), via, "")
		return
	}
	for _, f := range forms {
		t.Run(f.String(), func(t *testing.T) { k.try(t, at, f, via, f.String()) })
	}
}
