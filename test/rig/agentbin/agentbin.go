// Package agentbin builds the guest agent for the tests of packages that run
// it as a process of this host. It knows no more of the agent than its place.
package agentbin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const agentPackage = "agentic-sandbox.aiwg.io/sandbox/guestagent/cmd/sandbox-agent"

// Agent is the real agent, built once per test process, when the first test
// asks for it.
type Agent struct {
	once sync.Once
	dir  string
	err  error
}

// Main runs the tests of a package, removes what was built, and returns the
// exit status; it is all that TestMain does.
func (a *Agent) Main(m *testing.M) int {
	code := m.Run()
	if a.dir != "" {
		_ = os.RemoveAll(a.dir)
	}
	return code
}

// Path is where the built agent is.
func (a *Agent) Path(t testing.TB) string {
	t.Helper()
	a.once.Do(a.build)
	if a.err != nil {
		t.Fatal(a.err)
	}
	return filepath.Join(a.dir, "sandbox-agent")
}

func (a *Agent) build() {
	if a.dir, a.err = os.MkdirTemp("", "sandbox-agent-"); a.err != nil {
		return
	}
	// No test's context: the next tests use it, too.
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", a.dir, agentPackage).CombinedOutput() //nolint:noctx // see above
	if err != nil {
		a.err = fmt.Errorf("cannot build the agent: %w: %s", err, out)
	}
}
