// Package api tests the management API of a real daemon by its OpenAPI
// document: schemathesis makes up requests, good and bad, and holds every
// answer against the document.
package api_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// schemathesisEnv names the program; the Makefile sets it.
const schemathesisEnv = "SANDBOX_SCHEMATHESIS"

// seedEnv asks for other requests than those of every run.
const seedEnv = "SANDBOX_SCHEMATHESIS_SEED"

// loadout makes an instance of kind host: the agent as a process, so that a
// start takes no time.
const loadout = `apiVersion: loadout/v1
kind: loadout
metadata: {name: dev}
resources: {cpus: 1, memory: 256M}
image: minimal
network: {mode: isolated}
runners: [echo]
runtime_options: {kind: host}
`

func TestSchemathesis(t *testing.T) {
	program := os.Getenv(schemathesisEnv)
	if _, err := os.Stat(program); program == "" || err != nil {
		t.Skip("schemathesis is not installed; run: make api-test")
	}
	dir := t.TempDir()
	d, token := start(t)
	write(t, filepath.Join(dir, "host.yaml"), []byte(loadout))
	// The first is what the document gives as an example; others are for those
	// who remove it.
	for _, name := range []string{"dev", "spare"} {
		if _, err := d.Must(t.Context(), "up", filepath.Join(dir, "host.yaml"), "--name", name, "--label", "team=blue"); err != nil {
			t.Fatal(err)
		}
	}
	document := filepath.Join(dir, "openapi.yaml")
	write(t, document, trimmed(t))
	config, err := filepath.Abs("schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	// One worker: two of them trip over a cache of schemathesis now and then.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--config-file", config, "run", document,
		"--url", d.URL+managementv1.BasePath, "--header", "Authorization: Bearer "+token,
		"--phases", "examples,coverage,fuzzing", "--checks", "all", "--workers", "1", "--no-color")
	cmd.Args = append(cmd.Args, "--seed", cmp.Or(os.Getenv(seedEnv), "1"))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "SCHEMATHESIS_HOOKS=")
	cmd.Dir = dir // it leaves a cache where it runs
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("schemathesis: %v\n%s", err, out)
	} else {
		t.Logf("%s\n%s", time.Since(start).Round(time.Second), tail(string(out)))
	}

	// The daemon lives, and knows of no failure of its own.
	if status, body := get(t, d.URL+"/readyz", token); status != http.StatusOK {
		t.Errorf("readyz: status %d: %s", status, body)
	}
	_, metrics := get(t, d.URL+"/metrics", token)
	if failed := regexp.MustCompile(`(?m)^sandbox_http_requests_total\{code="5xx".*$`).FindAllString(metrics, -1); failed != nil {
		t.Errorf("the daemon has failed:\n%s", strings.Join(failed, "\n"))
	}
	if id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[47]`).FindString(metrics); id != "" || len(metrics) > 1<<20 {
		t.Errorf("the metrics are %d bytes and hold an id %q", len(metrics), id)
	}
	if strings.Contains(d.Log(), "panicked") {
		t.Errorf("the daemon has panicked:\n%s", d.Log())
	}
}

// start starts a daemon that makes processes of this host, and returns the
// administrator's token too.
func start(t *testing.T) (d *rig.Daemon, token string) {
	t.Helper()
	d, err := rig.Start(t.Context(), rig.Options{Args: []string{"--enable-host-provider", "--image-dir", images(t)}})
	if errors.Is(err, rig.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Stop(), d.Remove()); err != nil {
			t.Error(err)
		}
	})
	token, err = d.Token()
	if err != nil {
		t.Fatal(err)
	}
	return d, token
}

// images is a store with the smallest image only, so that no made-up request
// boots a machine.
func images(t *testing.T) string {
	t.Helper()
	_, store, err := rig.Built()
	if err != nil {
		t.Skip(err)
	}
	name, err := os.ReadFile(filepath.Join(store, "names", "minimal.json"))
	if err != nil {
		t.Skip("there is no image; run: make images")
	}
	target := filepath.Join(t.TempDir(), "images")
	if err := os.MkdirAll(filepath.Join(target, "names"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(target, "names", "minimal.json"), name)
	for _, shared := range []string{"blobs", "manifests"} {
		if err := os.Symlink(filepath.Join(store, shared), filepath.Join(target, shared)); err != nil {
			t.Fatal(err)
		}
	}
	return target
}

// trimmed is the document without what nobody can make up.
func trimmed(t *testing.T) []byte {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal(managementv1.Document, &doc); err != nil {
		t.Fatal(err)
	}
	paths, _ := doc["paths"].(map[string]any)
	left := 0
	for path, item := range paths {
		methods, _ := item.(map[string]any)
		for method, op := range methods {
			operation, ok := op.(map[string]any)
			if !ok {
				continue // the parameters of the path
			}
			if operation["x-stream"] == true || operation["operationId"] == "putFiles" {
				delete(methods, method)
				continue
			}
			left++
			parameters, _ := operation["parameters"].([]any)
			kept := []any{}
			for _, p := range parameters {
				ref, _ := p.(map[string]any)["$ref"].(string)
				switch strings.TrimPrefix(ref, "#/components/parameters/") {
				case "IdempotencyKey", "IfMatch", "Cursor":
				default:
					if p.(map[string]any)["name"] == "follow" {
						continue // a stream as well
					}
					kept = append(kept, p)
				}
			}
			operation["parameters"] = kept
		}
		if len(methods) == 0 || len(methods) == 1 && methods["parameters"] != nil {
			delete(paths, path)
		}
	}
	if left < 20 {
		t.Fatalf("only %d operations are left of the document", left)
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func tail(out string) string {
	if i := strings.LastIndex(out, "SUMMARY"); i >= 0 {
		return out[i:]
	}
	return out
}
