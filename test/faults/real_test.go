package faults

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/test/rig"
)

const vmLoadout = `apiVersion: loadout/v1
kind: loadout
metadata: {name: faults, description: A real machine.}
image: minimal
`

// realWorld is a daemon that makes real machines.
func realWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("real machines take their time: run without -short")
	}
	w := start(t, rig.Options{}, vmLoadout)
	w.driver = "libvirt"
	return w
}

// TestKilledHypervisor kills QEMU below a machine, with and without a daemon
// that looks. That becomes a fault with the end of the console, nothing hangs,
// and a start mends it. Then a short random run, with the same model.
func TestKilledHypervisor(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.create("real")
	id := w.held["real"]
	w.killAgent(id)
	i := w.failed("real", "machine.killed")
	w.want(i.Fault.Blame == "host" && len(strings.TrimSpace(i.Fault.Console)) > 0, "the fault is %s with the console %q", i.Fault, i.Fault.Console)
	w.consistent("its hypervisor was killed")
	w.works("real")

	w.check(w.d.Kill())
	w.killAgent(id)
	w.launch()
	w.failed("real", "machine.killed", "machine.ended")
	w.consistent("its hypervisor was killed without a daemon")

	k := &walk{world: w, rng: rand.New(rand.NewPCG(seed(t), 2)), states: map[string]string{"real": "failed"}}
	k.run(int(number(t, realStepsEnv, 3)), []string{"real"}) //nolint:gosec // small
}

// machinesDir is where the driver keeps its machines' files.
func (w *world) machinesDir() string {
	if w.driver == "libvirt" {
		return filepath.Join(w.d.StateDir, "machines")
	}
	return filepath.Join(w.d.StateDir, "host", "machines")
}

// instanceOf is the id of the instance whose machine a process is.
func (w *world) instanceOf(args []string) (id string, ok bool) {
	if w.driver != "libvirt" {
		for _, arg := range args {
			if rest, ok := strings.CutPrefix(arg, w.machinesDir()+"/"); ok {
				id, _, _ = strings.Cut(rest, "/")
				return id, true
			}
		}
		return "", false
	}
	ours := strings.Contains(strings.Join(args, " "), w.d.StateDir)
	for n, arg := range args[:len(args)-1] {
		if arg == "-uuid" && ours {
			return args[n+1], true
		}
	}
	return "", false
}
