// Package e2e tests the built programs from outside on real machines: what is
// asserted here is what a user would see.
package e2e

import (
	"context"
	"encoding/json"
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

// patience bounds one test: machines are emulated and share their host.
const patience = 8 * time.Minute

// shared is one daemon for the tests that do not hurt it.
var shared struct {
	once   sync.Once
	daemon *rig.Daemon
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if d := shared.daemon; d != nil {
		left, err := finish(d)
		if err != nil || len(left) > 0 {
			fmt.Fprintf(os.Stderr, "the shared daemon left %q, error %v\n", left, err)
			code = 1
		}
	}
	os.Exit(code)
}

// finish stops a daemon and returns what it left behind.
func finish(d *rig.Daemon) ([]string, error) {
	err := d.Stop()
	left, leftErr := d.Leftovers()
	return left, errors.Join(err, leftErr, d.Remove())
}

// daemon returns the shared daemon.
func daemon(t *testing.T) *rig.Daemon {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		shared.daemon, shared.err = rig.Start(ctx, rig.Options{})
	})
	check(t, shared.err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of sandboxd's log:\n%s", shared.daemon.Log())
		}
	})
	return shared.daemon
}

// own starts a daemon for one test, and wants it to leave nothing.
func own(t *testing.T, opts rig.Options) *rig.Daemon {
	t.Helper()
	d, err := rig.Start(t.Context(), opts)
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of sandboxd's log:\n%s", d.Log())
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if out, err := d.Must(ctx, "ls", "-o", "name"); err == nil {
			for name := range strings.FieldsSeq(out) {
				if _, err := d.Must(ctx, "rm", name); err != nil {
					t.Error(err)
				}
			}
		}
		left, err := finish(d)
		if err != nil {
			t.Error(err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return d
}

// check fails the test on an error, and skips it with the cure when nothing
// was built.
func check(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, rig.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// boot makes one machine and removes it at the end of the test.
func boot(t *testing.T, d *rig.Daemon, name string, args ...string) {
	t.Helper()
	ctx := deadline(t)
	_, err := d.Must(ctx, append([]string{"up", "--name", name}, args...)...)
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if _, err := d.Must(ctx, "rm", name); err != nil {
			t.Error(err)
		}
	})
}

// task is what tests read of an A2A task.
type task struct {
	ID     string
	Status struct {
		State   string
		Message struct{ Parts []struct{ Text string } }
	}
	Artifacts []struct {
		Name     string
		Parts    []struct{ Text string }
		Metadata map[string]any
	}
	Metadata map[string]any
}

func parseTask(t *testing.T, out string) task {
	t.Helper()
	var parsed task
	if err := json.Unmarshal([]byte(out), &parsed); err != nil {
		t.Fatalf("not a task: %v\n%s", err, out)
	}
	return parsed
}

func (k task) text(artifact string) string {
	var b strings.Builder
	for _, a := range k.Artifacts {
		if a.Name == artifact {
			for _, p := range a.Parts {
				b.WriteString(p.Text)
			}
		}
	}
	return b.String()
}

// workspace makes a workspace whose runner.mjs is the given script.
func workspace(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	adapter := filepath.Join(dir, rig.AdapterDir)
	if err := os.MkdirAll(adapter, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"runner.mjs": script, "request.json": "{}\n"} {
		if err := os.WriteFile(filepath.Join(adapter, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const request = rig.AdapterDir + "/request.json"
