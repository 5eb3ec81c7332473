package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// TestLockOutlivesItsFile: somebody who takes the file for the remains of a crash
// and removes it does not let a second daemon in, and that one still says who
// has the directory.
func TestLockOutlivesItsFile(t *testing.T) {
	dir := t.TempDir()
	held, err := lockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := localhost.Write(dir, localhost.Endpoint{URL: "http://127.0.0.1:1", TokenFile: "/token", PID: os.Getpid()}); err != nil {
		t.Fatal(err)
	}
	// Tokens have a lock of their own, and are made while the daemon runs.
	if _, err := auth.Open(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.Add(dir, auth.Token{Name: "ci", Scopes: []auth.Scope{auth.ScopeFleetRead}}); err != nil {
		t.Fatal(err)
	}
	for _, remove := range []bool{false, true} {
		if remove {
			if err := os.Remove(filepath.Join(dir, lockFile)); err != nil {
				t.Fatal(err)
			}
		}
		second, err := lockStateDir(dir)
		var f *instance.Fault
		if !errors.As(err, &f) || f.Code != "state_dir.in_use" || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
			t.Errorf("file removed %t: a second lock answers %v", remove, err)
		}
		if second != nil {
			t.Fatal("there are two locks")
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if held, err = lockStateDir(dir); err != nil {
		t.Fatalf("after the end: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
}
