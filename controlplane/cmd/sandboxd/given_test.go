package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMistypedFlags(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"image directory is not there", []string{"--image-dir", missing}, []string{"--image-dir", missing, "no such file", "make images"}},
		{"image directory is a file", []string{"--image-dir", file}, []string{"--image-dir", "not a directory"}},
		{"agent is not there", []string{"--agent", missing}, []string{"--agent", missing, "make build"}},
		{"agent is no program", []string{"--agent", file}, []string{"--agent", "not a program"}},
		{"agent is a directory", []string{"--agent", dir}, []string{"--agent", "not a program"}},
		{"URI without a scheme", []string{"--libvirt-uri", "system"}, []string{"--libvirt-uri", "no scheme", "qemu:///system"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := serveCommand()
			cmd.SetArgs(append([]string{"--state-dir", filepath.Join(dir, "state")}, c.args...))
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("it started")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error lacks %q: %v", w, err)
				}
			}
			if _, err := os.Stat(missing); err == nil {
				t.Error("what was missing has been made")
			}
			if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
				t.Error("a state directory was made")
			}
		})
	}
	if os.Geteuid() == 0 {
		c := config{User: "no-such-user-of-ours"}
		if err := c.checkGiven(func(f string) bool { return f == "hypervisor-user" }); err == nil || !strings.Contains(err.Error(), "no-such-user-of-ours") {
			t.Errorf("unknown user: %v", err)
		}
	}
}
