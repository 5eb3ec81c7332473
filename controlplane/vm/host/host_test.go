package host_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/host"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/vmtest"
	"agentic-sandbox.aiwg.io/sandbox/test/rig/agentbin"
)

// agent is the real one.
var agent agentbin.Agent

func TestMain(m *testing.M) { os.Exit(agent.Main(m)) }

// states remembers the state directory of each driver, which the contract
// does not show.
type states struct {
	mu   sync.Mutex
	dirs map[vm.Driver]string
}

func (s *states) open(t *testing.T, dir string) *host.Driver {
	t.Helper()
	d, err := host.New(host.Config{StateDir: dir, AgentBinary: agent.Path(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("cannot close driver: %v", err)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirs == nil {
		s.dirs = map[vm.Driver]string{}
	}
	s.dirs[d] = dir
	return d
}

func (s *states) dir(d vm.Driver) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirs[d]
}

func spec(t *testing.T, id instance.ID, name string) vm.Spec {
	t.Helper()
	boot, err := json.Marshal(agentv1.BootConfig{Version: agentv1.BootConfigVersion, InstanceID: id.String(), Hostname: name})
	if err != nil {
		t.Fatal(err)
	}
	return vm.Spec{ID: id, Name: name, CPUs: 1, Memory: 64 << 20, BootConfig: boot}
}

// leftovers finds files and processes of a machine.
func leftovers(t *testing.T, dir string, id instance.ID) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "machines", "*"+id.String()+"*"))
	if err != nil {
		t.Fatal(err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		if len(cmdline) > 0 && (strings.Contains(string(cmdline), id.String()) || strings.Contains(cwd, id.String())) {
			left = append(left, fmt.Sprintf("%s %q in %s", p, cmdline, cwd))
		}
	}
	return left
}

func TestSuite(t *testing.T) {
	var s states
	vmtest.Suite(t, vmtest.Factory{
		New: func(t *testing.T) vm.Driver { return s.open(t, t.TempDir()) },
		Reopen: func(t *testing.T, old vm.Driver) vm.Driver {
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			return s.open(t, s.dir(old))
		},
		Spec: spec,
		Directory: func(_ *testing.T, d vm.Driver, id instance.ID) string {
			return d.(*host.Driver).DiskDir(id)
		},
		Leftovers: func(t *testing.T, d vm.Driver, id instance.ID) []string { return leftovers(t, s.dir(d), id) },
		Parallel:  5,
	})
}
