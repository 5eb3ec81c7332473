package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

type transport = http.RoundTripper

// hookHost is where webhooks of the suite listen; other addresses of this host
// stay forbidden.
const hookHost = "127.0.0.2"

// TestHost runs all cases on the host driver: the real programs, and the agent
// as a process.
func TestHost(t *testing.T) {
	at := serve(t, "host", []string{
		"--enable-host-provider", "--disclose-host", "--push-http", "--push-allow", hookHost + "/32",
	}, hostMachine(t))
	at.narrow = serve(t, "host", []string{
		"--enable-host-provider", "--push=false", "--a2a-extended-card", "--a2a-max-body", itoa(narrowBody),
		"--a2a-max-streams", "2", "--max-tasks-per-instance", "3", "--a2a-blocking-wait", "500ms", "--max-task-output", "65536",
		"--a2a-domain", virtualDomain,
	}, hostMachine(t))
	at.scripted = serve(t, "host", []string{"--enable-host-provider", "--conformance"}, hostMachine(t))
	at.look(t)
	conform(t, at, func(string) bool { return true })
}

const (
	narrowBody    = 64 << 10
	virtualDomain = "agents.test"
)

// TestVM runs the cases of the extensions that speak of machines on a real one.
func TestVM(t *testing.T) {
	at := serve(t, "vm", []string{"--push-http", "--push-allow", hookHost + "/32"}, func(string) []string {
		dir := workspace(t, filepath.Join(open(t, ""), "workspace"))
		return []string{"agentic-dev", "--workspace", dir, "--env", "PATH=/workspace/bin:/usr/bin:/bin"}
	})
	at.once, at.tokens = true, at.tokens[:2] // it has one processor, perhaps an emulated one
	at.missing[needScript] = "needs the scripted runner, which does not depend on the driver"
	at.missing[needNarrow] = "needs narrow limits, which do not depend on the driver"
	at.look(t)
	if why := at.missing[needCommand]; why != "" {
		t.Errorf("commands do not run: %s", why)
	}
	conform(t, at, func(id string) bool {
		return strings.HasPrefix(id, "RUNTIME-") || strings.HasPrefix(id, "ADAPTER-") || strings.HasPrefix(id, "HITL-")
	})
}

// workspace copies the suite's, with a node that is a shell and runs the
// request: none need be installed, nor started where every program is slow.
// Whoever runs the suite against a machine of their own has the real one run
// runner.mjs, which does the same.
func workspace(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	for _, err := range []error{
		os.CopyFS(dir, os.DirFS("workspace")), os.Mkdir(bin, 0o755), //nolint:gosec // others run it
		os.WriteFile(filepath.Join(bin, "node"), []byte("#!/bin/sh\nexec /bin/sh \"$3\"\n"), 0o755), //nolint:gosec // a program
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// hostMachine is a machine of the host driver.
func hostMachine(t *testing.T) func(dir string) []string {
	return func(string) []string {
		t.Helper()
		dir := open(t, "/var/tmp") // in /tmp no loadout may have a workspace
		work, file := filepath.Join(dir, "workspace"), filepath.Join(dir, "conformance.yaml")
		loadout := fmt.Sprintf(`apiVersion: loadout/v1
kind: loadout
metadata: {name: conformance, description: A process of this host.}
runtime_options: {kind: host, provider: host}
image: minimal
runners: [echo, adapter-command]
workspace: {path: %q}
env: {PATH: %q}
`, work, filepath.Join(work, "bin")+":/usr/bin:/bin")
		workspace(t, work)
		if err := os.WriteFile(file, []byte(loadout), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{file}
	}
}

// try runs the case once and reports what came of it.
func (k kase) try(t *testing.T, at *target, f form, via transport, shown string) {
	x := &trial{T: t, target: at, form: f, client: newClient(), notes: &notes{}}
	x.client.Transport = via
	t.Cleanup(func() {
		o := outcome{Target: at.name, Form: shown, Result: pass}
		switch {
		case t.Failed():
			o.Result, o.Reason = fail, x.notes.failed
		case t.Skipped():
			o.Result, o.Reason = skip, x.notes.skipped
		}
		results.add(k.id, o)
	})
	for _, n := range k.needs {
		if why := at.missing[n]; why != "" {
			x.Skipf("%s", why)
		}
	}
	k.run(x)
}

// fetch makes a request that belongs to no binding.
func (x *trial) fetch(method, address string, more http.Header) fetched {
	x.Helper()
	e := x.exchange("", nil, []http.Header{headers("A2A-Extensions", ""), more})
	req, err := e.raw(x.deadline(), method, address, nil)
	x.check(err)
	resp, err := x.client.Do(req)
	x.check(err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	x.check(err)
	return fetched{resp.StatusCode, resp.Header, raw}
}

// quiet is call for goroutines: it fails nothing, and returns nil for what is
// no answer.
func (x *trial) quiet(op string, params object, more ...http.Header) *reply {
	e := x.exchange(op, params, more)
	ctx, cancel := context.WithTimeout(x.Context(), patience)
	defer cancel()
	req, err := e.request(ctx)
	if err != nil {
		return nil
	}
	resp, err := x.client.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	r, err := e.read(resp)
	if err != nil {
		return nil
	}
	return r
}

// rotate begins a new signing key.
func (x *trial) rotate(grace string) {
	x.Helper()
	bin := os.Getenv(rig.BinEnv)
	if bin == "" {
		bin = filepath.Join("..", "..", ".build", "bin")
	}
	cmd := exec.CommandContext(x.deadline(), filepath.Join(bin, "sandboxd"), "keys", "rotate", "--state-dir", x.stateDir, "--grace", grace)
	if out, err := cmd.CombinedOutput(); err != nil {
		x.Fatalf("cannot rotate keys: %v\n%s", err, out)
	}
}

// open makes a directory that others can pass through, as a hypervisor of
// another user must; t.TempDir's cannot be.
func open(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "sandbox-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
	return dir
}
