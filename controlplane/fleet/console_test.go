package fleet_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// TestConsoleIsFollowed: what is written comes, safe to show, also after the
// file was cut and after a restart of the machine; it ends with the instance.
func TestConsoleIsFollowed(t *testing.T) {
	r := newRig(t)
	r.open()
	v := r.create("talks")
	path := filepath.Join(r.dir, "m", "machines", v.ID.String(), "console.log")
	say := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	say("before\r\n\x1b[31mred\x1b[0m\r\n")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	console, err := r.fleet.Console(ctx, "talks", true, 2)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(console)
	if lines.Scan(); lines.Text() != "before" {
		t.Errorf("the first of the last two lines is %q", lines.Text())
	}
	expect := func(want string) {
		t.Helper()
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		t.Fatalf("%q did not come: %v", want, lines.Err())
	}
	expect("red")
	say("more\n")
	expect("more")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	say("anew\n")
	expect("anew")
	if op := r.act("talks", fleet.ActionRestart); op.State != fleet.OperationSucceeded {
		t.Fatal(op.Fault)
	}
	say("again\n")
	expect("again")

	once, err := r.fleet.Console(ctx, "talks", false, 1)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(once); err != nil || string(text) != "again\n" {
		t.Errorf("the end is %q, %v", text, err)
	}
	op, err := r.fleet.Delete(t.Context(), "talks", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.end(op)
	for lines.Scan() { // until it ends
	}
	if err := errors.Join(lines.Err(), console.Close()); err != nil {
		t.Error(err)
	}
	if _, err := r.fleet.Console(ctx, "talks", true, 0); faultCode(err) != "instance.not_found" {
		t.Errorf("console of nobody: %v", err)
	}
}

// TestConsoleIsClosed: a reader that goes away ends what follows for it.
func TestConsoleIsClosed(t *testing.T) {
	r := newRig(t)
	r.open()
	r.create("quiet")
	console, err := r.fleet.Console(t.Context(), "quiet", true, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := console.Close(); err != nil {
		t.Error(err)
	}
	if _, err := console.Read(make([]byte, 1)); err == nil {
		t.Error("a closed console is read")
	}
}
