package faults

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// smallDisk is the size of the file system of a state directory, in bytes.
const smallDisk = "24m"

// disk mounts a small file system for a state directory.
func disk(t *testing.T) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+smallDisk); err != nil {
		t.Skipf("cannot mount a small disk (%v): run the tests as root with the right to mount", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// zeros are read without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// fill writes a file until nothing more fits on its disk.
func (w *world) fill(path string) {
	w.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	w.check(err)
	for _, size := range []int{1 << 20, 4096, 1} { // to the last byte
		for err = nil; err == nil; {
			_, err = io.CopyN(f, zeros{}, int64(size))
		}
		w.want(errors.Is(err, unix.ENOSPC), "the disk was to be full: %v", err)
	}
	w.check(f.Close())
}

// TestFullDisk has a machine fill the disk. Who wants something made is told
// why that cannot be, what there is goes on, and a removal makes room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rig.Options{
		StateDir: filepath.Join(disk(t), "state"),
		Args:     []string{"--orphan-grace", "4s"}, // and what could not be stored is, every second
	})
	w.create("keeper")
	w.create("eater")
	keeper, eater := w.held["keeper"], w.held["eater"]
	big := filepath.Join(w.d.StateDir, "host", "machines", eater, "disk", "big")
	w.fill(big)
	w.full = true

	full := func(what string, a answer) {
		t.Helper()
		f := a.problem()
		if a.status == http.StatusAccepted { // there was room for the request
			op := w.ended(a)
			if op.State != "failed" {
				w.Fatalf("with a full disk %s ended %s", what, op.State)
			}
			f = *op.Fault
		}
		w.want(f.Blame == "host" && strings.Contains(f.Cause, "full") || strings.Contains(f.Cause, "no space left"),
			"with a full disk %s got %s: %s", what, a, &f)
		w.want(a.status == http.StatusAccepted || a.status == http.StatusInsufficientStorage && f.Code == "store.full" && f.Remediation != "",
			"with a full disk %s got %s", what, a)
	}
	for range 3 {
		full("a create", w.ask(http.MethodPost, "/instances", w.order("late"), unique()))
		w.fill(big)
	}
	i, ok := w.find("keeper")
	w.want(ok && i.State == "running" && len(w.instances()) == 2, "with a full disk there is %+v", w.instances())
	w.want(len(w.agents()[keeper]) == 1 && len(w.agents()[eater]) == 1, "machines ended: %v", w.agents())

	body := []byte(`{"message":{"messageId":"full","role":"ROLE_USER","parts":[{"text":"hello"}]}}`)
	a := w.send(w.wake(), http.MethodPost, "/agents/"+keeper+"/message:send", body, http.Header{"A2a-Version": {"1.0"}, "A2a-Extensions": {extRuntime}})
	w.want(a.status >= http.StatusInternalServerError && strings.Contains(string(a.body), "full"), "with a full disk a message got %s", a)

	// The daemon dies and another comes: a removal needs one.
	w.check(w.d.Kill())
	w.launch()
	w.fill(big)
	w.succeed(w.ask(http.MethodDelete, "/instances/eater", nil, unique()))
	w.consistent("room was made")
	w.works("keeper")
	w.works("late")

	// Many at once, and the disk fills meanwhile.
	big = filepath.Join(w.d.StateDir, "host", "machines", keeper, "disk", "big")
	var all sync.WaitGroup
	names := []string{"many-1", "many-2", "many-3", "many-4", "many-5", "many-6"}
	answers := make([]answer, len(names))
	for n, name := range names {
		all.Go(func() { answers[n] = w.ask(http.MethodPost, "/instances", w.order(name), unique()) })
	}
	w.fill(big)
	all.Wait()
	w.check(os.Remove(big)) // there is room again before they give up
	for n, a := range answers {
		if a.status != http.StatusAccepted {
			full("create "+names[n], a)
			continue
		}
		if op := w.ended(a); op.State == "succeeded" {
			w.note(op)
		}
	}
	for _, name := range names {
		w.works(name)
		i, _ := w.find(name) // one that failed could perhaps not be forgotten
		w.held[name] = i.ID
	}
	w.consistent("filled in between")
}
