package faults

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// serve is a further daemon on a state directory.
func (w *world) serve(ctx context.Context, stateDir string) *exec.Cmd {
	bin, images := built(w.T)
	if w.opts.Bin != "" {
		bin = w.opts.Bin
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "sandboxd"), append([]string{ //nolint:gosec // the program that is tested
		"serve", "--state-dir", stateDir, "--listen", "127.0.0.1:0", "--image-dir", images,
	}, w.opts.Args...)...)
	cmd.Env = append(os.Environ(), w.opts.Env...)
	return cmd
}

// TestSecondDaemon starts daemons on the state directory of one that runs, and
// several at once on one that is new. There is never more than one.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{})
	w.create("held")
	for range 2 {
		out, err := w.serve(w.wake(), w.d.StateDir).CombinedOutput()
		for _, part := range []string{"another sandboxd", fmt.Sprintf("pid %d", w.d.Pid()), w.d.StateDir, "--state-dir"} {
			w.want(err != nil && strings.Contains(string(out), part), "a second daemon ended with %v and lacks %q: %s", err, part, out)
		}
		w.consistent("after a second daemon")
		w.works("held")
	}

	// One that was killed holds nothing.
	w.check(w.d.Kill())
	w.launch()
	w.consistent("after a kill")

	dir := t.TempDir()
	ctx, cancel := context.WithCancel(w.wake())
	defer cancel()
	var all sync.WaitGroup
	ends := make(chan string, 5) // "ready", or what one that gave up said
	for range cap(ends) {
		cmd := w.serve(ctx, dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		w.check(err)
		w.check(cmd.Start())
		all.Go(func() {
			ready := false
			for lines := bufio.NewScanner(stdout); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "sandboxd ready") {
					ready = true
					ends <- "ready"
				}
			}
			_ = cmd.Wait() // how it ends is told by what it says
			if !ready {
				ends <- stderr.String()
			}
		})
	}
	ready := 0
	for range cap(ends) {
		switch said := <-ends; {
		case said == "ready":
			ready++
		case !strings.Contains(said, "another sandboxd"):
			t.Errorf("one of many daemons ended with %s", said)
		}
	}
	w.want(ready == 1, "%d daemons took one state directory", ready)
	cancel()
	all.Wait()
}

// TestUpgrade replaces the program while a machine works: the next daemon is
// another build. The command goes on, and what it wrote is there once.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	programs, _ := built(t)
	bin := t.TempDir()
	for _, name := range []string{"sandboxd", "sandboxctl", "sandbox-agent"} {
		data, err := os.ReadFile(filepath.Join(programs, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), data, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	next := build(t)
	w := newWorld(t, rig.Options{Bin: bin})
	w.create("works")
	id := w.held["works"]
	pids := w.agents()[id]
	old := w.version()
	k := w.adapt(id)
	w.until("output", func() bool { return strings.Contains(w.task(id, k.ID).output(), "tick 2") })
	w.check(w.d.Stop())
	w.check(os.Rename(next, filepath.Join(bin, "sandboxd")))
	w.launch()
	w.want(w.version() == nextVersion && old != nextVersion, "the version was %q and is %q", old, w.version())
	now := w.agents()[id]
	w.want(len(now) == 1 && len(pids) == 1 && now[0] == pids[0], "the machine was process %v and is %v", pids, now)
	i, _ := w.find("works")
	w.want(i.ID == id && i.State == "running" && i.Restarts == 0, "the machine is %+v", i)

	k = w.finished(id, k.ID)
	var want strings.Builder
	for n := range ticks {
		fmt.Fprintf(&want, "tick %d\n", n+1)
	}
	w.want(k.Status.State == "TASK_STATE_COMPLETED" && k.output() == want.String(), "the command is %s and wrote %q", k.Status.State, k.output())
	w.consistent("after an upgrade")
	w.works("works")
}

const nextVersion = "next-of-faults"

// build makes another build of the daemon.
func build(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "sandboxd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+nextVersion, //nolint:gosec // our own
		"-o", out, "agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build sandboxd: %v: %s", err, msg)
	}
	return out
}

func (w *world) version() string {
	w.Helper()
	var v struct{ Version string }
	w.read("/version", &v)
	return v.Version
}
