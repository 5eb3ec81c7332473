// Package faults breaks a running control plane from outside, at every place
// where it can break, and wants it whole again: it kills daemons, agents and
// hypervisors, fills disks, and takes, locks and damages databases. After each
// fault one checker compares what is said with what is (world.consistent).
//
// It knows the programs, the management API and what a user finds on the
// disk, and imports nothing of theirs but where a clock has to jump.
package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

// patience bounds one wait: hosts of tests are busy, and machines emulated.
const patience = 3 * time.Minute

// world is one daemon, what it was asked for and what it must therefore hold.
type world struct {
	*testing.T
	d       *rig.Daemon
	opts    rig.Options
	loadout string
	driver  string // "host" if empty
	token   string
	// bare is what lies in a state directory without instances.
	bare []string
	// held are the instances there must be, by name: a client was told so.
	held map[string]string
	// full is set once the disk was full: a removal goes on unrecorded then.
	full bool
}

// ticks is how far the adapter counts.
const ticks = 20

// newWorld starts a daemon that makes processes only: QEMU is out of its
// sight, which makes a start quick.
func newWorld(t *testing.T, opts rig.Options) *world {
	t.Helper()
	files, err := rig.NewHosted("faults", rig.ShellNode, map[string]string{
		rig.AdapterDir + "/runner.mjs": slowScript, rig.AdapterDir + "/request.json": "{}\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(files.Dir); err != nil {
			t.Error(err)
		}
	})
	loadout, err := os.ReadFile(files.Loadout)
	if err != nil {
		t.Fatal(err)
	}
	opts.Args = append([]string{"--enable-host-provider", "--accelerator", "tcg"}, opts.Args...)
	// Nobody but the daemon reads images here, so they need no copy that a
	// hypervisor can reach.
	_, opts.Images = built(t)
	opts.Env = append([]string{"PATH=" + filepath.Join(files.Dir, "none")}, opts.Env...)
	return start(t, opts, string(loadout))
}

// built is where the programs and the images are.
func built(t *testing.T) (bin, images string) {
	t.Helper()
	bin, images, err := rig.Built()
	if err != nil {
		t.Skip(err)
	}
	return bin, images
}

// start starts a daemon, and wants it to leave nothing in the end.
func start(t *testing.T, opts rig.Options, loadout string) *world {
	t.Helper()
	d, err := rig.Start(t.Context(), opts)
	if errors.Is(err, rig.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, d: d, opts: opts, loadout: loadout, held: map[string]string{}}
	t.Cleanup(w.finish)
	w.token, err = d.Token()
	w.check(err)
	w.bare = w.files()
	return w
}

// finish removes what there is and wants nothing to be left.
func (w *world) finish() {
	if w.Failed() {
		w.Logf("end of sandboxd's log:\n%s", tailOf(w.d.Log(), 8<<10))
	} else {
		for name := range w.held {
			if _, err := w.d.Must(w.wake(), "rm", name); err != nil {
				w.Error(err)
			}
		}
	}
	if err := w.d.Stop(); err != nil {
		w.Error(err)
	}
	if !w.Failed() {
		left, err := w.d.Leftovers()
		w.want(err == nil && len(left) == 0, "left behind: %q, %v", left, err)
	}
	if err := w.d.Remove(); err != nil {
		w.Error(err)
	}
}

func tailOf(s string, n int) string { return s[max(0, len(s)-n):] }

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) want(ok bool, format string, args ...any) {
	w.Helper()
	if !ok {
		w.Errorf(format, args...)
	}
}

// wake is a context of patience, also while the test is being cleaned up.
func (w *world) wake() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.Context()), patience)
	w.Cleanup(cancel)
	return ctx
}

// until waits for something that nobody announces.
func (w *world) until(what string, so func() bool) {
	w.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-deadline.C:
			w.Fatalf("waited %s for %s\n%s", patience, what, tailOf(w.d.Log(), 8<<10))
		}
	}
}

// launch starts the next daemon.
func (w *world) launch() {
	w.Helper()
	w.check(w.d.Launch(w.wake()))
}

// again starts the next daemon with more arguments than the first had.
func (w *world) again(args ...string) {
	w.Helper()
	opts := w.opts
	opts.StateDir, opts.Args = w.d.StateDir, append(slices.Clone(opts.Args), args...)
	d, err := rig.Start(w.wake(), opts)
	w.check(err)
	w.d = d
}

// refused starts a daemon that must not start, and returns what it says. What
// there is must not be touched by it.
func (w *world) refused(parts ...string) {
	w.Helper()
	before, files := w.agents(), w.machineFiles()
	err := w.d.Launch(w.wake())
	if err == nil {
		w.Fatalf("sandboxd started, want it to refuse and to say %q", parts)
	}
	for _, p := range parts {
		w.want(strings.Contains(err.Error(), p), "the message lacks %q: %v", p, err)
	}
	w.want(maps.EqualFunc(before, w.agents(), slices.Equal), "the processes were %v and are %v", before, w.agents())
	w.want(slices.Equal(files, w.machineFiles()), "the machines' files were %q and are %q", files, w.machineFiles())
}

// machineFiles lists what machines keep.
func (w *world) machineFiles() (all []string) {
	w.Helper()
	w.check(filepath.WalkDir(w.machinesDir(), func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}

// stillborn starts a daemon and kills it while it takes up what there is.
func (w *world) stillborn(writes int) {
	w.Helper()
	log := w.watchLog()
	ctx, cancel := context.WithCancel(w.wake())
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- w.d.Launch(ctx) }()
	for range writes {
		log.next(10 * time.Millisecond)
	}
	cancel()
	if err := <-started; err == nil { // it was quicker
		w.check(w.d.Kill())
	}
	log.close()
}

// create makes an instance and waits for it.
func (w *world) create(name string) {
	w.Helper()
	w.succeed(w.ask(http.MethodPost, "/instances", w.order(name), unique()))
}

// order is the body of a create.
func (w *world) order(name string) object {
	return object{"name": name, "loadout": object{"name": "faults.yaml", "content": w.loadout}}
}

// act changes an instance and waits for the end of that.
func (w *world) act(name, action string) operation {
	w.Helper()
	return w.ended(w.ask(http.MethodPost, "/instances/"+name+":"+action, nil, ""))
}

// remove deletes an instance and waits for the end of that.
func (w *world) remove(name string) {
	w.Helper()
	w.succeed(w.ask(http.MethodDelete, "/instances/"+name, nil, ""))
}

// succeed waits for the end of an operation that must succeed, and keeps in
// mind what it means.
func (w *world) succeed(a answer) operation {
	w.Helper()
	op := w.ended(a)
	if op.State != "succeeded" {
		w.Fatalf("%s of %q ended %s: %s", op.Kind, op.Name, op.State, op.Fault)
	}
	w.note(op)
	return op
}

// note keeps in mind what an operation that succeeded means.
func (w *world) note(op operation) {
	switch op.Kind {
	case "instance.create":
		w.held[op.Name] = op.Instance
	case "instance.delete":
		delete(w.held, op.Name)
	}
}

// works brings an instance up by whatever its state needs and has it do work:
// the next request after a fault.
func (w *world) works(name string) {
	w.Helper()
	i, ok := w.find(name)
	switch {
	case !ok:
		w.create(name)
	case i.State == "paused":
		w.want(w.act(name, "resume").State == "succeeded", "%q cannot be resumed", name)
	case i.State != "running":
		op := w.act(name, "start")
		w.want(op.State == "succeeded", "%q is %s and cannot be started: %s", name, i.State, op.Fault)
	}
	i, _ = w.find(name)
	text := "still there, " + name + "?"
	got := w.echo(i.ID, text)
	w.want(got == text, "%q answers %q", name, got)
}

// agents are the processes that are machines of ours, by the id of the
// instance on their command line.
func (w *world) agents() map[string][]int {
	w.Helper()
	all := map[string][]int{}
	for pid, args := range processes(w.T) {
		if id, ok := w.instanceOf(args); ok {
			all[id] = append(all[id], pid)
		}
	}
	return all
}

// processes are the command lines of all that execute.
func processes(t *testing.T) map[int][]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int][]string{}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && len(line) > 0 { // a zombie has none
			all[pid] = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		}
	}
	return all
}

// files lists the state directory, without what machines keep.
func (w *world) files() []string {
	w.Helper()
	var all []string
	w.check(filepath.WalkDir(w.d.StateDir, func(path string, e os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // a file of the database comes and goes
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(w.d.StateDir, path)
		if e.IsDir() && (filepath.Dir(path) == w.machinesDir() || rel == "image-store" || rel == "libvirt") {
			return filepath.SkipDir
		}
		all = append(all, rel)
		return err
	}))
	slices.Sort(all)
	return all
}

// slowScript counts to ticks, so slowly that much can happen in between.
const slowScript = `i=1
while [ $i -le 20 ]; do echo "tick $i"; i=$((i+1)); sleep 0.15; done
`
