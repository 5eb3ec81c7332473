package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/doctor"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm/kvm"
)

// TestWrongCommandLines wants each refused by name, in words, as the caller's
// fault.
func TestWrongCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"serve --orphan-grace 5":     `--orphan-grace "5": want a time such as 90s, 4h or 1h30m`,
		"serve --log-level loud":     `--log-level "loud": want debug, info, warn or error`,
		"serve --a2a-max-body big":   `--a2a-max-body "big": want a whole number`,
		"serve --max-task-output -1": `--max-task-output "-1": want a whole number, 0 or more`,
		"serve --push=perhaps":       `--push "perhaps": want true or false`,
		"serve --colour":             `unknown flag: --colour`,
		"serve --vsock x":            `--vsock "x": want one of auto, vhost-vsock, vhost-user-vsock`,
		"serve --accelerator x":      `--accelerator "x": want one of auto, kvm, tcg`,
		"serve --log-format x":       `--log-format "x": want one of text, json`,
		"tokens add ci --expires x":  `--expires "x": want a time`,
		"keys rotate --grace x":      `--grace "x": want a time`,
		"tokens explode":             `unknown command "explode" for "sandboxd tokens"`,
		"keys explode":               `unknown command "explode" for "sandboxd keys"`,
		"completion explode":         `unknown command "explode" for "sandboxd completion"`,
		"help explode":               `there is no help for "explode"`,
	} {
		cmd := root()
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(strings.Fields(line))
		t.Setenv("SANDBOX_STATE_DIR", filepath.Join(t.TempDir(), "state"))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
		var f *instance.Fault
		if strings.HasPrefix(want, "--") && !strings.Contains(want, "one of") && (!errors.As(err, &f) || f.Blame != instance.Caller || f.Hint == "") {
			t.Errorf("%s: no fault of the caller: %v", line, err)
		}
	}
}

// TestDoctorSaysOneThing wants sandboxctl, which looks at a host by itself when
// no daemon answers, to give the advice that a daemon gives.
func TestDoctorSaysOneThing(t *testing.T) {
	dev := t.TempDir()
	compare := func(name string) {
		t.Helper()
		verdict, err := kvm.Prove(t.Context(), kvm.Options{Device: filepath.Join(dev, "kvm")})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range doctor.Local(t.Context(), doctor.Options{StateDir: dev, Dev: dev, Path: dev}) {
			if c.Name == "kvm" && (c.Remedy == "" || c.Remedy != verdict.Remedy) {
				t.Errorf("%s: sandboxctl says %q, sandboxd %q", name, c.Remedy, verdict.Remedy)
			}
		}
	}
	compare("no device")
	if err := os.Mkdir(filepath.Join(dev, "kvm"), 0o700); err != nil { // nothing that can be opened to write
		t.Fatal(err)
	}
	compare("no device, but something else")
}

// TestRootPointsToTheDocumentation: who has no token yet is told where to read.
func TestRootPointsToTheDocumentation(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		w := httptest.NewRecorder()
		welcome(w, httptest.NewRequest(method, "/", http.NoBody))
		var said map[string]string
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || w.Code != http.StatusOK || said["documentation"] != "/api/v1/docs" {
			t.Errorf("%s: %d %s %v", method, w.Code, w.Body, err)
		}
	}
}
