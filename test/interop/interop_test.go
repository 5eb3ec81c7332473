// Package interop drives a running sandboxd with the clients that others
// wrote: the SDKs of A2A in Go, JavaScript and Python, each with the same
// cases, on every version and binding that both sides speak.
package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// dirEnv names the directory that setup.sh filled; the Makefile sets it.
const dirEnv = "SANDBOX_INTEROP"

// patience bounds the whole of it.
const patience = 10 * time.Minute

// setup is what a client is told.
type setup struct {
	Agent string `json:"agent"` // address of its machine
	Token string `json:"token"`
	Keys  string `json:"keys"` // address of the key set
}

// client is one of the peers. It reports every case and calls restart once,
// which returns when the daemon has been killed and is back.
type client interface {
	run(ctx context.Context, s setup, report func(result), restart func() error) error
}

// TestClients is the table of README.md, case by case.
func TestClients(t *testing.T) {
	dir := os.Getenv(dirEnv)
	if dir == "" {
		t.Skip("the clients are not installed; run: make interop")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := daemon(ctx, t)
	clients := map[string]client{
		"go":     goSDK{version: moduleVersion(t, "github.com/a2aproject/a2a-go/v2")},
		"js":     javascript(t, dir),
		"python": program{path: filepath.Join(dir, "py", "bin", "python"), args: []string{"-B", "py/client.py"}},
	}
	setups := map[string]setup{}
	for name := range clients {
		setups[name] = machine(ctx, t, d, dir, name)
	}

	var mu sync.Mutex
	all := &report{}
	crash := newBarrier(len(clients), func() error { return restart(ctx, d, clients) })
	var wg sync.WaitGroup
	for name, c := range clients {
		wg.Go(func() {
			arrived := false
			err := c.run(ctx, setups[name], func(r result) {
				mu.Lock()
				defer mu.Unlock()
				all.add(r)
			}, func() error {
				arrived = true
				return crash.arrive()
			})
			if err != nil {
				t.Errorf("client %s: %v", name, err)
			}
			if !arrived {
				_ = crash.arrive() // the others must not wait for it
			}
		})
	}
	wg.Wait()
	for _, problem := range all.check() {
		t.Error(problem)
	}
	fmt.Print(all.table())
	if !t.Failed() {
		compareReadme(t, all.table())
	}
}

// daemon starts a sandboxd that offers this host as a machine, and lets
// webhooks be on it.
func daemon(ctx context.Context, t *testing.T) *rig.Daemon {
	t.Helper()
	d, err := rig.Start(ctx, rig.Options{Args: []string{
		"--enable-host-provider", "--accelerator", "tcg", "--a2a-extended-card", "--push-allow", "127.0.0.1", "--push-http",
	}})
	if err != nil {
		t.Fatal(err) // make interop built it
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of sandboxd's log:\n%s", d.Log())
		}
		err := d.Stop()
		left, leftErr := d.Leftovers()
		if err := errors.Join(err, leftErr, d.Remove()); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	})
	return d
}

// loadout is a machine that is this host itself, with the same Node.js as the
// client in JavaScript.
const loadout = `apiVersion: loadout/v1
kind: loadout
metadata: {name: interop, description: Takes the cases of one client.}
image: minimal
network: {mode: isolated}
runtime_options: {kind: host}
runners: [echo, adapter-command]
agent:
  skills: [{id: cases, name: Cases, description: Takes the cases of one client.}]
workspace: {path: %q}
env: {PATH: %q}
`

// machine makes the machine of one client.
func machine(ctx context.Context, t *testing.T, d *rig.Daemon, dir, name string) setup {
	t.Helper()
	work, err := os.MkdirTemp("/var/tmp", "sandbox-interop-") // a loadout may not have it below /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(work, "loadout.yaml")
	text := fmt.Sprintf(loadout, filepath.Join(work, "workspace"), filepath.Join(dir, "bin")+":/usr/bin:/bin")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Must(ctx, "up", file, "--name", name, "--workspace", "workspace"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if _, err := d.Must(ctx, "rm", name); err != nil {
			t.Error(err)
		}
	})
	out, err := d.Must(ctx, "show", name, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	token, err := d.Token()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(out, `"a2a_url": "`)
	url, _, _ := strings.Cut(rest, `"`)
	if !found {
		t.Fatalf("machine %s has no A2A address: %s", name, out)
	}
	return setup{Agent: url, Token: token, Keys: d.URL + "/.well-known/jwks.json"}
}

// restart kills the daemon as a crash would, and waits until the next one has
// its machines back.
func restart(ctx context.Context, d *rig.Daemon, clients map[string]client) error {
	if err := errors.Join(d.Kill(), d.Launch(ctx)); err != nil {
		return err
	}
	for name := range clients {
		if _, err := d.Must(ctx, "wait", name); err != nil {
			return err
		}
	}
	return nil
}

// barrier holds up all until the last has come and an action is done.
type barrier struct {
	mu     sync.Mutex
	left   int
	action func() error
	err    error
	done   chan struct{}
}

func newBarrier(n int, action func() error) *barrier {
	return &barrier{left: n, action: action, done: make(chan struct{})}
}

func (b *barrier) arrive() error {
	b.mu.Lock()
	b.left--
	if b.left == 0 {
		b.err = b.action()
		close(b.done)
	}
	b.mu.Unlock()
	<-b.done
	return b.err
}

// moduleVersion is the version of a module in go.mod.
func moduleVersion(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), path+" v")
	version, _, _ := strings.Cut(rest, "\n")
	if !found {
		t.Fatalf("go.mod does not have %s", path)
	}
	version, _, _ = strings.Cut(version, " ")
	return version
}
