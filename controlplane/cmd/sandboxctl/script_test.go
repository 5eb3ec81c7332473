package main

import (
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sandboxctl": func() { os.Exit(run()) }})
}

type serverKey struct{}

// TestScripts runs testdata/script, each against a server of its own: the real
// management API over a fleet in memory, and a machine's A2A address with
// prepared answers. UPDATE_SCRIPTS=1 go test rewrites what is compared.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: false,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			state := filepath.Join(env.WorkDir, "state")
			for _, dir := range []string{home, state} {
				if err := os.Mkdir(dir, 0o700); err != nil {
					return err
				}
			}
			tokens, err := auth.Open(state)
			if err != nil {
				return err
			}
			fake := newFakeServer(tokens)
			s := httptest.NewServer(fake)
			env.Defer(s.Close)
			fake.base = s.URL
			token, err := auth.ReadToken(filepath.Join(state, auth.AdminFile))
			if err != nil {
				return err
			}
			env.Values[serverKey{}] = fake
			env.Setenv("HOME", home)
			env.Setenv("XDG_STATE_HOME", "")
			env.Setenv("SANDBOX_STATE_DIR", state)
			env.Setenv("URL", s.URL)
			env.Setenv("TOKEN", token)
			return localhost.Write(state, localhost.Endpoint{
				URL: s.URL, TokenFile: filepath.Join(state, auth.AdminFile), PID: os.Getpid(), Version: version,
			})
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"await":    await,
			"received": received,
		},
	})
}

// exits runs a command and wants a certain exit status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status is %d, want %d", got, want)
	}
}

// await blocks until the machine's A2A address holds a task.
func await(ts *testscript.TestScript, _ bool, _ []string) {
	fake, ok := ts.Value(serverKey{}).(*fakeServer)
	if !ok {
		ts.Fatalf("no server")
	}
	<-fake.holding
}

// received writes what the server was sent into a file.
func received(ts *testscript.TestScript, _ bool, args []string) {
	fake, ok := ts.Value(serverKey{}).(*fakeServer)
	if !ok || len(args) != 1 {
		ts.Fatalf("usage: received FILE")
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(fake.sent.String()), 0o600))
	fake.sent.Reset()
}
